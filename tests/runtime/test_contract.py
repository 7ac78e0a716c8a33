"""What Python and the native module must agree on."""

import pytest
import torch
from kernel_cases import mxfp4, nvfp4, scheme_pairs

from steelyard.formats.activations import EPILOGUES
from steelyard.formats.dtypes import ITEM_SIZES
from steelyard.formats.parts import packed_size, part_shapes
from steelyard.formats.scheme_bits import scheme_bits
from steelyard.runtime import _cpu
from steelyard.runtime.cpu import arguments, gemm, producers

SHAPES = ((1, 1), (3, 47), (32, 16), (130, 257), (128, 512), (0, 16), (16, 0))
COPIES = [
    (scheme, columnwise) for pair in scheme_pairs() for scheme, columnwise in zip(pair, (False, True), strict=True)
]


def test_epilogues_are_the_activations_that_kernels_know():
    assert tuple(_cpu.activation_names()) == EPILOGUES


def test_every_producer_is_one_that_kernels_know():
    kinds = producers._KINDS.values()
    assert {kind.name for kind in kinds} == set(_cpu.producer_names())
    assert {kind.activation_name for kind in kinds} == set(_cpu.activation_names())


def test_dtypes_have_the_numbers_and_names_of_kernels():
    assert [str(dtype) for dtype in arguments.DTYPES] == [f"torch.{name}" for name in _cpu.dtype_names()]
    assert list(arguments.DTYPES.values()) == list(range(len(arguments.DTYPES)))


@pytest.mark.parametrize(("scheme", "columnwise"), COPIES, ids=str)
def test_kernels_read_from_the_bits_what_the_scheme_says(scheme, columnwise):
    assert _cpu.describe_scheme(scheme_bits(scheme)) == {
        "family": scheme.family,
        "element": scheme.element,
        "rule": scheme.rule,
        "four_over_six": scheme.four_over_six,
        "tiled": scheme.is_tiled,
        "power_of_two": scheme.power_of_two,
        "rht": scheme.rht,
        "stochastic": scheme.rounding == "stochastic",
        "row_scaled": scheme.second_level == "row",
        "wide": scheme.family == "nvfp4" and scheme.block == "1x32",
        "packed": False,
        "borrowed": False,
        "is_static": scheme.source in ("static", "divisor"),
        "is_divisor": scheme.source == "divisor",
    }


@pytest.mark.parametrize(("name", "bit"), [("packed", gemm.PACKED), ("borrowed", gemm.BORROWED)])
def test_bits_of_operands_are_those_that_kernels_read(name, bit):
    assert [field for field, value in _cpu.describe_scheme(bit).items() if value is True] == [name]


@pytest.mark.parametrize(("scheme", "columnwise"), COPIES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parts_have_the_sizes_that_kernels_expect(scheme, columnwise, shape):
    parts = part_shapes(scheme, shape, columnwise)
    rows, codes_row, scale_rows, scales_row, amaxes = _cpu.part_sizes(scheme_bits(scheme), columnwise, *shape)
    assert parts["codes"][0] == (rows, codes_row)
    dims, dtype = parts["scales"]
    scales = (*dims[:-1], dims[-1] * ITEM_SIZES[dtype]) if dims else (1, ITEM_SIZES[dtype])
    assert scales == (scale_rows, scales_row)
    assert ("amax" in parts) == (scheme.family in ("tensor", "nvfp4"))
    if "amax" in parts:
        assert torch.Size(parts["amax"][0]).numel() == amaxes
    else:
        assert amaxes == 0


@pytest.mark.parametrize("shape", [*SHAPES, (8, 16), (9, 17), (7, 15), (4096, 11008)], ids=str)
@pytest.mark.parametrize(
    "scheme", [nvfp4(), nvfp4(second_level="row"), nvfp4("1x32"), nvfp4(source="divisor"), mxfp4()], ids=str
)
def test_packed_weights_have_the_size_that_kernels_expect(shape, scheme):
    assert packed_size(scheme, *shape) == _cpu.packed_size(scheme_bits(scheme), *shape)
