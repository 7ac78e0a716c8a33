"""What torch 2.13 asks of `scaled_mm` on CUDA, written down from its sources and apart from our table of paths.

Which formats go together is asked of torch's own library: its CPU build has the functions by which the CUDA build
chooses a product. Left out of those of two matrices is that of MXFP4, which only some builds have. The rest is compiled
for CUDA only, and is data here: which GPUs and which cuBLASLt a product needs, how scales lie, which biases it takes.
The meta device checks only a part of it.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch.nn.functional import ScalingType, SwizzleType

from steelyard.targets.architectures import TARGETS

E4M3, E5M2, FP4 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2
E8M0, F32 = torch.float8_e8m0fnu, torch.float32
TENSOR, ROW = ScalingType.TensorWise, ScalingType.RowWise
ROW_128, TILE_128 = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
MX, VECTOR_16 = ScalingType.BlockWise1x32, ScalingType.BlockWise1x16

_NUMBERS = {E5M2: 23, E4M3: 24, FP4: 45}
"""torch's own numbers of these dtypes."""


@dataclass(frozen=True)
class Product:
    """A product that torch's CUDA build has, by the name of the function that accepts its operands."""

    name: str
    scalings: tuple[ScalingType, ...]
    """Of one operand; those of the other are the same, or `other_scalings`."""
    scale_dtypes: tuple[torch.dtype, ...]
    capabilities: tuple[int, ...]
    """Majors of the compute capabilities that have it."""
    cublaslt: tuple[int, int]
    other_scalings: tuple[ScalingType, ...] = ()

    @property
    def sides(self) -> tuple[tuple[ScalingType, ...], tuple[ScalingType, ...]]:
        return self.scalings, self.other_scalings or self.scalings


PRODUCTS = (
    Product("tensorwise", (TENSOR,), (F32,), (8, 9, 10, 12), (11, 8)),
    Product("rowwise", (ROW,), (F32,), (8, 9, 10, 12), (11, 8)),
    Product("deepseek", (ROW_128,), (F32,), (9,), (12, 9)),
    Product("deepseek", (ROW_128,), (F32,), (9,), (12, 9), (TILE_128,)),
    Product("deepseek", (TILE_128,), (F32,), (9,), (12, 9), (ROW_128,)),
    Product("mxfp8", (MX,), (E8M0,), (10, 12), (12, 8)),
    Product("nvfp4", (VECTOR_16, TENSOR), (E4M3, F32), (10, 12), (12, 8)),
    Product("nvfp4_single_scale", (VECTOR_16,), (E4M3,), (10, 12), (12, 8)),
)


@dataclass(frozen=True)
class Side:
    """An operand as torch sees it before it looks at sizes."""

    element: torch.dtype
    scalings: tuple[ScalingType, ...]
    scale_dtypes: tuple[torch.dtype, ...]


@cache
def product_of(a: Side, b: Side) -> Product | None:
    """The product that multiplies two operands; None if torch's CUDA build refuses them."""
    if a.element == b.element == E5M2:
        return None
    return next((product for product in PRODUCTS if _accepts(product, a, b)), None)


GROUPED_PRODUCTS = (
    Product("rowwise", (ROW,), (F32,), (9,), (11, 8)),
    Product("mxfp8", (MX,), (E8M0,), (10,), (12, 8)),
    Product("mxfp4", (MX,), (E8M0,), (10,), (12, 8)),
    Product("nvfp4", (VECTOR_16, TENSOR), (E4M3, F32), (10,), (12, 8)),
)
"""Those of groups. All but the first are kernels of MSLK, which are compiled for sm_100a."""


@cache
def grouped_product_of(a: Side, b: Side) -> Product | None:
    """The product that multiplies groups; its kernels take no E5M2, whatever the function says."""
    if E5M2 in (a.element, b.element):
        return None
    return next((product for product in GROUPED_PRODUCTS if _accepts(product, a, b)), None)


