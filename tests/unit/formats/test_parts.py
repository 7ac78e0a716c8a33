"""The part shapes in the IR are the shapes that the reference produces, in every GPU layout."""

from dataclasses import replace

import pytest
import torch

from steelyard import recipes, reference
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import part_shapes
from steelyard.formats.schemes import Scheme

SCHEMES = {
    f"{name} {usage}": (recipes.get(name).schemes(role)[columnwise], bool(columnwise))
    for name in recipes.NAMES
    for role in ("input", "weight")
    for columnwise, usage in enumerate((f"{role} rows", f"{role} columns"))
}
SHAPES = [(1, 1), (7, 33), (33, 130), (64, 256), (130, 17)]


def copy_of(scheme: Scheme, columnwise: bool, shape: tuple[int, int]) -> QuantizedCopy:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    schemes = (None, scheme) if columnwise else (scheme, None)
    scale = torch.tensor(2.0) if scheme.source == "delayed" else None
    copy = reference.quantize(x, *schemes, scale=scale)[columnwise]
    assert copy is not None
    return copy


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("scheme", "columnwise"), SCHEMES.values(), ids=SCHEMES.keys())
def test_swizzled_scales_have_the_stated_shape(scheme, columnwise, shape):
    copy = copy_of(scheme, columnwise, shape)
    compact = part_shapes(scheme, shape, columnwise)
    assert compact["codes"][0] == tuple(copy.codes.shape)
    assert compact["scales"][0] == tuple(copy.scales.shape)
    if not scheme.has_blocks:
        return
    swizzled = part_shapes(replace(scheme, layout="gemm"), shape, columnwise)
    assert swizzled["scales"][0] == tuple(reference.swizzle(copy).shape)
    turned = scheme.family == "mx" and columnwise
    assert swizzled["codes"][0] == (tuple(copy.codes.shape[::-1]) if turned else tuple(copy.codes.shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("scheme", "columnwise"), SCHEMES.values(), ids=SCHEMES.keys())
def test_zeros_pad_codes_and_scales(scheme, columnwise, shape):
    """A copy whose parts are padded with zeros decodes to the same values, followed by zeros."""
    if scheme.rht:
        pytest.skip("the transform mixes rows")
    copy = copy_of(scheme, columnwise, shape)
    padded = tuple(-(-size // 128) * 128 for size in shape)
    shapes = part_shapes(scheme, padded, columnwise)
    codes, scales = (filled(part, shapes[name][0]) for name, part in (("codes", copy.codes), ("scales", copy.scales)))
    found = reference.dequantize(replace(copy, codes=codes, scales=scales, shape=padded))
    assert torch.equal(found, filled(reference.dequantize(copy), padded))


def filled(part: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if not shape:
        return part
    whole = torch.zeros(shape, dtype=part.dtype)
    whole[tuple(slice(0, size) for size in part.shape)] = part
    return whole
