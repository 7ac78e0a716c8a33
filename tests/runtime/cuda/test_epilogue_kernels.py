"""Epilogues as separate kernels: executed PTX against the fused store of the CPU's GEMM."""

import itertools

import numpy as np
import pytest
import torch
from gemm_cases import random_copy
from kernel_cases import DTYPES, SPECIAL_VALUES, same_values, with_layout
from simulation import Simulator, simulated

from steelyard.codegen.compilation import compile_kernel
from steelyard.codegen.epilogue import EpilogueKernel
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.targets.architectures import TARGETS

E4M3 = Scheme("f8E4M3FN", "tensor", "f32")
SHAPES = (5, 72), (67, 35)
EPILOGUES = ("none", "relu", "gelu", "gelu_tanh", "silu")


def source_of(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(columns)
    values = torch.randn(rows, columns, generator=generator) * torch.exp2(
        torch.randn(rows, columns, generator=generator) * 4
    )
    values.view(-1)[: len(SPECIAL_VALUES)] = torch.tensor(SPECIAL_VALUES)
    values[-1] = torch.linspace(-110, 20, columns)
    return values


def fused_store(source: torch.Tensor, epilogue: str, dtype: torch.dtype, bias=None, residual=None):
    """The CPU's GEMM with an empty reduction, row by row: what it stores depends on its bias alone."""
    rng = np.random.default_rng(0)
    copies = random_copy(rng, E4M3, 1, 0, False), random_copy(rng, E4M3, source.shape[1], 0, False)
    rows = []
    for number, row in enumerate(source):
        given = row if bias is None else row + bias.float()
        added = None if residual is None else residual[number : number + 1]
        rows.append(
            cpu.qgemm(
                *copies,
                bias=given,
                residual=added,
                epilogue=epilogue,
                preactivation=epilogue != "none",
                out_dtype=dtype,
            )
        )
    if epilogue == "none":
        return torch.cat(rows), None
    return tuple(torch.cat(part) for part in zip(*rows, strict=True))


def random_like(shape, dtype, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.every(3)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=["aligned", "ragged"])
def test_epilogue_with_every_addend(epilogue, dtype, shape):
    check_epilogue("sm_90a", epilogue, dtype, shape)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues_on_every_target(target, epilogue):
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        check_epilogue(target, epilogue, dtype, shape)


def check_epilogue(target, epilogue, dtype, shape):
    source = source_of(*shape)
    bias, residual = random_like(shape[1:], dtype, 1), random_like(shape, dtype, 2)
    out, kept = (torch.empty(shape, dtype=dtype) for _ in range(2))
    asked = {} if epilogue == "none" else {"preactivation": kept}
    simulated(target).epilogue(source, out, activation=epilogue, bias=bias, residual=residual, **asked)
    expected, expected_kept = fused_store(source, epilogue, dtype, bias, residual)
    assert same_values(out, expected)
    assert expected_kept is None or same_values(kept, expected_kept)


@pytest.mark.parametrize("layout", ["columns", "padded", "stepped", "expanded_rows"])
def test_sources_of_any_strides(layout):
    """The valid part of a padded product is a view of it."""
    source, residual = (
        with_layout(values, layout) for values in (source_of(9, 40), random_like((9, 40), torch.float32, 3))
    )
    bias = random_like((80,), torch.bfloat16, 4)[::2]
    out = torch.empty(9, 40)
    simulated("sm_100a").epilogue(source, out, activation="silu", bias=bias, residual=residual)
    assert same_values(out, fused_store(source, "silu", torch.float32, bias, residual)[0])


def test_leading_dims_and_nothing_at_all():
    source = source_of(6, 16)
    out = torch.empty(2, 3, 16)
    simulated("sm_90a").epilogue(source.view(2, 3, 16), out, activation="relu")
    assert same_values(out.view(6, 16), fused_store(source, "relu", torch.float32)[0])
    simulated("sm_90a").epilogue(torch.empty(0, 16), torch.empty(0, 16))


def test_accesses_are_whole_vectors():
    simulator = Simulator("sm_100a", measured=True)
    source, residual = torch.randn(128, 128), torch.randn(128, 128).bfloat16()
    out = torch.empty(128, 128, dtype=torch.bfloat16)
    Kernels(simulator).epilogue(source, out, activation="gelu", bias=torch.randn(128), residual=residual)
    ((_, traffic),) = simulator.launches
    assert set(traffic.requested) == {"ld.global.16", "st.global.16"}
    assert traffic.requested["st.global.16"] == traffic.sectors["st.global.16"] == out.nbytes


@pytest.mark.parametrize("target", TARGETS)
def test_text_reads_and_stores_vectors(target):
    text = compile_kernel(EpilogueKernel("bf16", "relu", bias="bf16", residual="bf16"), TARGETS[target]).ptx
    assert "ld.global.v4.b32" in text
    assert "st.global.v4.b32" in text
    assert "b16 " not in "".join(line for line in text.splitlines() if "global" in line)
