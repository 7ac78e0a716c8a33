from dataclasses import replace

import numpy as np
import pytest
import torch
from gemm_cases import LAYOUTS, assert_within_bound, random_copy, scheme_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, assert_same_copy, nvfp4, same_bytes

from steelyard.errors import ConstraintError
from steelyard.formats.parts import packed_size
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu, cpu

SCHEMES = {
    layout: [pair for pair in scheme_pairs(layout) if pair[0].family == "nvfp4"] for layout in ("fprop", "dgrad")
}


def copy_of(outer, k, seed=0, scheme=None, columnwise=False):
    return random_copy(np.random.default_rng(seed), scheme or nvfp4(), outer, k, columnwise)


@st.composite
def weight_products(draw):
    """A product that a packed weight may take part in: any NVFP4 schemes, few rows and many."""
    layout = draw(st.sampled_from(sorted(SCHEMES)))
    schemes = draw(st.sampled_from(SCHEMES[layout]))
    outers = draw(st.one_of(st.integers(1, 10), st.integers(1, 70))), draw(st.integers(1, 90))
    k = draw(st.one_of(st.integers(0, 40), st.integers(0, 700)))
    special = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    return tuple(
        random_copy(rng, scheme, outer, k, columnwise, special)
        for scheme, outer, columnwise in zip(schemes, outers, LAYOUTS[layout], strict=True)
    )


@given(rows=st.integers(0, 100), columns=st.integers(0, 100), row_scaled=st.booleans())
def test_size_of_a_packed_copy_is_known_without_kernels(rows, columns, row_scaled):
    assert packed_size(rows, columns, row_scaled) == _cpu.packed_size(rows, columns, row_scaled)


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=200, deadline=None)
@given(operands=weight_products(), dtype=st.sampled_from(DTYPES), threads=st.sampled_from((1, 2, 5)))
def test_product_with_a_packed_weight_is_within_the_bound(name, operands, dtype, threads):
    torch.set_num_threads(threads)
    cpu.set_isa(name)
    a, b = operands
    found = cpu.qgemm(a, cpu.pack(b), out_dtype=dtype)
    assert_within_bound(found, a, b)
    assert same_bytes(found, cpu.qgemm(a, b, out_dtype=dtype))


@given(columns=st.integers(0, 40), k=st.integers(0, 80), columnwise=st.booleans(), row_scaled=st.booleans())
@settings(max_examples=80, deadline=None)
def test_unpack_gives_the_copy_back(columns, k, columnwise, row_scaled):
    copy = copy_of(columns, k, columns, nvfp4(second_level="row" if row_scaled else "tensor"), columnwise)
    if k % 2:
        copy.codes[:, -1] &= 15
    assert_same_copy(cpu.unpack(cpu.pack(copy)), copy)


