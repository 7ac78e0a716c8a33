"""What measuring counts, beside the same in float64 from the bytes of the copies, decoded by ml_dtypes."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme
from steelyard.formats.statistics import (
    COPY_FIELDS,
    INFLUENCE_FIELDS,
    PRODUCT_FIELDS,
    SCALE_BINS,
    finite_codes,
)
from steelyard.runtime import cpu
from steelyard.runtime.cpu import measuring

E4M3, E5M2, FP4 = "f8E4M3FN", "f8E5M2", "f4E2M1FN"
SCHEMES = {
    "tensor": (Scheme(E4M3, "tensor", "f32"), Scheme(E4M3, "tensor", "f32")),
    "tensor e5m2": (Scheme(E5M2, "tensor", "f32"), Scheme(E5M2, "tensor", "f32")),
    "row": (Scheme(E4M3, "row", "f32"), None),
    "1x128": (Scheme(E4M3, "1x128", "f32"), Scheme(E4M3, "1x128", "f32")),
    "128x128": (Scheme(E4M3, "128x128", "f32", power_of_two=True), Scheme(E4M3, "128x128", "f32", power_of_two=True)),
    "mxfp8": (Scheme(E4M3, "1x32", "f8E8M0FNU"), Scheme(E4M3, "32x1", "f8E8M0FNU")),
    "mxfp8 tiles": (Scheme(E4M3, "32x32", "f8E8M0FNU"), Scheme(E4M3, "32x32", "f8E8M0FNU")),
    "mxfp4": (Scheme(FP4, "1x32", "f8E8M0FNU"), Scheme(FP4, "1x32", "f8E8M0FNU")),
    "nvfp4": (
        Scheme(FP4, "1x16", "f8E4M3FN", second_level="tensor"),
        Scheme(FP4, "1x16", "f8E4M3FN", second_level="tensor", rht=True),
    ),
    "nvfp4 tiles": (
        Scheme(FP4, "16x16", "f8E4M3FN", second_level="tensor"),
        Scheme(FP4, "16x16", "f8E4M3FN", second_level="tensor"),
    ),
    "nvfp4 per row": (Scheme(FP4, "1x16", "f8E4M3FN", second_level="row"), None),
}
FORMATS = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2, FP4: ml_dtypes.float4_e2m1fn}
LARGEST = {E4M3: 448.0, E5M2: 57344.0, FP4: 6.0}
SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1])


def codes_of(copy: QuantizedCopy) -> np.ndarray:
    """The codes of the stored array, one per element."""
    rows, columns = copy.stored_shape
    codes = copy.codes.numpy()
    if copy.scheme.element != FP4:
        return codes
    return np.stack([codes & 15, codes >> 4], -1).reshape(rows, -1)[:, :columns]


def scales_of(copy: QuantizedCopy) -> np.ndarray:
    """What codes are multiplied by, as it is stored."""
    scheme, scales = copy.scheme, copy.scales.numpy()
    if scheme.scale == "f32":
        return scales.astype(np.float64)
    if scheme.scale == "f8E8M0FNU":
        return scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    amax = copy.amax.numpy().astype(np.float64)
    amax = amax[:, None] if scheme.second_level == "row" else amax
    return scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * amax / (6 * 448)


def spread(copy: QuantizedCopy) -> np.ndarray:
    """The scale of each element of the stored array."""
    scheme, scales, (rows, columns) = copy.scheme, scales_of(copy), copy.stored_shape
    down, across = {"tensor": (1, 1), "row": (1, 1), "1x128": (1, 128), "128x128": (128, 128)}.get(
        scheme.block, (1, 16)
    )
    if scheme.scale == "f8E8M0FNU":
        down, across = (32, 1) if copy.columnwise and scheme.element != FP4 else (1, 32)
    wide = np.repeat(np.repeat(np.atleast_2d(scales), down, 0), across, 1)
    return np.broadcast_to(wide, (rows, columns)) if scheme.block in ("tensor", "row") else wide[:rows, :columns]


def stored_values(x: np.ndarray, copy: QuantizedCopy) -> np.ndarray:
    """What was quantized, in the order of the stored array."""
    stored = x.T if copy.columnwise and not (copy.scheme.scale == "f8E8M0FNU" and copy.scheme.element != FP4) else x
    if not copy.scheme.rht:
        return stored
    padded = np.pad(stored, ((0, 0), (0, -stored.shape[1] % 16)))
    bits = np.array([[(-1) ** bin(i & j).count("1") for j in range(16)] for i in range(16)])
    rounded = padded.astype(ml_dtypes.bfloat16).astype(np.float64)
    turned = (rounded.reshape(-1, 16) * SIGNS) @ bits / 4
    return turned.reshape(padded.shape).astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def expected(x: torch.Tensor, copy: QuantizedCopy) -> dict[str, float]:
    """Every field of a copy, in float64."""
    values, scales = stored_values(x.double().numpy(), copy), spread(copy)
    codes = codes_of(copy)
    table = np.arange(256 if copy.scheme.element != FP4 else 16, dtype=np.uint8).view(FORMATS[copy.scheme.element])
    with np.errstate(invalid="ignore", over="ignore"):
        decoded = table.astype(np.float64)[codes] * scales
        both = np.isfinite(values) & np.isfinite(decoded)
        limit = LARGEST[copy.scheme.element] * scales
        own = scales_of(copy).ravel()
        own = own[np.isfinite(own) & (own != 0)]
        return {
            "elements": values.size,
            "square_sum": (values[both] ** 2).sum(),
            "error_square_sum": ((decoded - values)[both] ** 2).sum(),
            "saturated": ((np.abs(values) > limit * (1 + 2.0**-20)) & (limit > 0) | np.isinf(values)).sum(),
            "flushed": ((values != 0) & (decoded == 0)).sum(),
            "amax": np.abs(values).max(initial=0),
            "nan_count": np.isnan(values).sum(),
            "inf_count": np.isinf(values).sum(),
            "scale_count": own.size,
            "scale_log2_sum": np.log2(own).sum(),
        }


def check_copy(numbers: torch.Tensor, x: torch.Tensor, copy: QuantizedCopy) -> None:
    wanted = expected(x, copy)
    assert tuple(wanted) == COPY_FIELDS
    found = dict(zip(COPY_FIELDS, numbers.tolist(), strict=False))
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-30, nan_ok=True), name
    counts = np.bincount(codes_of(copy).ravel(), minlength=16 if copy.scheme.element == FP4 else 256)
    assert numbers[len(COPY_FIELDS) : -SCALE_BINS].tolist() == counts.tolist()
    scales = scales_of(copy).ravel()
    bins = [0 if s == 0 else SCALE_BINS - 1 if not math.isfinite(s) else math.floor(math.log2(s)) + 150 for s in scales]
    assert numbers[-SCALE_BINS:].tolist() == np.bincount(bins, minlength=SCALE_BINS).tolist()


def sample(shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    """Values of many magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return x * torch.exp(2 * torch.randn(shape, generator=generator))


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("usage", ["rowwise", "columnwise"])
@pytest.mark.parametrize("shape", [(48, 160), (37, 51)])
def test_each_scheme(name: str, usage: str, shape: tuple[int, int]):
    row, col = SCHEMES[name]
    scheme = row if usage == "rowwise" else col
    if scheme is None:
        pytest.skip("it has no such copy")
    x = sample(shape)
    copies = cpu.quantize(x, scheme if usage == "rowwise" else None, scheme if usage == "columnwise" else None)
    copy = copies[usage == "columnwise"]
    check_copy(measuring.measure_copy(copy, x), x, copy)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype):
    x = sample((32, 64)).to(dtype)
    copy, _ = cpu.quantize(x, SCHEMES["mxfp8"][0], None)
    check_copy(measuring.measure_copy(copy, x), x, copy)


