#!/bin/sh
# Builds the native modules with sanitizers, then runs tests on them. Usage:
#   tests/runtime/sanitize.sh address|thread TEST... [pytest arguments]
# PYTHON names the interpreter. `address` is AddressSanitizer and UndefinedBehaviorSanitizer. `thread` is
# ThreadSanitizer: kernels then run on their own threads, because it cannot see how those of OpenMP wait for each other.
set -eu
cd "$(dirname "$0")/../.."
kind=$1
shift
python=${PYTHON:-.venv/bin/python}
build=$PWD/build/sanitize-$kind
mkdir -p "$build"
cmake -S runtime -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSTEELYARD_SANITIZE="$kind" \
  -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" >"$build/build.log"
cmake --build "$build" >>"$build/build.log" || { tail -n 20 "$build/build.log"; exit 1; }

# Python itself was built without sanitizers, so that their runtime must come first.
case $kind in
address) libraries='libasan.so libubsan.so libstdc++.so' ;;
thread) libraries='libtsan.so libstdc++.so' ;;
esac
preload=
for library in $libraries; do
  preload="$preload $(g++ -print-file-name=$library)"
done
export ASAN_OPTIONS=detect_leaks=0 # Python's own leaks are not ours
export UBSAN_OPTIONS=print_stacktrace=1
# The child of a fork starts threads of its own, which a test is about.
export TSAN_OPTIONS="die_after_fork=0 suppressions=$PWD/tests/runtime/thread_sanitizer.supp"
# The threads of numpy's products are not instrumented either.
export OPENBLAS_NUM_THREADS=1
# A finding of `address` ends the process, with all that pytest would have captured: nothing is.
PYTHONPATH="$PWD/tests/runtime/native_build" NATIVE_BUILD="$build" LD_PRELOAD="$preload" \
  "$python" -m pytest -s -p no:cacheprovider -m 'not slow' "$@"
