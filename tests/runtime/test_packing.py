from dataclasses import replace

import numpy as np
import pytest
import torch
from gemm_cases import LAYOUTS, assert_within_bound, random_copy, rounded, scheme_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, assert_same_copy, matrices, mxfp4, nvfp4, same_bytes

from steelyard.errors import ConstraintError
from steelyard.formats.parts import can_pack, packed_size
from steelyard.formats.scheme_bits import scheme_bits
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu, cpu

SCHEMES = {layout: [pair for pair in scheme_pairs(layout) if can_pack(pair[1])] for layout in ("fprop", "dgrad")}
WEIGHTS = [nvfp4(), nvfp4("16x16"), nvfp4(second_level="row"), nvfp4("1x32"), mxfp4()]


def copy_of(outer, k, seed=0, scheme=None, columnwise=False):
    return random_copy(np.random.default_rng(seed), scheme or nvfp4(), outer, k, columnwise)


def same_numbers(found, expected):
    """The same bytes but for those of NaN, whose sign depends on the order of operands."""
    is_nan = expected.isnan()
    return torch.equal(found.isnan(), is_nan) and same_bytes(found[~is_nan], expected[~is_nan])


@st.composite
def weight_products(draw):
    """A product that a packed weight may take part in: any rows, few of them and many."""
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


@given(rows=st.integers(0, 100), columns=st.integers(0, 100), scheme=st.sampled_from(WEIGHTS))
def test_size_of_a_packed_copy_is_known_without_kernels(rows, columns, scheme):
    assert packed_size(scheme, rows, columns) == _cpu.packed_size(scheme_bits(scheme), rows, columns)


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=200, deadline=None)
@given(operands=weight_products(), dtype=st.sampled_from(DTYPES), threads=st.sampled_from((1, 2, 5)))
def test_product_with_a_packed_weight_is_within_the_bound(name, operands, dtype, threads):
    torch.set_num_threads(threads)
    cpu.set_isa(name)
    a, b = operands
    found = cpu.qgemm(a, cpu.pack(b), out_dtype=dtype)
    assert_within_bound(found, a, b)
    assert same_numbers(found, cpu.qgemm(a, b, out_dtype=dtype))


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=150, deadline=None)
@given(
    values=matrices(max_side=70),
    scheme=st.sampled_from(WEIGHTS),
    columns=st.integers(1, 90),
    special=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_matrix_that_is_not_quantized_times_a_packed_weight(name, values, scheme, columns, special, seed):
    cpu.set_isa(name)
    weight = random_copy(np.random.default_rng(seed), scheme, columns, values.shape[1], False, special)
    found = cpu.qgemm(values, cpu.pack(weight))
    assert_within_bound(found, values, weight)
    assert same_numbers(found, cpu.qgemm(values, weight))


def test_a_packed_weight_is_multiplied_as_the_compact_one_for_the_smallest_scale(isa):
    """A block of zeros under a huge scale does not count, and the scale 2^-127 counts as what it is."""
    weight = random_copy(np.random.default_rng(0), mxfp4(), 20, 96, False)
    weight.scales[:] = 130
    weight.scales[3, 1] = 0
    weight.scales[5, 2], weight.codes[5, 32:] = 254, 0
    values = torch.randn(9, 96, generator=torch.Generator().manual_seed(0))
    found = cpu.qgemm(values, cpu.pack(weight))
    assert_within_bound(found, values, weight)
    assert same_numbers(found, cpu.qgemm(values, weight))


def test_what_fills_the_last_byte_does_not_count(isa):
    """A huge scale of a last code that is zero, beside a half of a byte that is not."""
    weight = random_copy(np.random.default_rng(0), mxfp4(), 20, 33, False)
    weight.scales[:] = 90
    weight.scales[5, 1], weight.codes[5, 16] = 254, 0x50
    values = torch.randn(3, 33, generator=torch.Generator().manual_seed(0))
    found = cpu.qgemm(values, cpu.pack(weight))
    assert_within_bound(found, values, weight)
    assert same_numbers(found, cpu.qgemm(values, weight))


@given(columns=st.integers(0, 40), k=st.integers(0, 80), columnwise=st.booleans(), scheme=st.sampled_from(WEIGHTS))
@settings(max_examples=100, deadline=None)
def test_unpack_gives_the_copy_back(columns, k, columnwise, scheme):
    copy = copy_of(columns, k, columns, scheme, columnwise)
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


E4M3, MX = Scheme("f8E4M3FN", "tensor", "f32"), Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
FP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _one_code_at_each_k(k):
    """A column per k and code, which holds the code at that k and zeros elsewhere; scales and factor are 1."""
    weight = replace(copy_of(16 * k, k), amax=torch.tensor(2688.0))
    weight.scales.fill_(0x38)
    weight.codes.zero_()
    for position in range(k):
        nibbles = torch.arange(16, dtype=torch.uint8) << (position % 2 * 4)
        weight.codes[16 * position : 16 * position + 16, position // 2] = nibbles
    return weight


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_every_e4m3_code_times_every_fp4_code_at_every_k(isa, rows):
    """Each product is exact, and NaN is NaN even times zero."""
    weight = cpu.pack(_one_code_at_each_k(38))
    a = replace(copy_of(rows, 38, scheme=E4M3), scales=torch.tensor(1.0))
    found = []
    for code in range(256):
        a.codes.fill_(code)
        found.append(cpu.qgemm(a, weight))
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    expected = (every[:, None] * FP4_VALUES).repeat(1, 38)[:, None].expand(256, rows, 16 * 38)
    torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 4, 5])