def test_a_scale_that_is_too_small_saturates_and_one_that_is_too_large_flushes():
    scheme = Scheme(E4M3, "tensor", "f32", source="delayed")
    x = sample((64, 64))
    for scale in (100.0, 2.0**-14):
        copy, _ = cpu.quantize(x, scheme, None, scale=torch.tensor(scale))
        numbers = measuring.measure_copy(copy, x)
        check_copy(numbers, x, copy)
        found = dict(zip(COPY_FIELDS, numbers.tolist(), strict=False))
        assert (found["saturated"] > 100) == (scale == 100.0)
        assert (found["flushed"] > 100) == (scale != 100.0)


@pytest.mark.parametrize("name", ["tensor", "mxfp8", "nvfp4"])
def test_values_that_are_not_finite_are_counted_and_left_out_of_sums(name: str):
    x = sample((48, 64))
    x[0, 0], x[1, 40], x[2, 3] = math.nan, math.inf, -math.inf
    copy, _ = cpu.quantize(x, SCHEMES[name][0], None)
    numbers = measuring.measure_copy(copy, x)
    check_copy(numbers, x, copy)
    found = dict(zip(COPY_FIELDS, numbers.tolist(), strict=False))
    assert (found["nan_count"], found["inf_count"]) == (1, 2)
    assert math.isfinite(found["error_square_sum"])


