"""What NVIDIA's assembler reports about the PTX, if the CUDA toolkit is installed, and which instructions it has."""

import re
import shutil
import subprocess

import pytest
from kernel_list import copy_kernels, fused_kernels, grouped_kernels, quantize_kernels, small_kernels

from steelyard.codegen.compilation import compile_kernel
from steelyard.codegen.copies import Copy
from steelyard.codegen.dequantize import DequantizeKernel
from steelyard.codegen.quantize import QuantizeKernel
from steelyard.codegen.sources import Source
from steelyard.formats.schemes import Scheme
from steelyard.targets.architectures import TARGETS

PTXAS = shutil.which("ptxas")
needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="ptxas of the CUDA toolkit is not installed")
MOST_REGISTERS = 128  # four blocks of 128 threads fit a multiprocessor's 64K registers
MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
NVFP4 = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor")


def assemble(kernels, target, directory) -> None:
    assert PTXAS is not None
    path = directory / "kernel.ptx"
    for kernel in kernels:
        path.write_text(compile_kernel(kernel, TARGETS[target]).ptx)
        command = [PTXAS, f"-arch={target}", "-v", str(path), "-o", str(path.with_suffix(".cubin"))]
        report = subprocess.run(command, capture_output=True, text=True, check=False)
        assert report.returncode == 0, f"{kernel.name}: {report.stderr}"
        assert "0 bytes spill stores, 0 bytes spill loads" in report.stderr, f"{kernel.name}: {report.stderr}"
        (registers,) = re.findall(r"Used (\d+) registers", report.stderr)
        assert int(registers) <= MOST_REGISTERS, f"{kernel.name}: {report.stderr}"


@pytest.mark.every(3)
@needs_ptxas
@pytest.mark.parametrize("index", range(len(TARGETS)), ids=list(TARGETS))
def test_assembles_without_spills(index, tmp_path):
    # Each target assembles some kernels here; the slow test assembles all of them.
    kernels = quantize_kernels("bf16", True) + copy_kernels(True) + small_kernels("bf16", True)
    kernels += grouped_kernels("bf16", True)
    assemble(kernels[index :: 4 * len(TARGETS)], list(TARGETS)[index], tmp_path)


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "any"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_every_kernel_assembles_without_spills(target, dtype, aligned, tmp_path):
    kernels = quantize_kernels(dtype, aligned) + fused_kernels(dtype, aligned) + small_kernels(dtype, aligned)
    kernels += grouped_kernels(dtype, aligned)
    assemble(kernels + (copy_kernels(aligned) if dtype == "f32" else []), target, tmp_path)


def ptx_of(kernel, target) -> str:
    return compile_kernel(kernel, TARGETS[target]).ptx


@pytest.mark.parametrize("target", TARGETS)
def test_conversions_are_native_where_the_target_has_them(target):
    block_formats = target.startswith(("sm_10", "sm_12"))
    mx = ptx_of(QuantizeKernel(Source("bf16"), (Copy(MX, False, True),)), target)
    assert "cvt.rn.satfinite.e4m3x2.f32" in mx
    assert ("cvt.rp.satfinite.ue8m0x2.f32" in mx) == block_formats
    fp4 = ptx_of(QuantizeKernel(Source("bf16"), (Copy(NVFP4, False, True),)), target)
    assert ("cvt.rn.satfinite.e2m1x2.f32" in fp4) == block_formats
    decoded = ptx_of(DequantizeKernel(Copy(NVFP4, False, True), "bf16"), target)
    assert ("cvt.rn.f16x2.e2m1x2" in decoded) == block_formats
    assert "cvt.rn.f16x2.e4m3x2" in decoded


@pytest.mark.parametrize("target", TARGETS)
def test_text_is_for_the_target_and_uses_vectors(target):
    text = ptx_of(QuantizeKernel(Source("bf16"), (Copy(MX, False, True),)), target)
    version = re.search(r"^\.version (\d+)\.(\d+)$", text, re.M)
    assert version is not None
    assert tuple(map(int, version.groups())) == TARGETS[target].ptx_version
    assert f".target {target}\n" in text
    assert "ld.global.v4.b32" in text
    assert "ld.global.b16" not in text


@pytest.mark.parametrize("kernel", quantize_kernels("f32", True)[::9], ids=lambda kernel: kernel.name)
def test_no_multiply_and_add_may_be_contracted(kernel):
    """PTX without a rounding mode allows fusing, and flushing changes subnormals."""
    text = ptx_of(kernel, "sm_90a")
    assert not re.search(r"\b(add|sub|mul|div)\.(f32|f64)\b", text)
    assert ".ftz" not in text
    assert "approx" not in text


def test_a_module_names_its_version_its_target_and_its_kernel():
    text = ptx_of(QuantizeKernel(Source("bf16"), (Copy(MX, columnwise=False, aligned=True),)), "sm_100a")
    lines = [line for line in text.splitlines() if line and not line.startswith("//")]
    assert lines[:2] == [".version 8.6", ".target sm_100a"]
    assert ".entry quantize_bf16_row_e4m3_1x32(" in text
