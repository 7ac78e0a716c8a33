import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.recipes import Float8BlockScaling, Float8CurrentScaling, MXFP8BlockScaling, NVFP4BlockScaling
from steelyard.reference.random import philox4x32

F32 = np.float32
FLT_MAX = np.finfo(F32).max
ORACLE = {"f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2, "f4E2M1FN": ml_dtypes.float4_e2m1fn}
FP4_ROW = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor")
shapes = st.tuples(st.integers(1, 40), st.integers(1, 150))
seeds = st.integers(0, 2**31)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def make(shape, seed, dtype=torch.float32):
    """Normal values whose rows and columns differ by powers of two, some of them zero."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, (shape[0], 1)) * 2.0 ** rng.integers(-3, 4, shape[1])
    x[rng.random(shape) < 0.05] = 0
    return torch.tensor(x).to(dtype)


def cast(value, element):
    """One float32 value to a code, by ml_dtypes, clamped first."""
    largest = {"f8E4M3FN": 448, "f8E5M2": 57344, "f4E2M1FN": 6}[element]
    return int(np.array(np.clip(value, F32(-largest), F32(largest))).astype(ORACLE[element]).view(np.uint8))


def naive_blocks(stored, scheme):
    """Each block's slices and amax, by plain loops."""
    rows, columns = scheme.block_shape
    for i in range(0, stored.shape[0], rows):
        for j in range(0, stored.shape[1], columns):
            where = slice(i, i + rows), slice(j, j + columns)
            yield where, F32(np.abs(stored[where]).max())


def codes_of(copy):
    codes = copy.codes.numpy()
    if copy.scheme.element != "f4E2M1FN":
        return codes
    unpacked = np.zeros((codes.shape[0], 2 * codes.shape[1]), np.uint8)
    unpacked[:, 0::2], unpacked[:, 1::2] = codes % 16, codes // 16
    return unpacked[:, : copy.stored_shape[1]]


def quantize_one(x, scheme, columnwise=False, **options):
    pair = (None, scheme) if columnwise else (scheme, None)
    return reference.quantize(x, *pair, **options)[columnwise]


@pytest.mark.parametrize("element", ["f8E4M3FN", "f8E5M2"])
@given(shape=shapes, seed=seeds, dtype=dtypes)
@settings(max_examples=10, deadline=None)
def test_per_tensor(element, shape, seed, dtype):
    x = make(shape, seed, dtype)
    row, col = reference.quantize(x, *(Scheme(element, "tensor", "f32"),) * 2)
    values = x.float().numpy()
    amax = np.abs(values).max()
    scale = F32(row.scheme.element_max) / amax if amax else F32(1)
    expected = np.clip(values * scale, -row.scheme.element_max, row.scheme.element_max).astype(ORACLE[element])
    np.testing.assert_array_equal(row.codes.numpy(), expected.view(np.uint8))
    np.testing.assert_array_equal(col.codes.numpy(), row.codes.numpy().T)
    assert row.scales.item() == col.scales.item() == F32(1) / scale
    assert row.amax.item() == col.amax.item() == amax


def test_delayed_uses_the_given_scale_and_records_the_amax():
    scheme = Scheme("f8E4M3FN", "tensor", "f32", source="delayed")
    row, _ = reference.quantize(torch.tensor([[1.0, -3.0, 500.0]]), scheme, None, scale=torch.tensor(0.5))
    assert row.codes.tolist() == [[0x30, 0xBC, 0x78]]
    assert (row.scales.item(), row.amax.item()) == (2.0, 500.0)


def test_current_takes_a_reduced_amax():
    scheme = Float8CurrentScaling().schemes("input")[0]
    row, _ = reference.quantize(torch.tensor([1.0, 2.0]), scheme, None, amax=torch.tensor(448.0))
    assert row.codes.tolist() == [[0x38, 0x40]]
    assert (row.scales.item(), row.amax.item(), row.shape) == (1.0, 448.0, (1, 2))


def test_per_tensor_power_of_two_and_epsilon():
    plain = Scheme("f8E4M3FN", "tensor", "f32", power_of_two=True, epsilon=7.0)
    assert quantize_one(torch.tensor([1.0]), plain).scales.item() == 1 / 64
    assert quantize_one(torch.tensor([15.0]), plain).scales.item() == 1 / 16
    assert quantize_one(torch.tensor([1.0]), plain).amax.item() == 1


@pytest.mark.parametrize("power_of_two", [False, True])
@given(shape=shapes, seed=seeds, dtype=dtypes, columnwise=st.booleans())
@settings(max_examples=6, deadline=None)
def test_rows(power_of_two, shape, seed, dtype, columnwise):
    x = make(shape, seed, dtype)
    copy = quantize_one(x, Scheme("f8E4M3FN", "row", "f32", power_of_two=power_of_two), columnwise)
    stored = x.float().numpy().T if columnwise else x.float().numpy()
    assert (copy.scales.shape, copy.amax) == ((stored.shape[0], 1), None)
    for values, codes, scale_inv in zip(stored, copy.codes.numpy(), copy.scales.numpy(), strict=True):
        amax = np.abs(values).max()
        scale = F32(448) / amax if amax else F32(1)
        scale = F32(2.0 ** math.floor(math.log2(scale))) if power_of_two else scale
        assert scale_inv == F32(1) / scale
        expected = np.clip(values * scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize("block", ["1x128", "128x128"])
@pytest.mark.parametrize("power_of_two", [False, True])
@given(shape=st.tuples(st.integers(1, 140), st.integers(1, 270)), seed=seeds, columnwise=st.booleans())
@settings(max_examples=6, deadline=None)
def test_blocks_of_128(block, power_of_two, shape, seed, columnwise):
    x = make(shape, seed)
    scheme = Scheme("f8E4M3FN", block, "f32", power_of_two=power_of_two)
    copy = quantize_one(x, scheme, columnwise)
    stored = x.numpy().T if columnwise else x.numpy()
    rows, columns = scheme.block_shape
    assert copy.scales.shape == (-(-stored.shape[0] // rows), -(-stored.shape[1] // columns))
    for where, amax in naive_blocks(stored, scheme):
        scale = F32(448) / amax if amax else F32(1)
        if power_of_two:
            scale = F32(2.0 ** math.floor(math.log2(scale)))
        assert copy.scales[where[0].start // rows, where[1].start // columns] == F32(1) / scale
        expected = np.clip(stored[where] * scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        np.testing.assert_array_equal(copy.codes.numpy()[where], expected)


def test_block_scale_is_limited_by_the_input_dtype():
    scheme = Scheme("f8E4M3FN", "1x128", "f32")
    tiny = torch.tensor([[1e-40]])
    assert quantize_one(tiny, scheme).scales.item() == F32(1) / FLT_MAX
    limit = F32(torch.finfo(torch.bfloat16).max)
    assert quantize_one(tiny.bfloat16(), scheme).scales.item() == F32(1) / limit


@pytest.mark.parametrize("element", ["f8E4M3FN", "f8E5M2"])
@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("tiled", [False, True])
@given(shape=st.tuples(st.integers(1, 70), st.integers(1, 70)), seed=seeds)
@settings(max_examples=6, deadline=None)
def test_mx(element, columnwise, tiled, shape, seed):
    x = make(shape, seed)
    block = "32x32" if tiled else "32x1" if columnwise else "1x32"
    copy = quantize_one(x, Scheme(element, block, "f8E8M0FNU"), columnwise)
    rows, columns = shape
    assert copy.scales.shape == ((-(-rows // 32), columns) if columnwise else (rows, -(-columns // 32)))
    for where, amax in naive_blocks(x.numpy(), copy.scheme):
        exponent = math.ceil(math.log2(float(amax) / copy.scheme.element_max)) if amax else -127
        scales = copy.scales.numpy()
        own = scales[where[0].start // 32, where[1]] if columnwise else scales[where[0], where[1].start // 32]
        assert (own == 127 + exponent).all()
        expected = (x.numpy()[where] * F32(2.0**-exponent)).astype(ORACLE[element]).view(np.uint8)
        np.testing.assert_array_equal(copy.codes.numpy()[where], expected)


def mxfp4_exponent(amax: float, rule: str) -> int:
    """The scale's exponent in float64: the mantissa of an E2M1 value has one bit, and its largest exponent is 2."""
    mantissa, exponent = math.frexp(amax)
    mantissa, exponent = 2 * mantissa, exponent - 1
    if rule == "rceil":
        return exponent - 2 + (mantissa > 1.5)
    return exponent - 2 + {"floor": 0, "ceil": mantissa > 1, "even": mantissa >= 1.75}[rule]


@pytest.mark.parametrize("rule", ["rceil", "floor", "ceil", "even"])
@given(shape=st.tuples(st.integers(1, 20), st.integers(1, 70)), seed=seeds, columnwise=st.booleans(), dtype=dtypes)
@settings(max_examples=6, deadline=None)
def test_mxfp4(rule, shape, seed, columnwise, dtype):
    x = make(shape, seed, dtype)
    copy = quantize_one(x, Scheme("f4E2M1FN", "1x32", "f8E8M0FNU", rule=rule), columnwise)
    stored = x.float().numpy().T if columnwise else x.float().numpy()
    assert (copy.scales.shape, copy.amax) == ((stored.shape[0], -(-stored.shape[1] // 32)), None)
    codes = codes_of(copy)
    for where, amax in naive_blocks(stored, copy.scheme):
        exponent = mxfp4_exponent(float(amax), rule) if amax else -127
        assert (copy.scales.numpy()[where[0], where[1].start // 32] == 127 + exponent).all()
        expected = [[cast(value * F32(2.0**-exponent), "f4E2M1FN") for value in row] for row in stored[where]]
        np.testing.assert_array_equal(codes[where], expected)


def test_mxfp4_ties_go_to_even_codes_and_zeros_keep_their_signs():
    x = torch.zeros(2, 32)
    x[0, :8] = torch.tensor([6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    x[1, :2] = torch.tensor([0.0, -0.0])
    row = quantize_one(x, Scheme("f4E2M1FN", "1x32", "f8E8M0FNU"))
    assert row.scales.tolist() == [[127], [0]]
    # ModelOpt, which rounds ties down, has 0x07, 0x21, 0x43 and 0x65, and 0x88 for each pair of zeros.
    assert row.codes[0].tolist() == [0x07, 0x22, 0x44, 0x66] + 12 * [0]
    assert row.codes[1].tolist() == [0x80] + 15 * [0]


@pytest.mark.parametrize("block", ["1x16", "16x16", "1x32"])
@given(shape=st.tuples(st.integers(1, 40), st.integers(1, 40)), seed=seeds, columnwise=st.booleans(), dtype=dtypes)
@settings(max_examples=8, deadline=None)
def test_nvfp4(block, shape, seed, columnwise, dtype):
    x = make(shape, seed, dtype)
    scheme = Scheme("f4E2M1FN", block, "f8E4M3FN", second_level="tensor")
    copy = quantize_one(x, scheme, columnwise)
    stored = x.float().numpy().T if columnwise else x.float().numpy()
    amax = np.abs(stored).max()
    assert copy.amax.item() == amax
    encode_scale = F32(2688) / amax if amax else F32(1)
    decode_scale = F32(1) / encode_scale
    codes = codes_of(copy)
    size = scheme.block_sizes[1]
    assert copy.scales.shape == (stored.shape[0], -(-stored.shape[1] // size))
    for where, block_amax in naive_blocks(stored, scheme):
        byte = cast(block_amax * (encode_scale * F32(1 / 6)), "f8E4M3FN")
        assert (copy.scales.numpy()[where[0], where[1].start // size] == byte).all()
        decoded = np.array(byte, np.uint8).view(ml_dtypes.float8_e4m3fn).astype(F32)
        factor = min(F32(1) / (decoded * decode_scale), FLT_MAX) if byte else FLT_MAX
        expected = [[cast(value * factor, "f4E2M1FN") for value in row] for row in stored[where]]
        np.testing.assert_array_equal(codes[where], expected)


def test_nvfp4_ties_go_to_even_codes():
    x = torch.zeros(2, 16)
    x[0, 0] = 2688.0  # the tensor scale is 1, and the second row's block scale too
    x[1, :10] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -5.0, 6.0])
    row = quantize_one(x, FP4_ROW)
    assert row.scales.tolist() == [[0x7E], [0x38]]
    assert row.codes[1].tolist() == [0x20, 0x42, 0x64, 0x86, 0x7E, 0, 0, 0]


def test_nvfp4_tiny_blocks_have_byte_zero_and_decode_to_zero():
    x = torch.zeros(2, 16)
    x[0, 0], x[1, 0], x[1, 1] = 2688.0, 1e-9, -1e-9
    row = quantize_one(x, FP4_ROW)
    assert row.scales.tolist() == [[0x7E], [0]]
    assert row.codes[1, 0] == 0xF7
    assert (reference.dequantize(row)[1] == 0).all()


def test_row_scaled_rows_are_quantized_alone():
    x = make((7, 37), 3)
    scheme = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="row")
    whole = quantize_one(x, scheme)
    for i in range(7):
        alone = quantize_one(x[i], FP4_ROW)
        assert whole.amax[i] == alone.amax
        assert torch.equal(whole.codes[i], alone.codes[0])
        assert torch.equal(whole.scales[i], alone.scales[0])
        assert torch.equal(reference.dequantize(whole)[i], reference.dequantize(alone)[0])


@pytest.mark.parametrize("rows", [32, 21])
def test_rht_copies_are_quantized_after_the_transform(rows):
    x = make((rows, 9), 4, torch.bfloat16)
    copy = quantize_one(x, Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor", rht=True), True)
    hadamard = np.ones((1, 1))
    for _ in range(4):
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    signs = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]
    padded = np.zeros((9, 32))
    padded[:, :rows] = x.double().numpy().T
    exact = (padded.reshape(9, 2, 16) @ (np.diag(signs) @ hadamard / 4)).reshape(9, 32)
    transformed = torch.tensor(exact.astype(F32)).bfloat16()
    expected = quantize_one(transformed, FP4_ROW)
    assert copy.codes.shape == (9, 16)
    assert torch.equal(copy.codes, expected.codes)
    assert torch.equal(copy.scales, expected.scales)
    assert copy.amax == expected.amax == reference.amax(x, rht=True)


def test_stochastic_copies_draw_on_their_own_and_average_to_the_value():
    scheme = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor", rounding="stochastic")
    x = make((32, 32), 5)
    decoded = []
    for offset in range(64):
        row, col = reference.quantize(x, scheme, scheme, rng=(7, offset))
        decoded.append((reference.dequantize(row).double(), reference.dequantize(col).double()))
    again = quantize_one(x, scheme, rng=(7, 63))
    assert torch.equal(again.codes, row.codes)
    nearest = reference.dequantize(quantize_one(x, FP4_ROW)).double()
    nearest_error = (nearest - x).abs().mean()
    for usage in zip(*decoded, strict=True):
        assert (torch.stack(usage).mean(0) - x).abs().mean() < nearest_error / 2
    assert not torch.equal(decoded[0][0], decoded[1][0])
    assert not torch.equal(decoded[0][0], decoded[0][1])


@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("block", ["1x16", "16x16"])
def test_stochastic_bytes_follow_the_logical_index(block, columnwise):
    # Each block holds 2688, so that its scale is 448 and 112 lies midway between the codes 0 and 1.
    x = torch.full((21, 19), 112.0)
    x[::16, :] = x[:, ::16] = 2688.0
    scheme = Scheme("f4E2M1FN", block, "f8E4M3FN", second_level="tensor", rounding="stochastic")
    codes = codes_of(quantize_one(x, scheme, columnwise, rng=(5, 9)))
    logical = codes.T if columnwise else codes
    groups = np.stack(philox4x32((np.arange(25), int(columnwise), 9, 0), (5, 0)), axis=-1)
    draws = groups.astype("<u4").view(np.uint8).ravel()[: 21 * 19].reshape(21, 19)
    np.testing.assert_array_equal(logical, np.where(x.numpy() == 2688, 7, draws >= 128))


@given(shape=st.lists(st.integers(0, 33), min_size=1, max_size=3), seed=seeds, dtype=dtypes)
@settings(max_examples=8, deadline=None)
def test_strides_and_rank_do_not_change_bytes(pair, shape, seed, dtype):
    x = make((math.prod(shape[:-1]), shape[-1]), seed, dtype)
    spread = torch.zeros(*(2 * size for size in shape), dtype=dtype)[tuple(slice(None, None, 2) for _ in shape)]
    spread.copy_(x.reshape(shape))
    options = {"scale": torch.tensor(3.0)} if pair[0].source == "delayed" else {"rng": (1, 2)}
    for plain, strided in zip(
        reference.quantize(x, *pair, **options), reference.quantize(spread, *pair, **options), strict=True
    ):
        assert plain.shape == strided.shape == tuple(x.shape)
        assert torch.equal(plain.codes, strided.codes)
        assert torch.equal(plain.scales, strided.scales)
        assert torch.equal(reference.dequantize(plain), reference.dequantize(strided))


ERROR = {"f8E4M3FN": 0.04, "f8E5M2": 0.07, "f4E2M1FN": 0.17}


@pytest.mark.parametrize("shape", [(64, 96), (33, 50), (1, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dequantize_is_near_the_source(pair, shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    options = {"scale": torch.tensor(64.0)} if pair[0].source == "delayed" else {"rng": (1, 2)}
    for copy in reference.quantize(x, *pair, **options):
        decoded = reference.dequantize(copy, torch.bfloat16)
        assert decoded.dtype == torch.bfloat16
        # Rules that round the scale down saturate the top of the binade: 512 becomes 448.
        bound = ERROR[copy.scheme.element]
        bound = bound if copy.scheme.rule in ("rceil", "ceil") else max(bound, 1 / 8)
        assert (decoded.double() - x.double()).norm() < bound * x.double().norm()


@pytest.mark.parametrize("shape", [(40, 70), (17, 19)])
def test_dequantize_equals_float64_of_codes_and_scales(pair, shape):
    x = make(shape, 6)
    options = {"scale": torch.tensor(3.0)} if pair[0].source == "delayed" else {"rng": (1, 2)}
    for copy in reference.quantize(x, *pair, **options):
        if copy.scheme.rht:
            continue
        values = codes_of(copy).view(ORACLE[copy.scheme.element]).astype(np.float64)
        scales = copy.scales.numpy()
        if copy.scheme.scale == "f8E8M0FNU":
            scales = scales.view(ml_dtypes.float8_e8m0fnu)
        if copy.scheme.scale == "f8E4M3FN":
            scales = scales.view(ml_dtypes.float8_e4m3fn)
        scales = np.broadcast_to(scales.astype(np.float64), scales.shape or (1, 1))
        down, across = (-(-size // count) for size, count in zip(values.shape, scales.shape, strict=True))
        block = copy.scheme.block_shape or values.shape
        down, across = (1 if down == 1 else block[0]), (1 if across == 1 else block[1])
        spread = np.kron(scales, np.ones((down, across)))[: values.shape[0], : values.shape[1]]
        expected = values * spread
        if copy.scheme.family == "nvfp4":
            largest = 6 * (448 if copy.scheme.four_over_six == "none" else 256)
            expected = expected * copy.amax.double().numpy().reshape(-1, 1) / largest
        expected = expected.T if copy.columnwise and copy.scheme.family != "mx" else expected
        np.testing.assert_allclose(reference.dequantize(copy).numpy(), expected, rtol=4 * 2.0**-24, atol=1e-38)


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 3.4e38, -3.4e38, 1.0, -1e30]


@given(
    values=st.lists(st.sampled_from(SPECIAL) | st.floats(width=32), min_size=1, max_size=80),
    columns=st.integers(1, 40),
)
@settings(max_examples=15, deadline=None)
def test_nan_shows_and_signs_survive(pair, values, columns):
    x = torch.tensor([values], dtype=torch.float32)
    x = torch.nn.functional.pad(x, (0, -len(values) % columns)).reshape(-1, columns)
    options = {"scale": torch.tensor(1.0)} if pair[0].source == "delayed" else {"rng": (1, 2)}
    for copy in reference.quantize(x, *pair, **options):
        decoded = reference.dequantize(copy)
        assert decoded[x.isnan()].isnan().all()
        if copy.scheme.family in ("tensor", "block"):
            assert torch.equal(decoded.isnan(), x.isnan())
            assert torch.equal(decoded.signbit()[~x.isnan()], x.signbit()[~x.isnan()])
        if copy.scheme.family == "mx" and copy.scheme.rule == "rceil" and (x.abs() < 1e38).all():
            assert (decoded.double() - x).abs().max() <= x.double().abs().max() * 2.0**-3 + 2.0**-136


def test_mx_specials_by_hand():
    x = torch.zeros(4, 32)
    x[0, 3], x[1, 5], x[3, :2] = math.nan, math.inf, torch.tensor([448.0, -1.0])
    copy = quantize_one(x, MXFP8BlockScaling().schemes("input")[0])
    assert copy.scales.tolist() == [[255], [254], [0], [127]]
    assert (copy.codes[0] == 0x7F).all()
    assert copy.codes[1, 5] == 0x7E
    assert (copy.codes[2] == 0).all()
    assert copy.codes[3, :2].tolist() == [0x7E, 0xB8]


def test_nvfp4_nan_block_by_hand():
    x = torch.ones(1, 32)
    x[0, 20] = math.nan
    copy = quantize_one(x, FP4_ROW)
    assert copy.amax.isnan()
    assert copy.scales.tolist() == [[0x23, 0x7F]]  # 1/6 = 0.1667 is nearest to 11/64 = 0.171875
    assert copy.codes[0, 8:].tolist() == [0x77] * 8


def test_amax_propagates_nan_and_takes_rows():
    x = torch.tensor([[1.0, -3.0], [math.nan, 2.0], [0.0, -0.0]])
    assert reference.amax(x).isnan()
    rows = reference.amax(x, per_row=True)
    assert rows[[0, 2]].tolist() == [3.0, 0.0]
    assert rows[1].isnan()
    assert reference.amax(torch.zeros(0, 4)).item() == 0
    assert reference.amax(torch.zeros(3, 0, 4), per_row=True).shape == (0,)


@pytest.mark.parametrize(
    ("x", "row", "col", "options", "says"),
    [
        (torch.ones(2, dtype=torch.int32), FP4_ROW, None, {}, "float32, bfloat16 or float16"),
        (torch.tensor(1.0), FP4_ROW, None, {}, "at least one dim"),
        (torch.ones(2), Scheme("f8E4M3FN", "tensor", "f32", source="delayed"), None, {}, "pass scale="),
        (torch.ones(2), NVFP4BlockScaling().schemes("grad_output")[0], None, {}, "pass rng="),
        (torch.ones(2), MXFP8BlockScaling().schemes("input")[1], None, {}, "must have 1x32"),
        (torch.ones(2), None, MXFP8BlockScaling().schemes("input")[0], {}, "must have 32x1"),
        (torch.ones(2), *NVFP4BlockScaling().schemes("input"), {"amax": torch.tensor(1.0)}, "give a pair"),
        (torch.ones(2), FP4_ROW, None, {"amax": torch.ones(2)}, "amax must have shape"),
        (
            torch.ones(2),
            Float8BlockScaling().schemes("input")[0],
            Scheme("i8", "x", "f32", custom="mine"),
            {},
            "built-in",
        ),
    ],
)
def test_refusals(x, row, col, options, says):
    with pytest.raises(ConstraintError, match=says):
        reference.quantize(x, row, col, **options)