def _accepts(product: Product, a: Side, b: Side) -> bool:
    """What torch's own function for this product says."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    function = getattr(library, _symbol(product.name))
    function.restype = ctypes.c_bool
    # It takes the scalings of either side before the operands if it serves several.
    expected = [side[0].value for side in product.sides] if product.name == "deepseek" else []
    kept = [_Arguments(side) for side in (a, b)]
    arguments = [argument for side in kept for argument in side.arguments]
    return function(*expected, *arguments)


def _symbol(name: str) -> str:
    """The name of a function in the library, as C++ compilers spell it."""
    function = "check_nvfp4_recipe_single_scale" if name == "nvfp4_single_scale" else f"check_{name}_recipe"
    operands = "N3c1010ScalarTypeERSt6vectorINS_4blas11ScalingTypeESaIS6_EERNS2_8ArrayRefINS_6TensorEEES3_S9_SD_"
    if name == "deepseek":
        operands = (
            "NS_4blas11ScalingTypeES3_N3c1010ScalarTypeERSt6vectorIS3_SaIS3_EERNS4_8ArrayRefINS_6TensorEEES5_S9_SD_"
        )
    return f"_ZN2at6native6scaled{len(function)}{function}E{operands}"


class _Arguments:
    """An operand in memory as C++ has it: a dtype, a vector of scalings, and a view of an array of tensors."""

    def __init__(self, side: Side):
        self._scales = [torch.empty(1, dtype=dtype) for dtype in side.scale_dtypes]
        count = len(side.scalings)
        self._scalings = (ctypes.c_uint8 * count)(*(scaling.value for scaling in side.scalings))
        begin = ctypes.addressof(self._scalings)
        self._vector = (ctypes.c_void_p * 3)(begin, begin + count, begin + count)
        self._tensors = (ctypes.c_void_p * len(self._scales))(*(scale._cdata for scale in self._scales))
        self._view = (ctypes.c_size_t * 2)(ctypes.addressof(self._tensors), len(self._scales))
        number = ctypes.c_int8(_NUMBERS[side.element])
        self.arguments = number, ctypes.byref(self._vector), ctypes.byref(self._view)


def check_call(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: Sequence[torch.Tensor],
    scaling_a: Sequence[ScalingType],
    scale_b: Sequence[torch.Tensor],
    scaling_b: Sequence[ScalingType],
    *,
    swizzle_a: Sequence[SwizzleType] | None,
    swizzle_b: Sequence[SwizzleType] | None,
    bias: torch.Tensor | None,
    output_dtype: torch.dtype,
) -> Product:
    """Check a call of `scaled_mm` as torch's CUDA build does; the product that it runs."""
    sides = [
        Side(element.dtype, tuple(scaling), tuple(scale.dtype for scale in scales))
        for element, scaling, scales in ((a, scaling_a, scale_a), (b, scaling_b, scale_b))
    ]
    product = product_of(*sides)
    assert product is not None, f"torch has no product of {sides}"
    (rows, packed), columns = a.shape, b.shape[1]
    reduction = packed * (2 if a.dtype == FP4 else 1)
    assert b.shape[0] == packed
    assert a.stride() == (packed, 1), "A must be row-major"
    assert b.stride() == (1, packed), "B must be column-major"
    assert reduction % 16 == 0
    assert columns % 16 == 0
    for lines, scales, scaling, swizzle in (
        (rows, scale_a, scaling_a, swizzle_a),
        (columns, scale_b, scaling_b, swizzle_b),
    ):
        _check_scales(product, lines, reduction, scales, scaling, swizzle)
    if product.name == "rowwise":
        # On most GPUs a kernel of CUTLASS runs, which takes E4M3 for B and is known to write bf16.
        assert (b.dtype, output_dtype) == (E4M3, torch.bfloat16)
    if bias is not None:
        check_bias(bias.dtype, output_dtype)
        assert bias.numel() == columns
    return product


GROUPED_BF16 = (9, 10)
"""Majors of the compute capabilities whose kernels multiply groups of bf16 at once."""


def check_groups(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Size:
    """Check a call of `grouped_mm` as torch's CUDA build does; the shape of its result."""
    assert (a.dtype, b.dtype, offs.dtype) == (torch.bfloat16, torch.bfloat16, torch.int32)
    # Kernels read by TMA: groups of the reduction begin at multiples of 16 bytes only if it is the outer dim.
    if b.dim() == 2:
        assert a.stride(0) == 1
        assert b.stride(1) == 1
    on_meta = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in (a, b, offs)]
    return torch._grouped_mm(on_meta[0], on_meta[1], on_meta[2]).shape