def test_a_packed_weight_is_one_small_tensor():
    for columns, k in [(768, 3072), (1024, 4096), (1000, 1008)]:
        weight = cpu.pack(copy_of(columns, k))
        assert weight.data.dtype == torch.uint8
        assert weight.data.dim() == 1
        assert weight.data.numel() <= 0.15 * 4 * columns * k


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9])
def test_every_pair_of_codes_at_every_k(isa, rows):
    """One code of `a` against all codes of `b` at each k of two blocks, with amaxes that leave a factor of 1."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat((values, -values))
    a, b = copy_of(rows, 32), copy_of(16, 32)
    for copy in (a, b):
        copy.scales.fill_(0x38)
        copy.amax.fill_(2688.0)
    for k in range(32):
        for code in range(16):
            for copy, nibbles in ((a, torch.full((rows,), code)), (b, torch.arange(16))):
                copy.codes.zero_()
                copy.codes[:, k // 2] = (nibbles << (k % 2 * 4)).to(torch.uint8)
            expected = (values[code] * values).expand(rows, 16)
            assert torch.equal(cpu.qgemm(a, b), expected)
            assert torch.equal(cpu.qgemm(a, cpu.pack(b)), expected)


@pytest.mark.parametrize("rows", [2, 70])
def test_a_nan_scale_shows_in_its_row_or_column_alone(isa, rows):
    """Even if every code of its block is zero."""
    a, b = copy_of(rows, 272), copy_of(70, 272, seed=1)
    for column in range(70):
        block = column % 17
        bad = replace(b, scales=b.scales.clone(), codes=b.codes.clone())
        bad.scales[column, block] = 0x7F if column % 2 else 0xFF
        bad.codes[column] = 0
        found = cpu.qgemm(a, cpu.pack(bad)).isnan()
        assert bool(found[:, column].all())
        assert int(found.sum()) == rows
    for row in range(rows):
        bad = replace(a, scales=a.scales.clone(), codes=a.codes.clone())
        bad.scales[row, row % 17] = 0x7F
        bad.codes[row] = 0
        found = cpu.qgemm(bad, cpu.pack(b)).isnan()
        assert bool(found[row].all())
        assert int(found.sum()) == 70


@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("amax", [float("nan"), float("inf")])
def test_amaxes_that_are_not_finite(isa, rows, amax):
    """An infinite amax turns zeros into NaN, so codes are checked one by one."""
    a, b = copy_of(rows, 48), copy_of(20, 48, seed=1)
    b.amax.fill_(amax)
    assert_within_bound(cpu.qgemm(a, cpu.pack(b)), a, b)
    b = copy_of(20, 48, seed=1)
    a.amax.fill_(amax)
    assert_within_bound(cpu.qgemm(a, cpu.pack(b)), a, b)


@pytest.mark.parametrize("shape", [(300, 200, 700), (1, 500, 600), (4, 70, 5000), (2100, 40, 300)])
def test_bytes_do_not_depend_on_threads(isa, shape):
    rows, columns, k = shape
    a, weight = copy_of(rows, k), cpu.pack(copy_of(columns, k, seed=1))
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(cpu.qgemm(a, weight))
    assert_within_bound(found[0], a, cpu.unpack(weight))
    assert same_bytes(found[1], found[0])
    assert same_bytes(found[2], found[0])


@pytest.mark.parametrize("rows", [2, 30])
def test_bias_epilogue_and_residual(rows):
    a, b = copy_of(rows, 100), copy_of(50, 100, seed=1)
    generator = torch.Generator().manual_seed(0)
    bias, residual = torch.randn(50, generator=generator), torch.randn(rows, 50, generator=generator)
    options = {"bias": bias, "residual": residual, "epilogue": "relu", "out_dtype": torch.bfloat16}
    found, kept = cpu.qgemm(a, cpu.pack(b), preactivation=True, **options)
    assert_within_bound(kept, a, b, addends=[bias])
    assert_within_bound(cpu.qgemm(a, cpu.pack(b), bias=bias, residual=residual), a, b, addends=[bias, residual])
    nearly = cpu.qgemm(a, b, bias=bias).relu() + residual
    torch.testing.assert_close(found.float(), nearly, rtol=2**-8, atol=1e-4)


def test_refusals():
    with pytest.raises(ConstraintError, match="GEMMs read other copies as they are") as caught:
        cpu.pack(copy_of(4, 8, scheme=Scheme("f8E4M3FN", "tensor", "f32")))
    assert caught.value.constraint == "pack_scheme"
    weight = cpu.pack(copy_of(8, 32))
    for broken in (
        replace(weight, data=weight.data[:-1]),
        replace(weight, shape=(9, 32)),
        replace(weight, data=weight.data.view(torch.int8)),
    ):
        for use in (cpu.unpack, lambda broken: cpu.qgemm(copy_of(3, 32), broken)):
            with pytest.raises(ConstraintError) as caught:
                use(broken)
            assert caught.value.constraint == "copy_parts"
    with pytest.raises(ConstraintError) as caught:
        cpu.qgemm(copy_of(3, 48), weight)
    assert caught.value.constraint == "gemm_reduction"
    memory = weight.data[: 3 * 8 * 4].view(torch.float32).view(3, 8)
    with pytest.raises(ConstraintError, match="memory that b"):
        cpu.qgemm(copy_of(3, 32), weight, out=memory)
