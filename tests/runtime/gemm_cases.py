"""GEMM operands made of random bytes, and their values in float64, decoded by ml_dtypes."""

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st
from kernel_cases import mxfp4, nvfp4

from steelyard.formats.copies import QuantizedCopy, other_usage
from steelyard.formats.schemes import FP8_ELEMENTS, Scheme

ELEMENT_DTYPES = {
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
}
SCALE_DTYPES = {"f32": np.float32, "f8E8M0FNU": ml_dtypes.float8_e8m0fnu, "f8E4M3FN": ml_dtypes.float8_e4m3fn}
LAYOUTS = {"fprop": (False, False), "dgrad": (False, True), "wgrad": (True, True), "mixed": (True, False)}

_ROW = [Scheme(element, "row", "f32") for element in FP8_ELEMENTS]
_TENSOR = [Scheme(element, "tensor", "f32") for element in FP8_ELEMENTS]
_ROWS, _TILES = ([Scheme(element, block, "f32") for element in FP8_ELEMENTS] for block in ("1x128", "128x128"))
_MX = [(element, block) for element in FP8_ELEMENTS for block in ("vector", "32x32")]
_NVFP4 = [nvfp4(), nvfp4("16x16"), nvfp4(four_over_six="mae"), nvfp4("16x16", four_over_six="mse")]
_NVFP4_ROWS = [nvfp4(second_level="row"), nvfp4(second_level="row", four_over_six="mse")]
_FP4_WIDE = [mxfp4(), nvfp4("1x32")]
_NVFP4_GIVEN = [nvfp4(source="static"), nvfp4(source="divisor"), nvfp4("16x16", source="divisor")]
_RHT = [nvfp4(rht=True), nvfp4(rht=True, rounding="stochastic")]


def _mx(columnwise: bool):
    vector = "32x1" if columnwise else "1x32"
    return [Scheme(e, vector if block == "vector" else block, "f8E8M0FNU") for e, block in _MX]


def scheme_pairs(layout: str) -> list[tuple[Scheme, Scheme]]:
    """Every pair of schemes that a GEMM of this layout takes."""
    a_columnwise, b_columnwise = LAYOUTS[layout]
    activations = [*_TENSOR[:1], *_ROW[:1], *_ROWS[:1], *_mx(a_columnwise)[:1], nvfp4()]
    weights = [
        *_TENSOR[:1],
        *_ROW[:1],
        *_TILES[:1],
        *_mx(b_columnwise)[:2],
        *_FP4_WIDE,
        nvfp4(),
        nvfp4("16x16"),
        *_NVFP4_GIVEN,
    ]
    groups = [
        (_TENSOR, _TENSOR),
        (_ROW, _ROW),
        (_FP4_WIDE, _FP4_WIDE),
        (activations, weights),
        (_ROWS, _ROWS + _TILES),
        (_TILES, _ROWS),
        (_mx(a_columnwise), _mx(b_columnwise)),
        (_NVFP4 + _NVFP4_ROWS, _NVFP4 + _NVFP4_ROWS),
        (_NVFP4_GIVEN, _NVFP4_GIVEN),
        (_RHT, _RHT),
    ]
    return [(a, b) for left, right in groups for a in left for b in right]