def check_scaled_groups(
    a: torch.Tensor, b: torch.Tensor, scale_a, scaling_a, scale_b, scaling_b, swizzles, offs, output_dtype, target: str
) -> tuple[Product, torch.Size]:
    """Check a call of `scaled_grouped_mm` as torch's CUDA build does; the product, and the shape of its result."""
    sides = [
        Side(codes.dtype, tuple(scaling), tuple(scale.dtype for scale in scales))
        for codes, scaling, scales in ((a, scaling_a, scale_a), (b, scaling_b, scale_b))
    ]
    product = grouped_product_of(*sides)
    assert product is not None, f"torch has no product of groups of {sides}"
    # Kernels of groups are compiled for one architecture of their major.
    assert TARGETS[target].capability == (product.capabilities[0], 0)
    (rows, packed), (count, depth, columns) = a.shape, b.shape
    assert depth == packed
    assert a.stride() == (packed, 1), "A must be row-major"
    assert b.stride()[1:] == (1, packed), "B must be column-major"
    assert packed % 16 == 0
    assert columns % 16 == 0
    assert output_dtype == torch.bfloat16
    assert count < 1024
    assert (offs.dtype, tuple(offs.shape)) == (torch.int32, (count,))
    if product.name == "rowwise":
        assert tuple(scale_a[0].shape) == (rows,)
        assert tuple(scale_b[0].shape) == (count, columns)
    else:
        _check_block_scales(product, a, b, scale_a, scale_b, swizzles)
    return product, torch.Size((rows, columns))


def _check_block_scales(product: Product, a: torch.Tensor, b: torch.Tensor, scale_a, scale_b, swizzles) -> None:
    """Each group is in tiles of 128x4 of its own; how many rows it has, torch does not read."""
    (rows, packed), (count, _, columns) = a.shape, b.shape
    reduction = packed * (2 if a.dtype == FP4 else 1)
    width = 16 if product.name == "nvfp4" else 32
    assert reduction % width == 0
    blocks = -(-(reduction // width) // 4) * 4
    assert scale_a[0].dim() == 2
    assert scale_a[0].shape[0] >= rows
    assert scale_a[0].shape[1] == blocks
    assert tuple(scale_b[0].shape) == (count, -(-columns // 128) * 128 * blocks)
    assert all(scales[0].is_contiguous() for scales in (scale_a, scale_b))
    assert all(swizzle[0] == SwizzleType.SWIZZLE_32_4_4 for swizzle in swizzles)
    if product.name == "nvfp4":
        assert [tuple(scales[1].shape) for scales in (scale_a, scale_b)] == [(count,), (count,)]


def check_bias(bias: torch.dtype, result: torch.dtype) -> None:
    """Which biases a product adds."""
    assert result in (torch.bfloat16, torch.float16), "no bias is added to a result in float32"
    assert bias == result


def _check_scales(product: Product, lines: int, reduction: int, scales, scaling, swizzle) -> None:
    """Sizes and strides of an operand's scales; `lines` are those that run along the reduction."""
    first = scales[0]
    blocks = -(-reduction // 128)
    if product.name == "tensorwise":
        assert first.numel() == 1
    elif product.name == "rowwise":
        assert first.dim() == 2
        assert first.numel() == lines
        assert first.stride(1) == 1
    elif product.name == "deepseek" and scaling[0] == ROW_128:
        assert first.shape == (lines, blocks)
        assert first.stride(0) == 1
        assert first.stride(1) == lines or blocks == 1
    elif product.name == "deepseek":
        padded = -(-blocks // 4) * 4
        assert first.shape == (padded, -(-lines // 128))
        assert first.stride(0) == 1
        assert first.stride(1) == padded or first.shape[1] == 1
    else:
        width = 32 if product.name == "mxfp8" else 16
        groups = -(-reduction // width)
        assert first.numel() == -(-lines // 128) * 128 * (-(-groups // 4) * 4)
        assert first.is_contiguous()
        assert swizzle is not None
        assert len(swizzle) == len(scaling)
        assert swizzle[0] == SwizzleType.SWIZZLE_32_4_4
    if product.name == "nvfp4":
        assert scales[1].numel() == 1
