"""Copies that borrow the parts of the other usage: GEMMs read them as if they had been transposed."""

import numpy as np
import pytest
import torch
from gemm_cases import assert_within_bound, random_copy
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import nvfp4, same_values

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.copies import other_usage
from steelyard.formats.schemes import FP8_ELEMENTS, Scheme
from steelyard.runtime import cpu

TENSOR, TILES, MX = (
    [Scheme(element, block, scale) for element in FP8_ELEMENTS]
    for block, scale in (("tensor", "f32"), ("128x128", "f32"), ("32x32", "f8E8M0FNU"))
)
VECTORS = Scheme("f8E4M3FN", "1x128", "f32")


def borrowed_copy(scheme, outer, k, columnwise, seed, special=False):
    """An operand that reduces over `k` and stores the other usage; MX tiles repeat their byte, as they must."""
    base = random_copy(np.random.default_rng(seed), scheme, k, outer, not columnwise, special)
    if scheme.block == "32x32":
        dim, size = (1, base.scales.shape[1]) if base.columnwise else (0, base.scales.shape[0])
        first = base.scales.index_select(dim, torch.arange(0, size, 32))
        base.scales = first.repeat_interleave(32, dim=dim).narrow(dim, 0, size).contiguous()
    return other_usage(base)


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=120, deadline=None)
@given(
    scheme=st.sampled_from(TENSOR + TILES + MX),
    shape=st.tuples(st.integers(1, 150), st.integers(1, 150), st.integers(0, 300)),
    columnwise=st.booleans(),
    seed=st.integers(0, 2**31),
    special=st.booleans(),
)
def test_product_is_within_the_bound(name, scheme, shape, columnwise, seed, special):
    cpu.set_isa(name)
    rows, columns, k = shape
    b = borrowed_copy(scheme, columns, k, columnwise, seed, special)
    other = VECTORS if scheme in TILES else scheme
    a = random_copy(np.random.default_rng(seed + 1), other, rows, k, False, special)
    assert_within_bound(cpu.qgemm(a, b), a, b)
    assert_within_bound(cpu.qgemm(b, a), b, a)
    assert_within_bound(cpu.qgemm(a, cpu.transpose(other_usage(b))), a, b)


@pytest.mark.parametrize("scheme", TENSOR + MX, ids=str)
@pytest.mark.parametrize("columnwise", [False, True])
def test_both_operands_borrowed(isa, scheme, columnwise):
    a = borrowed_copy(scheme, 70, 333, columnwise, 0)
    b = borrowed_copy(scheme, 45, 333, not columnwise, 1)
    assert_within_bound(cpu.qgemm(a, b), a, b)
    assert torch.equal(reference.qgemm(a, b), reference.qgemm(*(cpu.transpose(other_usage(c)) for c in (a, b))))


@pytest.mark.parametrize("scheme", [TENSOR[0], TILES[0], MX[0]], ids=str)
def test_values_are_those_of_the_source(scheme):
    x = torch.randn(150, 70, generator=torch.Generator().manual_seed(0))
    row, _ = cpu.quantize(x, scheme, None)
    borrowed = other_usage(row)
    assert borrowed.codes is row.codes
    assert borrowed.columnwise
    assert same_values(cpu.dequantize(borrowed), cpu.dequantize(row))
    assert same_values(reference.dequantize(borrowed), cpu.dequantize(row))
    assert other_usage(borrowed) == row


def test_refusals():
    x = torch.randn(64, 64)
    for scheme in (nvfp4("16x16"), VECTORS, Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")):
        row, _ = cpu.quantize(x, scheme, None)
        with pytest.raises(ConstraintError, match="same FP8 codes") as caught:
            other_usage(row)
        assert caught.value.constraint == "other_usage_scheme"
    borrowed = other_usage(cpu.quantize(x, TILES[0], None)[0])
    for use in (cpu.transpose, cpu.swizzle, lambda copy: cpu.quantize_into(x, None, copy)):
        with pytest.raises(ConstraintError, match="only GEMMs read these") as caught:
            use(borrowed)
        assert caught.value.constraint == "copy_borrowed"
