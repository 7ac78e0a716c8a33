"""Products with up to 16 rows, whose columns are decoded on the way to the sums."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gemm_cases import assert_within_bound, random_copy
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import same_bytes

from steelyard.formats.schemes import FP8_ELEMENTS, Scheme
from steelyard.runtime import cpu

DTYPES = {"f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2}
TENSOR, MX, VECTORS = (
    [Scheme(element, block, scale) for element in FP8_ELEMENTS]
    for block, scale in (("tensor", "f32"), ("1x32", "f8E8M0FNU"), ("1x128", "f32"))
)

TILE = Scheme("f8E4M3FN", "128x128", "f32")


def copy_of(scheme, outer, k, seed=0, special=False):
    return random_copy(np.random.default_rng(seed), scheme, outer, k, False, special)


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=200, deadline=None)
@given(
    schemes=st.sampled_from([(a, b) for family in (TENSOR, MX, VECTORS) for a in family for b in family]),
    shape=st.tuples(st.integers(1, 17), st.integers(1, 60), st.integers(0, 1200)),
    seed=st.integers(0, 2**31),
    special=st.booleans(),
)
def test_product_is_within_the_bound(name, schemes, shape, seed, special):
    cpu.set_isa(name)
    rows, columns, k = shape
    a, b = copy_of(schemes[0], rows, k, seed, special), copy_of(schemes[1], columns, k, seed + 1, special)
    assert_within_bound(cpu.qgemm(a, b), a, b)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("scheme", TENSOR, ids=str)
def test_every_code_at_every_k(isa, rows, scheme):
    """The k-th column holds a code at k alone, so each product is that code times the row's value there."""
    k = 70
    a, b = copy_of(scheme, rows, k), copy_of(scheme, k, k)
    for copy in (a, b):
        copy.scales.fill_(1.0)
    found = []
    for code in range(256):
        b.codes.zero_()
        b.codes.fill_diagonal_(code)
        found.append(cpu.qgemm(a, b))
    every = torch.arange(256, dtype=torch.uint8).view(DTYPES[scheme.element]).double()
    expected = every[:, None, None] * a.codes.view(DTYPES[scheme.element]).double()
    # In one comparison: 256 of them would take longer than the products.
    torch.testing.assert_close(torch.stack(found).double(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("scheme", [*TENSOR, *MX, *VECTORS], ids=str)
def test_a_special_code_shows_in_its_column_alone(isa, rows, scheme):
    k = 150
    a, b = copy_of(scheme, rows, k), copy_of(scheme, 9, k, seed=1)
    without = cpu.qgemm(a, b)
    for position in range(k):
        codes = b.codes.clone()
        b.codes[position % 9, position] = 0x7F if position % 2 else 0xFF
        found = cpu.qgemm(a, b)
        others = torch.arange(9) != position % 9
        assert bool(found[:, position % 9].isnan().all())
        assert same_bytes(found[:, others], without[:, others])
        b.codes.copy_(codes)


@pytest.mark.parametrize("scale", [float("inf"), float("nan"), 0.0, 3e38])
@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("rows", [3, 11])
def test_special_block_scales(isa, rows, scale, block):
    a, b = copy_of(VECTORS[0], rows, 300), copy_of(VECTORS[0], 20, 300, seed=1)
    b.codes[7, 128 * block] = 0
    b.scales[7, block] = scale
    assert_within_bound(cpu.qgemm(a, b), a, b)


def test_rows_that_are_infinite(isa):
    a, b = copy_of(TENSOR[1], 2, 100), copy_of(TENSOR[1], 20, 100, seed=1)
    a.codes[0, 40] = 0x7C
    b.codes[::2, 40] = 0
    assert_within_bound(cpu.qgemm(a, b), a, b)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("scheme", [TENSOR[0], VECTORS[0]], ids=str)
@pytest.mark.parametrize("k", [2, 40, 300])
def test_rows_whose_scale_is_infinite(isa, rows, scheme, k):
    """Not even the padding of k to a whole vector turns the result into NaN."""
    a, b = copy_of(scheme, rows, k), copy_of(scheme, 20, k, seed=1)
    a.codes.fill_(0x38)
    b.codes.fill_(0x38)
    a.scales.fill_(float("inf"))
    assert torch.equal(cpu.qgemm(a, b), torch.full((rows, 20), float("inf")))


@pytest.mark.parametrize("rows", range(1, 18))
@pytest.mark.parametrize("schemes", [(TENSOR[0],) * 2, (MX[1],) * 2, (VECTORS[0], TILE)], ids=str)
def test_strips_of_k(isa, rows, schemes):
    """A k longer than the longest strip for any number of rows, with a partial run at the end."""
    a, b = copy_of(schemes[0], rows, 4999), copy_of(schemes[1], 23, 4999, seed=1)
    assert_within_bound(cpu.qgemm(a, b), a, b)


@pytest.mark.parametrize("rows", [2, 6])
def test_wide_scales_meet_few_rows(isa, rows):
    """Scales over 80 binades, nearly the limit for few rows: the smallest blocks keep their precision."""
    a, b = copy_of(MX[0], rows, 256), copy_of(MX[0], 24, 256, seed=1)
    for copy, spread in ((a, 24), (b, 30)):
        steps = torch.linspace(127 - spread, 127 + spread // 2, copy.scales.shape[0] + copy.scales.shape[1])
        at = torch.arange(copy.scales.shape[0])[:, None] + torch.arange(copy.scales.shape[1])
        copy.scales.copy_(steps[at].to(torch.uint8))
    assert_within_bound(cpu.qgemm(a, b), a, b)


@pytest.mark.parametrize("scheme", [TENSOR[0], MX[0], VECTORS[0]], ids=str)
@pytest.mark.parametrize("shape", [(1, 500, 600), (4, 70, 40000), (13, 150, 1000)])
def test_bytes_do_not_depend_on_threads(isa, scheme, shape):
    rows, columns, k = shape
    a, b = copy_of(scheme, rows, k), copy_of(scheme, columns, k, seed=1)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(cpu.qgemm(a, b))
    assert_within_bound(found[0], a, b)
    assert same_bytes(found[1], found[0])
    assert same_bytes(found[2], found[0])


@pytest.mark.parametrize("schemes", [(TENSOR[0],) * 2, (MX[1],) * 2, (VECTORS[0], TILE)], ids=str)
def test_a_column_is_the_same_in_any_company(isa, schemes):
    """One row computes several columns at a time: which ones does not change a bit of a sum."""
    a, b = copy_of(schemes[0], 1, 330), copy_of(schemes[1], 140, 330, seed=1)
    whole = cpu.qgemm(a, b)
    for columns in (1, 2, 3, 4, 5, 7, 8, 31, 33, 127, 129, 139):
        part = replace(b, codes=b.codes[:columns].clone(), scales=first_scales(b, columns), shape=(columns, 330))
        assert same_bytes(cpu.qgemm(a, part), whole[:, :columns])


def first_scales(copy, rows):
    if copy.scheme.block == "tensor":
        return copy.scales
    return copy.scales[: -(-rows // 128) if copy.scheme.block == "128x128" else rows].clone()