@pytest.mark.parametrize("shape", [(0, 32), (8, 0)])
def test_an_empty_tensor_has_no_elements(shape: tuple[int, int]):
    x = torch.zeros(shape)
    copy, _ = cpu.quantize(x, SCHEMES["mxfp8"][0], None)
    numbers = measuring.measure_copy(copy, x)
    assert numbers[: len(COPY_FIELDS)].tolist() == [0.0] * len(COPY_FIELDS)
    assert numbers[len(COPY_FIELDS) : -SCALE_BINS].sum() == 0


def test_a_copy_whose_source_is_not_there_has_no_error():
    x = sample((16, 64))
    copy, _ = cpu.quantize(x, SCHEMES["mxfp8"][0], None)
    found = dict(zip(COPY_FIELDS, measuring.measure_copy(copy, None).tolist(), strict=False))
    assert math.isnan(found["error_square_sum"])
    assert found["square_sum"] == pytest.approx(float(cpu.dequantize(copy).double().square().sum()), rel=1e-6)


def test_finite_codes_are_those_of_ml_dtypes():
    for element, dtype in FORMATS.items():
        codes = np.arange(16 if element == FP4 else 256, dtype=np.uint8)
        finite = np.isfinite(codes.view(dtype).astype(np.float32))
        assert finite_codes(element) == codes[finite].tolist()


@pytest.mark.parametrize("has_bias", [False, True])
def test_products(has_bias: bool):
    product = sample((37, 51))
    bias = sample((1, 51), 1)[0] if has_bias else None
    computed = product + 0.01 * sample((37, 51), 2) + (0 if bias is None else bias)
    computed[0, :3] = 0 if bias is None else bias[:3]
    computed[1, 1], product[2, 2] = math.nan, math.inf
    numbers = measuring.measure_product(computed, product, bias)
    own, exact = computed.double() - (0 if bias is None else bias.double()), product.double()
    both = own.isfinite() & exact.isfinite()
    own, exact = own[both], exact[both]
    wanted = {
        "elements": product.numel(),
        "square_sum": float(exact.square().sum()),
        "error_square_sum": float((own - exact).square().sum()),
        "max_error": float((own - exact).abs().max()),
        "result_square_sum": float(own.square().sum()),
        "dot": float((own * exact).sum()),
        "underflows": float(((own == 0) & (exact != 0)).sum()),
        "not_finite": 2,
    }
    assert tuple(wanted) == PRODUCT_FIELDS
    assert wanted["underflows"] == 3
    assert numbers.tolist() == pytest.approx(list(wanted.values()), rel=1e-12)


def test_influences():
    computed, product, gradient = (sample((37, 51), seed) for seed in range(3))
    bias = sample((1, 51), 4)[0]
    numbers = measuring.measure_influence(computed, product, gradient, bias)
    error = computed.double() - bias.double() - product.double()
    squares = (error * gradient.double()).sum(1).square()
    assert len(INFLUENCE_FIELDS) == len(numbers)
    assert numbers.tolist() == pytest.approx([37, float(squares.sum())], rel=1e-12)


def test_the_number_of_threads_changes_nothing():
    x = sample((300, 300))
    copy, _ = cpu.quantize(x, SCHEMES["nvfp4"][0], None)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(measuring.measure_copy(copy, x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
