#!/bin/sh
# Builds the native module with AddressSanitizer and UndefinedBehaviorSanitizer, then runs these tests against it.
# Usage: tests/runtime/sanitize.sh [pytest arguments]; PYTHON names the interpreter.
set -eu
cd "$(dirname "$0")/../.."
mkdir -p build
python=${PYTHON:-.venv/bin/python}
cmake -S runtime -B build/sanitize -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSTEELYARD_SANITIZE=ON \
  -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" >build/sanitize.log
cmake --build build/sanitize >>build/sanitize.log
# Python itself was not built with the sanitizers: its runtime comes first, and its own leaks are not ours. A finding ends
# the process, with all that pytest would have captured: nothing is.
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)"
LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  "$python" tests/runtime/run_with_module.py build/sanitize tests/runtime -n0 -s -p no:cacheprovider "$@"
