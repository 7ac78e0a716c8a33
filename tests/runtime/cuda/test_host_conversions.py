"""The conversions of NVIDIA's headers, compiled for the host, against the reference and the interpreter."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ptx_arithmetic import ARITHMETIC

from steelyard.reference.casts import E2M1, E4M3, E5M2, encode

NVCC = shutil.which("nvcc")
pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc of the CUDA toolkit is not installed")


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    """Every bfloat16 value, and float32 values next to the ties of each format."""
    halves = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
    generator = np.random.default_rng(0)
    near_ties = halves + generator.integers(-1, 2, halves.shape).astype(np.uint32)
    spread = (generator.normal(0, 1, 50000) * np.exp2(generator.normal(0, 12, 50000))).astype(np.float32)
    return np.concatenate((halves.view(np.float32), near_ties.view(np.float32), spread))


@pytest.fixture(scope="module")
def codes(values, tmp_path_factory) -> np.ndarray:
    program = tmp_path_factory.mktemp("conversions") / "convert"
    source = Path(__file__).parent / "host_conversions.cpp"
    assert NVCC is not None
    # Host code only: nvcc adds its headers and leaves the rest to the host's compiler.
    subprocess.run([NVCC, "-O1", "-w", str(source), "-o", str(program)], check=True)
    run = subprocess.run([str(program)], input=values.tobytes(), capture_output=True, check=True)
    return np.frombuffer(run.stdout, np.uint8).reshape(-1, 4)


@pytest.mark.parametrize(("column", "fmt"), [(0, E4M3), (1, E5M2), (2, E2M1)], ids=["e4m3", "e5m2", "e2m1"])
def test_casts_of_the_reference(values, codes, column, fmt):
    assert np.array_equal(encode(values, fmt), codes[:, column])


@pytest.mark.parametrize(
    ("column", "opcode"),
    [
        (0, "cvt.rn.satfinite.e4m3x2.f32"),
        (1, "cvt.rn.satfinite.e5m2x2.f32"),
        (2, "cvt.rn.satfinite.e2m1x2.f32"),
        (3, "cvt.rp.satfinite.ue8m0x2.f32"),
    ],
)
def test_conversions_of_the_interpreter(values, codes, column, opcode):
    bits = np.ascontiguousarray(values).view(np.uint32)
    bits = bits & np.uint32(0x7FFFFFFF) if column == 3 else bits
    pair = ARITHMETIC[opcode](np.zeros_like(bits), bits)
    assert np.array_equal(pair & (15 if column == 2 else 255), codes[:, column])
