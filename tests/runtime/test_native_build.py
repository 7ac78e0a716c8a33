"""The rules that a build of the native code checks, and its vector operations."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "runtime"
FLAGS = ("-std=c++20", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512_VNNI = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
BROKEN = "inline int shared(int x) { return x + 1; }\nint (*use())(int) { return shared; }\n"


def tool(name: str) -> Path:
    """A tool that the build installed beside the interpreter."""
    return Path(sys.executable).parent / name


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed, so nothing was built with it")
    return found


def run(*command) -> subprocess.CompletedProcess:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


def check_symbols(isa: str, *objects: Path) -> subprocess.CompletedProcess:
    arguments = ("-D", "NM=nm", "-D", f"ISA={isa}", "-D", f"OBJECTS={';'.join(map(str, objects))}")
    return run(tool("cmake"), *arguments, "-P", RUNTIME / "cmake/check_symbols.cmake")


def compile_text(text: str, target: Path) -> Path:
    source = target.with_suffix(".cpp")
    source.write_text(text)
    made = run(compiler("g++"), "-std=c++20", "-O0", "-c", source, "-o", target)
    assert made.returncode == 0, made.stderr
    return target


@pytest.mark.parametrize(
    "text",
    [
        "namespace steelyard::avx2 { int f(int x) { return x; } template <class T> T g(T x) { return x; }\n"
        "template int g(int); struct S { int h() const; }; int S::h() const { static int n = f(1); return ++n; } }",
        "static int hidden(int x) { return x; }\nnamespace steelyard::avx2 { int f(int x) { return hidden(x); } }",
    ],
)
def test_kernels_in_their_namespace_pass_the_check_of_symbols(text, tmp_path):
    checked = check_symbols("avx2", compile_text(text, tmp_path / "kernels.o"))
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"namespace steelyard {{ {BROKEN} }}", "_ZN9steelyard6sharedEi"),
        (f"namespace steelyard::avx2 {{ namespace other {{}} }} {BROKEN}", "_Z6sharedi"),
        (f"namespace steelyard::avx512 {{ {BROKEN} }}", "_ZN9steelyard6avx5126sharedEi"),
        ("namespace steelyard { struct S { int x; int f() const { return x; } };\n"
         "namespace avx2 { int g(const S &s) { return s.f(); } } }", "_ZNK9steelyard1S1fEv"),
        ("#include <algorithm>\nnamespace steelyard::avx2 { int f(int a, int b) { return std::max(a, b); } }",
         "St3max"),
    ],
)  # fmt: skip
def test_a_symbol_that_others_may_share_fails_the_check(text, name, tmp_path):
    good = compile_text("namespace steelyard::avx2 { int harmless() { return 1; } }", tmp_path / "good.o")
    checked = check_symbols("avx2", good, compile_text(text, tmp_path / "broken.o"))
    assert checked.returncode != 0
    assert "kernels must define symbols in namespace steelyard::avx2 only" in checked.stderr
    assert name in checked.stderr
    assert "harmless" not in checked.stderr


@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_operations_of_vectors_equal_the_portable_ones(name, tmp_path):
    flags = (compiler(name), *FLAGS, *WARNINGS, f"-I{RUNTIME}", ROOT / "tests/runtime/simd_operations.cpp")
    for isa, options in (("avx2", AVX2), ("avx512_vnni", AVX512_VNNI)):
        made = run(*flags, f"-DSTEELYARD_ISA={isa}", *options, "-c", "-o", tmp_path / f"{isa}.o")
        assert made.returncode == 0, made.stderr
    objects = tmp_path / "avx2.o", tmp_path / "avx512_vnni.o"
    made = run(*flags, "-DSTEELYARD_ISA=portable", "-DSTEELYARD_COMPARED", *objects, "-o", tmp_path / "compare")
    assert made.returncode == 0, made.stderr
    compared = run(tmp_path / "compare")
    assert compared.returncode == 0, compared.stdout
    assert "equal" in compared.stdout, "no instruction set was compared"


EXPONENTIALS = """
#include "cpu/attention/softmax.h"
#include <cstdio>
int main() {
  for (double x = 0; x > -1e30; x = x * 1.01 - 0.37)
    std::printf("%.9g %.9g\\n", float(x), steelyard::portable::exp_of_negative(float(x)));
}
"""


def test_exponentials_of_scores_far_below_the_largest(tmp_path):
    source, made = tmp_path / "exponentials.cpp", tmp_path / "exponentials"
    source.write_text(EXPONENTIALS)
    flags = (*FLAGS, "-DSTEELYARD_ISA=portable", f"-I{RUNTIME}", "-fsanitize=undefined", "-fno-sanitize-recover")
    built = run(compiler("g++"), *flags, source, "-o", made)
    assert built.returncode == 0, built.stderr
    computed = run(made)
    assert computed.returncode == 0, computed.stderr
    pairs = [tuple(map(float, line.split())) for line in computed.stdout.splitlines()]
    assert pairs[-1][0] < -1e29
    for x, found in pairs:
        assert found == (pytest.approx(math.exp(x), rel=2.0**-22) if x >= -87 else 0)


@pytest.mark.slow
def test_clang_builds_what_gpp_builds(tmp_path):
    """It builds without a warning, and every instruction set gives the bytes of its own baseline."""
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_COMPILER": compiler("clang++"),
        "CMAKE_CXX_FLAGS": "-Werror",
        "CMAKE_MAKE_PROGRAM": tool("ninja"),
        "Python_EXECUTABLE": sys.executable,
        "STEELYARD_COMPARE": "ON",
    }
    made = run(tool("cmake"), "-S", RUNTIME, "-B", tmp_path, "-G", "Ninja", *(f"-D{k}={v}" for k, v in options.items()))
    assert made.returncode == 0, made.stderr
    made = run(tool("cmake"), "--build", tmp_path)
    assert made.returncode == 0, made.stdout[-4000:]
    compared = run(tmp_path / "instruction_sets")
    assert compared.returncode == 0, compared.stdout
