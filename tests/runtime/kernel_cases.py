"""The inputs of kernel tests: every scheme, and matrices of every dtype, stride and special value."""

import torch
from hypothesis import strategies as st

from steelyard.formats.schemes import FP8_ELEMENTS, Scheme

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SPECIAL_VALUES = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-45, -1e-40, 3.4028234e38, 6e-8, 448.0, -6.0)
PART_NAMES = ("codes", "scales", "amax")


def nvfp4(block="1x16", second_level="tensor", **options) -> Scheme:
    return Scheme("f4E2M1FN", block, "f8E4M3FN", second_level=second_level, **options)


def _fp8_pairs(element):
    tensor = [{}, {"power_of_two": True, "epsilon": 0.5}, {"source": "delayed"}]
    for options in tensor:
        yield (Scheme(element, "tensor", "f32", **options),) * 2
    for options in ({}, {"power_of_two": True, "epsilon": 0.5}):
        yield (Scheme(element, "row", "f32", **options),) * 2
    for block in ("1x128", "128x128"):
        yield (Scheme(element, block, "f32", power_of_two=True),) * 2
        yield (Scheme(element, block, "f32", epsilon=1e-3),) * 2
    for rule in ("rceil", "floor", "ceil", "even"):
        yield tuple(Scheme(element, block, "f8E8M0FNU", rule=rule) for block in ("1x32", "32x1"))
        yield (Scheme(element, "32x32", "f8E8M0FNU", rule=rule),) * 2


def mxfp4(**options) -> Scheme:
    return Scheme("f4E2M1FN", "1x32", "f8E8M0FNU", **options)


def _mxfp4_pairs():
    for rule in ("rceil", "floor", "ceil", "even"):
        yield (mxfp4(rule=rule),) * 2


def _nvfp4_pairs():
    stochastic = {"rounding": "stochastic"}
    yield (nvfp4(),) * 2
    yield (nvfp4("16x16"),) * 2
    yield (nvfp4("1x32"),) * 2
    yield nvfp4(), nvfp4(rht=True)
    yield (nvfp4(rht=True),) * 2
    yield nvfp4(**stochastic), nvfp4(rht=True, **stochastic)
    yield nvfp4(rht=True, **stochastic), nvfp4(**stochastic)
    yield (nvfp4("16x16", **stochastic),) * 2
    yield (nvfp4(second_level="row"),) * 2
    yield (nvfp4(source="static"),) * 2
    for block in ("1x16", "1x32", "16x16"):
        yield (nvfp4(block, source="divisor"),) * 2
    for error in ("mae", "mse"):
        yield (nvfp4(four_over_six=error),) * 2
        yield (nvfp4("16x16", four_over_six=error),) * 2
        yield (nvfp4(second_level="row", four_over_six=error),) * 2


def scheme_pairs() -> list[tuple[Scheme, Scheme]]:
    """A (rowwise, columnwise) pair for every family, block and option, and pairs of unlike schemes."""
    same_kind = [pair for element in FP8_ELEMENTS for pair in _fp8_pairs(element)]
    same_kind += [*_mxfp4_pairs(), *_nvfp4_pairs()]
    e4m3, e5m2 = (Scheme(element, "tensor", "f32") for element in FP8_ELEMENTS)
    mx_column = Scheme("f8E5M2", "32x1", "f8E8M0FNU")
    tile = Scheme("f8E4M3FN", "128x128", "f32")
    unlike = [
        (e4m3, e5m2),
        (e4m3, nvfp4(rht=True)),
        (nvfp4(), mx_column),
        (tile, nvfp4("16x16")),
        (Scheme("f8E4M3FN", "row", "f32"), mxfp4()),
        (nvfp4("1x32"), Scheme("f8E5M2", "row", "f32")),
        (nvfp4("16x16"), tile),
    ]
    return same_kind + unlike


def pair_name(pair) -> str:
    return "+".join(f"{s.element[2:6]}-{s.block}{''.join(f'-{k}:{v}' for k, v in s.options().items())}" for s in pair)


def operands(*schemes: Scheme) -> dict:
    """What schemes need besides the source."""
    given = any(scheme.source != "current" for scheme in schemes)
    return {"scale": torch.tensor(0.37) if given else None, "rng": (0x123456789ABCDEF, 3)}


@st.composite
def matrices(draw, max_side=150):
    """A matrix with a wide range of magnitudes and special values, in any dtype and any layout that torch has."""
    rows, columns = draw(st.integers(0, max_side)), draw(st.integers(0, max_side))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread = draw(st.sampled_from((0.0, 2.0, 15.0)))
    values = torch.randn(rows, columns, generator=generator)
    values *= torch.exp2(torch.randn(rows, columns, generator=generator) * spread)
    if values.numel():
        for value in draw(st.lists(st.sampled_from(SPECIAL_VALUES), max_size=4)):
            values.view(-1)[draw(st.integers(0, values.numel() - 1))] = value
    return with_layout(values.to(draw(st.sampled_from(DTYPES))), draw(st.sampled_from(LAYOUTS)))


LAYOUTS = ("rows", "columns", "padded", "stepped", "expanded_rows", "expanded_columns")


def with_layout(values: torch.Tensor, layout: str) -> torch.Tensor:
    """A matrix like `values` with other strides; expanded ones repeat their first row or column."""
    rows, columns = values.shape
    if layout == "columns":
        return values.t().contiguous().t()
    if layout == "padded":
        return torch.cat((values, values), dim=1)[:, :columns]
    if layout == "stepped":
        return values.repeat_interleave(3, dim=1)[:, ::3]
    if layout == "expanded_rows" and rows:
        return values[:1].expand(rows, columns)
    if layout == "expanded_columns" and columns:
        return values[:, :1].expand(rows, columns)
    return values


def same_bytes(found: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    if found is None or expected is None:
        return found is expected
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    as_bytes = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (found, expected))
    return found.numel() == 0 or torch.equal(*as_bytes)


def assert_same_copy(found, expected) -> None:
    for name in PART_NAMES:
        assert same_bytes(getattr(found, name), getattr(expected, name)), f"{name} of {expected.scheme}"
    assert (found.scheme, found.shape, found.columnwise) == (expected.scheme, expected.shape, expected.columnwise)


def same_values(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal; all NaNs count as equal."""
    marker = 12345.0
    both = (torch.nan_to_num(t.float(), nan=marker, posinf=torch.inf, neginf=-torch.inf) for t in (found, expected))
    return found.dtype == expected.dtype and torch.equal(*both)
