from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from gemm_cases import LAYOUTS, assert_within_bound, decoded, products, random_copy, rounded, scheme_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, matrices, nvfp4, same_bytes, with_layout

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu

E4M3, E5M2 = (Scheme(element, "tensor", "f32") for element in ("f8E4M3FN", "f8E5M2"))
MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
MX_E5M2 = Scheme("f8E5M2", "1x32", "f8E8M0FNU")
BLOCK, TILE = (Scheme("f8E4M3FN", block, "f32") for block in ("1x128", "128x128"))


def copy_of(scheme, outer, k, columnwise=False, seed=0):
    return random_copy(np.random.default_rng(seed), scheme, outer, k, columnwise)


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=250, deadline=None)
@given(operands=products(), dtype=st.sampled_from(DTYPES), threads=st.sampled_from((1, 2, 5)))
def test_product_is_within_the_bound(name, operands, dtype, threads):
    torch.set_num_threads(threads)
    cpu.set_isa(name)
    assert_within_bound(cpu.qgemm(*operands, out_dtype=dtype), *operands)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_pair_of_schemes(isa, layout):
    rng = np.random.default_rng(3)
    for schemes in scheme_pairs(layout):
        a, b = (
            random_copy(rng, scheme, outer, 150, columnwise)
            for scheme, outer, columnwise in zip(schemes, (50, 35), LAYOUTS[layout], strict=True)
        )
        assert_within_bound(cpu.qgemm(a, b), a, b)


@settings(max_examples=60, deadline=None)
@given(
    operands=products(max_k=60),
    dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 3),
    layout=st.sampled_from(("rows", "columns", "padded", "stepped", "expanded_rows")),
    which=st.sampled_from(("bias", "accumulate", "both")),
    seed=st.integers(0, 999),
)
def test_addends_are_added_before_the_rounding(operands, dtypes, layout, which, seed):
    shape = decoded(operands[0]).shape[0], decoded(operands[1]).shape[0]
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp2(torch.randint(-20, 20, (), generator=generator).float())
    given_addends = {
        "bias": (torch.randn(shape[1], generator=generator) * scale).to(dtypes[0]),
        "accumulate": with_layout((torch.randn(shape, generator=generator) * scale).to(dtypes[1]), layout),
    }
    chosen = given_addends if which == "both" else {which: given_addends[which]}
    found = cpu.qgemm(*operands, out_dtype=dtypes[2], **chosen)
    assert_within_bound(found, *operands, addends=chosen.values())