def _codes(rng, scheme: Scheme, stored: tuple[int, int], special: bool) -> np.ndarray:
    if scheme.element == "f4E2M1FN":
        return rng.integers(0, 256, (stored[0], -(-stored[1] // 2)), dtype=np.uint8)
    limit = 0x7F if scheme.element == "f8E4M3FN" else 0x7C
    codes = rng.integers(0, limit, stored, dtype=np.uint8) | rng.integers(0, 2, stored, dtype=np.uint8) << 7
    if special and codes.size:
        codes.flat[rng.integers(codes.size)] = rng.choice(np.array([0x7F, 0xFF, 0x7C, 0xFC], np.uint8))
    return codes


def _block_scales(rng, scheme: Scheme, shape: tuple[int, int], special: bool) -> np.ndarray:
    spread = rng.choice([1, 20, 120])
    if scheme.family == "block":
        scales = np.exp2(rng.uniform(-spread, spread, shape)).astype(np.float32)
        values = [0.0, 1e-45, np.inf, np.nan, 3e38]
    elif scheme.scale == "f8E8M0FNU":
        scales = rng.integers(127 - spread, 128 + spread, shape, dtype=np.uint8)
        values = [0, 1, 254, 255]
    else:
        scales = rng.integers(0, 0x7F, shape, dtype=np.uint8)
        values = [0, 0x7F, 0x7E, 1]
    if special and scales.size:
        scales.flat[rng.integers(scales.size)] = rng.choice(values)
    return scales


def _scale_extent(scheme: Scheme, columnwise: bool) -> tuple[int, int]:
    """Rows and columns of the stored array that one compact scale covers."""
    if scheme.family == "block":
        return scheme.block_shape
    if scheme.family == "mx":
        return (32, 1) if columnwise else (1, 32)
    return 1, scheme.block_sizes[1]


def _level(rng, shape: tuple[int, ...], special: bool) -> np.ndarray:
    """Per-tensor scales, or amaxes of NVFP4."""
    level = np.exp2(rng.uniform(-30, 30, shape)).astype(np.float32)
    if special and level.size:
        level = np.array(level)
        level.flat[rng.integers(level.size)] = rng.choice([0.0, 1e-44, 3e38, np.inf, np.nan])
    return np.asarray(level, np.float32)


def random_copy(rng, scheme: Scheme, outer: int, k: int, columnwise: bool, special: bool = False) -> QuantizedCopy:
    """A copy of random bytes that reduces over `k`; `special` adds NaN, inf, zero and extreme codes and scales."""
    shape = (k, outer) if columnwise else (outer, k)
    copy = QuantizedCopy(None, None, None, scheme, shape, columnwise)
    stored = copy.stored_shape
    copy.codes = torch.from_numpy(_codes(rng, scheme, stored, special))
    if scheme.family == "tensor":
        copy.scales = torch.from_numpy(_level(rng, (), special))
        copy.amax = torch.tensor(1.0)
        return copy
    if scheme.family == "row":
        copy.scales = torch.from_numpy(_level(rng, (stored[0], 1), special))
        return copy
    extent = _scale_extent(scheme, columnwise)
    scales_shape = tuple(-(-size // side) for size, side in zip(stored, extent, strict=True))
    copy.scales = torch.from_numpy(_block_scales(rng, scheme, scales_shape, special))
    if scheme.family == "nvfp4":
        rows = (stored[0],) if scheme.second_level == "row" else ()
        copy.amax = torch.from_numpy(_level(rng, rows, special))
    return copy


def decoded(copy: QuantizedCopy | torch.Tensor) -> np.ndarray:
    """The exact values of a copy, reduction last, or of a matrix that is not quantized."""
    if isinstance(copy, torch.Tensor):
        return copy.double().numpy()
    if copy.borrowed:
        return decoded(other_usage(copy)).T
    scheme, (rows, columns) = copy.scheme, copy.stored_shape
    codes = copy.codes.numpy()
    if scheme.element == "f4E2M1FN":
        codes = np.stack((codes & 15, codes >> 4), axis=-1).reshape(rows, 2 * codes.shape[1])[:, :columns]
    values = codes.view(ELEMENT_DTYPES[scheme.element]).astype(np.float64)
    scales = copy.scales.numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        if scheme.family in ("tensor", "row"):
            values = values * scales.astype(np.float64)
        else:
            scales = scales.view(SCALE_DTYPES[scheme.scale]).astype(np.float64)
            down, along = _scale_extent(scheme, copy.columnwise)
            scales = np.repeat(np.repeat(scales, down, axis=0)[:rows], along, axis=1)[:, :columns]
            values = values * scales
        if scheme.source == "static" and scheme.family == "nvfp4":
            values = values * copy.amax.numpy().astype(np.float64)
        elif scheme.source == "divisor":
            values = values / copy.amax.numpy().astype(np.float64)
        elif scheme.family == "nvfp4":
            e4m3_max = 448 if scheme.four_over_six == "none" else 256
            amax = copy.amax.numpy().astype(np.float64)
            values = values * (amax[:, None] if amax.ndim else amax) / (6 * e4m3_max)
    return values.T if copy.columnwise and scheme.family == "mx" else values


def rounded(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(values.astype(np.float32)).to(dtype)


def assert_within_bound(found: torch.Tensor, a: QuantizedCopy, b: QuantizedCopy, addends=()) -> None:
    """|error| <= (K + 8) 2^-24 sum|a||b| before the one rounding to the dtype of `found`; NaN and inf alike."""
    left, right = decoded(a), decoded(b)
    with np.errstate(over="ignore", invalid="ignore"):
        exact, total = left @ right.T, np.abs(left) @ np.abs(right).T
        bound = np.where(np.isfinite(total), (left.shape[1] + 8) * 2.0**-24 * total, 0.0)
        for addend in addends:
            exact = exact + addend.double().numpy()
        low, high = (rounded(edge, found.dtype).double() for edge in (exact - bound, exact + bound))
    value = found.double()
    is_nan = torch.from_numpy(np.isnan(exact))
    assert found.shape == exact.shape
    assert torch.equal(value.isnan(), is_nan)
    assert bool((is_nan | ((low <= value) & (value <= high))).all())


@st.composite
def products(draw, max_side=70, max_k=400):
    """A pair of operands of any schemes and layout."""
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    schemes = draw(st.sampled_from(scheme_pairs(layout)))
    outers = draw(st.integers(0, max_side)), draw(st.integers(0, max_side))
    k = draw(st.one_of(st.integers(0, 40), st.integers(0, max_k)))
    special = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    return tuple(
        random_copy(rng, scheme, outer, k, columnwise, special)
        for scheme, outer, columnwise in zip(schemes, outers, LAYOUTS[layout], strict=True)
    )