@pytest.mark.parametrize("value", [1.0, 3.0e38, 1.1e-45, float("inf"), float("nan")])
def test_a_value_times_every_fp4_code_at_every_k(isa, rows, value):
    weight = _one_code_at_each_k(38)
    values = torch.full((rows, 38), value)
    assert_within_bound(cpu.qgemm(values, cpu.pack(weight)), values, weight)


@pytest.mark.parametrize("scheme", [mxfp4(), MX, None], ids=["mxfp4", "mxfp8", "values"])
def test_every_mxfp4_scale_byte_against_every_power_of_two(isa, scheme):
    """2^(i - 127) 2^(j - 127): the whole range of products, from zero through subnormals to infinity."""
    powers = np.exp2(np.arange(256.0) - 127)
    powers[255] = np.nan
    weight = copy_of(256, 1, scheme=mxfp4())
    weight.codes.fill_(2)
    weight.scales.copy_(torch.arange(256, dtype=torch.uint8)[:, None])
    packed = cpu.pack(weight)
    found = []
    for first in range(0, 256, 4):
        a = torch.from_numpy(powers[first : first + 4].astype(np.float32))[:, None]
        if scheme is not None:
            a = copy_of(4, 1, scheme=scheme)
            a.codes.fill_(2 if scheme == mxfp4() else 0x38)
            a.scales.copy_(torch.arange(first, first + 4, dtype=torch.uint8)[:, None])
        found.append(cpu.qgemm(a, packed))
    expected = rounded(powers[:, None] * powers, torch.float32)
    torch.testing.assert_close(torch.cat(found), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 3, 12, 40])
@pytest.mark.parametrize("scheme", [mxfp4(), MX, nvfp4()], ids=["mxfp4", "mxfp8", "nvfp4"])
def test_extreme_scales_beside_ordinary_ones(isa, rows, scheme):
    """Products of huge and tiny blocks are ordinary numbers, even next to blocks of zeros with extreme scales."""
    a, b = copy_of(rows, 96, scheme=scheme), copy_of(40, 96, seed=1, scheme=mxfp4())
    b.scales.copy_(torch.tensor([0, 254, 127], dtype=torch.uint8))
    if scheme.scale == "f8E8M0FNU":
        a.scales.copy_(torch.tensor([254, 0, 127], dtype=torch.uint8))
    assert_within_bound(cpu.qgemm(a, cpu.pack(b)), a, b)
    b.codes[:, :32] = 0x80
    assert_within_bound(cpu.qgemm(a, cpu.pack(b)), a, b)


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("scheme", [nvfp4(), mxfp4(), MX, None], ids=["nvfp4", "mxfp4", "mxfp8", "values"])
def test_few_rows_times_long_columns(isa, rows, scheme):
    """Their bytes depend neither on threads nor on the columns beside them."""
    weight = copy_of(77, 6001, seed=1, scheme=mxfp4())
    a = torch.randn(rows, 6001, generator=torch.Generator().manual_seed(0))
    a = a if scheme is None else copy_of(rows, 6001, scheme=scheme)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(cpu.qgemm(a, cpu.pack(weight)))
    assert_within_bound(found[0], a, weight)
    assert same_bytes(found[1], found[0])
    assert same_bytes(found[2], found[0])
    part = replace(weight, codes=weight.codes[:11].clone(), scales=weight.scales[:11].clone(), shape=(11, 6001))
    assert same_bytes(cpu.qgemm(a, cpu.pack(part)), found[0][:, :11])


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