@pytest.mark.parametrize("scheme", [E4M3, E5M2], ids=["e4m3", "e5m2"])
def test_every_code_in_every_lane(isa, scheme):
    dtype = {"f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2}[scheme.element]
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(dtype).float()
    copy = replace(copy_of(scheme, 256, 1), scales=torch.tensor(1.0))
    one = replace(copy, codes=torch.ones(7, 1).to(dtype).view(torch.uint8), shape=(7, 1))
    for shift in range(32):
        rolled = replace(copy, codes=codes.roll(shift).reshape(256, 1))
        expected = values.roll(shift).expand(7, 256)
        torch.testing.assert_close(cpu.qgemm(one, rolled), expected, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(cpu.qgemm(rolled, one), expected.T, rtol=0, atol=0, equal_nan=True)


def test_every_fp4_code_with_every_scale_byte(isa):
    """An amax of 6 * 448 on both sides leaves a factor of 1, so every value is exact."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(256, 1)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    scale_bytes = torch.arange(256, dtype=torch.uint8).reshape(256, 1)
    copy = replace(copy_of(nvfp4(), 256, 16), codes=packed, scales=scale_bytes, amax=torch.tensor(2688.0))
    identity = np.eye(16, dtype=np.uint8) * 2
    unit = replace(
        copy,
        codes=torch.from_numpy(identity[:, 0::2] | identity[:, 1::2] << 4),
        scales=torch.full((16, 1), 0x38, dtype=torch.uint8),
        shape=(16, 16),
    )
    values = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    scales = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    expected = torch.from_numpy(scales[:, None] * values)
    torch.testing.assert_close(cpu.qgemm(copy, unit), expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(cpu.qgemm(unit, copy), expected.T, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("columnwise", [False, True])
def test_every_mx_scale_byte_against_every_other(isa, columnwise):
    """2^(i - 127) 2^(j - 127): the whole range of products, from zero through subnormals to infinity."""
    scheme = Scheme("f8E4M3FN", "32x1" if columnwise else "1x32", "f8E8M0FNU")
    copy = copy_of(scheme, 256, 1, columnwise)
    copy.codes.fill_(0x38)
    copy.scales.copy_(torch.arange(256, dtype=torch.uint8).reshape(copy.scales.shape))
    powers = np.exp2(np.arange(256.0) - 127)
    powers[255] = np.nan
    expected = rounded(powers[:, None] * powers, torch.float32)
    torch.testing.assert_close(cpu.qgemm(copy, copy), expected, rtol=0, atol=0, equal_nan=True)


def test_scales_beyond_the_range_of_float32_panels(isa):
    """Products of huge and tiny blocks are ordinary numbers, even next to blocks of zeros with extreme scales."""
    a, b = copy_of(MX_E5M2, 40, 96), copy_of(MX_E5M2, 40, 96, seed=1)
    a.scales.copy_(torch.tensor([254, 5, 127], dtype=torch.uint8))
    b.scales.copy_(torch.tensor([0, 250, 127], dtype=torch.uint8))
    assert_within_bound(cpu.qgemm(a, b), a, b)
    for copy in (a, b):
        copy.codes[:, 32:64] = 0x80
    assert_within_bound(cpu.qgemm(a, b), a, b)
    c, d = copy_of(BLOCK, 40, 256), copy_of(BLOCK, 40, 256, seed=1)
    c.scales.copy_(torch.tensor([3e38, 1e-40]))
    d.scales.copy_(torch.tensor([1e-40, 3e38]))
    assert_within_bound(cpu.qgemm(c, d), c, d)
    c.codes[:, :128] = 0
    d.codes[:, :128] = 0
    assert_within_bound(cpu.qgemm(c, d), c, d)


def test_values_of_one_operand_that_span_the_range_of_float32(isa):
    """In the unit of the largest scale, the smallest values are subnormal."""
    a, b = copy_of(MX_E5M2, 40, 64), copy_of(MX_E5M2, 40, 64, seed=1)
    a.scales.copy_(torch.tensor([254, 107], dtype=torch.uint8))
    b.scales.fill_(127)
    a.codes[:20, :32] = 0
    a.codes[:, 32:] = 1
    assert_within_bound(cpu.qgemm(a, b), a, b)


def test_tiny_products_add_up(isa):
    """1024 products of 2^-152 are 2^-142; each alone rounds to zero in float32."""
    a, b = copy_of(MX, 3, 1024), copy_of(MX, 5, 1024)
    for copy in (a, b):
        copy.codes.fill_(0x38)
        copy.scales.fill_(127 - 76)
    assert torch.equal(cpu.qgemm(a, b), torch.full((3, 5), 2.0**-142))


@pytest.mark.parametrize("schemes", [(E4M3, E5M2), (MX, MX), (BLOCK, TILE), (nvfp4(), nvfp4("16x16"))], ids=str)
@pytest.mark.parametrize("shape", [(200, 300, 700), (1, 500, 600), (700, 20, 300)])
def test_bytes_do_not_depend_on_threads(isa, schemes, shape):
    a, b = copy_of(schemes[0], shape[0], shape[2]), copy_of(schemes[1], shape[1], shape[2], seed=1)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(cpu.qgemm(a, b))
    assert_within_bound(found[0], a, b)
    assert same_bytes(found[1], found[0])
    assert same_bytes(found[2], found[0])


@pytest.mark.parametrize("shape", [(2100, 2050, 40), (2100, 40, 600), (30, 40, 70000)])
def test_products_larger_than_the_workspace(shape):
    a, b = copy_of(E4M3, shape[0], shape[2]), copy_of(E4M3, shape[1], shape[2], seed=1)
    for dtype in (torch.float32, torch.bfloat16):
        assert_within_bound(cpu.qgemm(a, b, out_dtype=dtype), a, b)


@pytest.mark.parametrize(
    ("x_scheme", "w_scheme", "columnwise", "tolerance"),
    [
        (E4M3, E5M2, False, 0.08),
        (BLOCK, TILE, False, 0.05),
        (MX, MX, False, 0.05),
        (nvfp4(), nvfp4("16x16"), False, 0.2),
        (nvfp4(second_level="row"), nvfp4(), False, 0.2),
        (nvfp4(four_over_six="mse"), nvfp4("16x16", four_over_six="mae"), False, 0.2),
        (nvfp4(rht=True), nvfp4(rht=True), True, 0.2),
    ],
    ids=str,
)
def test_quantized_operands_give_nearly_the_product(x_scheme, w_scheme, columnwise, tolerance):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(60, 333, generator=generator) * 3, torch.randn(70, 333, generator=generator) / 7
    sides = [(matrix.T if columnwise else matrix) for matrix in (x, w)]
    a, b = (
        cpu.quantize(side, *((None, scheme) if columnwise else (scheme, None)))[columnwise]
        for side, scheme in zip(sides, (x_scheme, w_scheme), strict=True)
    )
    exact = x.double() @ w.double().T
    assert (cpu.qgemm(a, b).double() - exact).norm() < tolerance * exact.norm()
    assert_within_bound(cpu.qgemm(a, b), a, b)


def test_denormals_survive_a_caller_that_flushes_them():
    a, b = copy_of(MX, 3, 32), copy_of(MX, 5, 32)
    for copy in (a, b):
        copy.codes.fill_(0x38)
        copy.scales.fill_(127 - 70)
    torch.set_flush_denormal(True)
    try:
        found = cpu.qgemm(a, b)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(found, torch.full((3, 5), 32 * 2.0**-140))


def test_out_is_written_and_returned():
    a, b = copy_of(E4M3, 20, 64), copy_of(E4M3, 30, 64, seed=1)
    storage = torch.full((20, 50), 7.0)
    out = storage[:, 10:40]
    version = out._version
    assert cpu.qgemm(a, b, out=out) is out
    assert out._version > version
    assert torch.equal(out, cpu.qgemm(a, b))
    assert bool((storage[:, :10] == 7).all())
    assert bool((storage[:, 40:] == 7).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_accumulate_in_place(dtype):
    a, b = copy_of(MX, 100, 64), copy_of(MX, 130, 64, seed=1)
    total = torch.randn(100, 130).to(dtype)
    before = total.clone()
    cpu.qgemm(a, b, accumulate=total, out=total, out_dtype=dtype)
    assert_within_bound(total, a, b, addends=[before])


@pytest.mark.parametrize(
    ("a", "b", "constraint"),
    [
        (replace(copy_of(E4M3, 4, 8), scheme=replace(E4M3, custom="mine")), copy_of(MX, 4, 8), "gemm_families"),
        (torch.zeros(4, 8, dtype=torch.float64), copy_of(MX, 4, 8), "gemm_values"),
        (torch.zeros(8), copy_of(MX, 4, 8), "gemm_values"),
        (torch.zeros(4, 16), copy_of(nvfp4(rht=True), 4, 16), "gemm_values"),
        (torch.zeros(4, 9), copy_of(MX, 4, 8), "gemm_reduction"),
        (torch.zeros(4, 8, device="meta"), copy_of(MX, 4, 8), "cpu_tensor"),
        (copy_of(TILE, 4, 8), copy_of(TILE, 4, 8), "gemm_tiles"),
        (copy_of(nvfp4(), 4, 16), copy_of(nvfp4(rht=True), 4, 16), "gemm_rht"),
        (copy_of(E4M3, 4, 8), copy_of(E4M3, 4, 9), "gemm_reduction"),
        (copy_of(E4M3, 4, 8), copy_of(E4M3, 4, 9, columnwise=True), "gemm_reduction"),
        (copy_of(MX, 4, 8), copy_of(replace(MX, layout="gemm"), 4, 8), "gemm_layout"),
        (copy_of(E4M3, 4, 8), replace(copy_of(E4M3, 4, 8), codes=torch.zeros(4, 7, dtype=torch.uint8)), "copy_parts"),
        (copy_of(MX, 4, 8), replace(copy_of(MX, 4, 8), scales=torch.zeros(3, 1, dtype=torch.uint8)), "copy_parts"),
        (copy_of(BLOCK, 4, 8), replace(copy_of(BLOCK, 4, 8), scales=torch.zeros(4, 1).double()), "copy_parts"),
        (copy_of(nvfp4(), 4, 8), replace(copy_of(nvfp4(), 4, 8), amax=None), "cpu_tensor"),
        (copy_of(E4M3, 4, 8), replace(copy_of(E4M3, 4, 8), codes=torch.zeros(4, 8, device="meta")), "cpu_tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses_operands(a, b, constraint):
    with pytest.raises(ConstraintError) as caught:
        cpu.qgemm(a, b)
    assert caught.value.constraint == constraint


def test_refuses_what_the_reference_refuses():
    for constraint, a, b in [
        ("gemm_rht", copy_of(nvfp4(), 4, 16), copy_of(nvfp4(rht=True), 4, 16)),
        ("gemm_values", torch.zeros(4, 8, dtype=torch.int32), copy_of(BLOCK, 4, 8)),
        ("gemm_reduction", copy_of(E4M3, 4, 8), copy_of(E4M3, 4, 7)),
    ]:
        for qgemm in (cpu.qgemm, reference.qgemm):
            with pytest.raises(ConstraintError) as caught:
                qgemm(a, b)
            assert caught.value.constraint == constraint


@pytest.mark.parametrize(
    ("options", "constraint"),
    [
        ({"bias": torch.zeros(4)}, "gemm_addend"),
        ({"bias": torch.zeros(6, dtype=torch.float64)}, "gemm_addend"),
        ({"accumulate": torch.zeros(6, 4)}, "gemm_addend"),
        ({"accumulate": torch.zeros(4, 6, device="meta")}, "cpu_tensor"),
        ({"out_dtype": torch.float64}, "gemm_out"),
        ({"out": torch.zeros(4, 5)}, "gemm_out"),
        ({"out": torch.zeros(4, 6, dtype=torch.bfloat16)}, "gemm_out"),
        ({"out": torch.zeros(6, 4).T}, "gemm_out"),
        ({"out": torch.zeros(1, 6).expand(4, 6)}, "gemm_out"),
        ({"out": torch.zeros(4, 6, device="meta")}, "cpu_tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_refuses_options(options, constraint):
    with pytest.raises(ConstraintError) as caught:
        cpu.qgemm(copy_of(E4M3, 4, 8), copy_of(E4M3, 6, 8), **options)
    assert caught.value.constraint == constraint


def test_refuses_out_that_overlaps_and_leaves_it_alone():
    a, b = copy_of(E4M3, 4, 8), copy_of(E4M3, 6, 8)
    memory = torch.arange(40.0)
    before = memory.clone()
    out = memory[:24].view(4, 6)
    overlaps = {
        "accumulate": memory[6:30].view(4, 6),
        "bias": memory[12:18],
    }
    for name, tensor in overlaps.items():
        with pytest.raises(ConstraintError, match=name) as caught:
            cpu.qgemm(a, b, out=out, **{name: tensor})
        assert caught.value.constraint == "copy_overlap"
    codes = memory.view(torch.uint8)[:32].view(4, 8)
    with pytest.raises(ConstraintError, match=r"a\.codes"):
        cpu.qgemm(replace(a, codes=codes), b, out=out)
    assert torch.equal(memory, before)


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=120, deadline=None)
@given(
    values=matrices(max_side=70),
    scheme=st.sampled_from(sorted({b for _, b in scheme_pairs("fprop") if not b.rht}, key=str)),
    columns=st.integers(0, 70),
    special=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_matrix_that_is_not_quantized_times_every_weight(name, values, scheme, columns, special, seed):
    cpu.set_isa(name)
    weight = random_copy(np.random.default_rng(seed), scheme, columns, values.shape[1], False, special)
    assert_within_bound(cpu.qgemm(values, weight), values, weight)


@pytest.mark.parametrize("rows", [1, 3, 16, 40])
def test_values_that_differ_by_more_than_float32_holds(isa, rows):
    """Tiny activations beside large ones count where the weights of the large ones are zero."""
    weight = copy_of(MX, 20, 64)
    values = torch.full((rows, 64), 2.0**-140)
    values[:, 0] = 2.0**100
    weight.codes[:, 0] = 0
    assert_within_bound(cpu.qgemm(values, weight), values, weight)
