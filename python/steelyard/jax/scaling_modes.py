"""How a tensor is scaled: each mode has its schemes, and from them its dtypes, shapes and layouts."""

import enum
import math

import jax.numpy as jnp

from steelyard.errors import RecipeError, shown
from steelyard.formats.parts import gemm_scales_are_transposed, gemm_scales_shape, scales_shape, stored_shape
from steelyard.formats.schemes import Scheme
from steelyard.jax.arguments import as_dtype, check_flag, check_shape
from steelyard.jax.formats import DTYPES, scales_dtype

_ELEMENTS = {jnp.dtype(dtype): name for name, dtype in DTYPES.items() if name in ("f8E4M3FN", "f8E5M2", "f4E2M1FN")}


class ScalingMode(enum.Enum):
    """What shares a scale, and where scales come from."""

    NO_SCALING = "no_scaling"
    DELAYED_TENSOR_SCALING = "delayed_tensor_scaling"
    CURRENT_TENSOR_SCALING = "current_tensor_scaling"
    BLOCK_1X128_SCALING = "block_1x128_scaling"
    BLOCK_128X128_SCALING = "block_128x128_scaling"
    MXFP8_1D_SCALING = "mxfp8_1d_scaling"
    MXFP8_2D_SCALING = "mxfp8_2d_scaling"
    NVFP4_1D_SCALING = "nvfp4_1d_scaling"
    NVFP4_2D_SCALING = "nvfp4_2d_scaling"

    @classmethod
    def of_scheme(cls, scheme: Scheme) -> "ScalingMode":
        """The mode that a scheme belongs to."""
        if scheme.source == "delayed":
            return cls.DELAYED_TENSOR_SCALING
        return _MODES[scheme.block]

    @property
    def is_tensor_scaling(self) -> bool:
        """One scale for the whole tensor."""
        return self in (ScalingMode.DELAYED_TENSOR_SCALING, ScalingMode.CURRENT_TENSOR_SCALING)

    @property
    def is_nvfp4(self) -> bool:
        return self in (ScalingMode.NVFP4_1D_SCALING, ScalingMode.NVFP4_2D_SCALING)

    @property
    def is_mxfp8(self) -> bool:
        return self in (ScalingMode.MXFP8_1D_SCALING, ScalingMode.MXFP8_2D_SCALING)

    @property
    def compatible_dtypes(self) -> tuple:
        """The dtypes that data may have."""
        if self is ScalingMode.NO_SCALING:
            return (jnp.float32, jnp.bfloat16, jnp.float16)
        return (jnp.float4_e2m1fn,) if self.is_nvfp4 else (jnp.float8_e4m3fn, jnp.float8_e5m2)

    def scheme(self, q_dtype=None, *, is_colwise: bool = False, **options) -> Scheme:
        """The scheme of a copy; `options` are those of `steelyard.formats.schemes.Scheme`."""
        if self is ScalingMode.NO_SCALING:
            raise RecipeError("scaling_mode must be one that scales, got NO_SCALING; use the array itself")
        check_flag(is_colwise, "is_colwise")
        dtype = as_dtype(self.compatible_dtypes[0] if q_dtype is None else q_dtype, "q_dtype")
        self.check_dtype(dtype, "q_dtype")
        element, block = _ELEMENTS[dtype], _BLOCKS[self]
        if self is ScalingMode.MXFP8_1D_SCALING and is_colwise:
            block = "32x1"
        if self.is_nvfp4:
            options.setdefault("second_level", "tensor")
        source = "delayed" if self is ScalingMode.DELAYED_TENSOR_SCALING else "current"
        scale = "f8E4M3FN" if self.is_nvfp4 else "f8E8M0FNU" if self.is_mxfp8 else "f32"
        return Scheme(element, block, scale, source=source, **options)

    def check_dtype(self, dtype, argument: str) -> None:
        """Refuse data of a dtype that this mode does not have."""
        if as_dtype(dtype, argument) not in map(jnp.dtype, self.compatible_dtypes):
            names = ", ".join(jnp.dtype(each).name for each in self.compatible_dtypes)
            raise RecipeError(f"{argument} must be one of {names} for {self.name}, got {jnp.dtype(dtype).name}")

    def get_scale_dtype(self):
        """The dtype of scales."""
        return jnp.float32 if self is ScalingMode.NO_SCALING else scales_dtype(self.scheme())

    def get_data_layout(self) -> str:
        """Layouts of the rowwise and the columnwise data: N as the tensor, T transposed."""
        return "NN" if self is ScalingMode.NO_SCALING or self.is_mxfp8 else "NT"

    def get_scale_shape(self, data_shape, *, is_colwise=False, is_padded=False, flatten_axis: int = -1):
        """The shape of the scales of a tensor; padded: a matrix of the size that GPU GEMMs read."""
        check_shape(data_shape, "data_shape")
        check_flag(is_padded, "is_padded")
        if self is ScalingMode.NO_SCALING:
            return (0,)
        return scale_shape(
            self.scheme(is_colwise=is_colwise), data_shape, is_colwise, is_padded=is_padded, flatten_axis=flatten_axis
        )

    def get_scale_shape_2x(self, data_shape, *, is_padded=False, flatten_axis: int = -1):
        """Shapes of the rowwise and the columnwise scales."""
        row, col = (
            self.get_scale_shape(data_shape, is_colwise=colwise, is_padded=is_padded, flatten_axis=flatten_axis)
            for colwise in (False, True)
        )
        return row, col


_BLOCKS = {
    ScalingMode.DELAYED_TENSOR_SCALING: "tensor",
    ScalingMode.CURRENT_TENSOR_SCALING: "tensor",
    ScalingMode.BLOCK_1X128_SCALING: "1x128",
    ScalingMode.BLOCK_128X128_SCALING: "128x128",
    ScalingMode.MXFP8_1D_SCALING: "1x32",
    ScalingMode.MXFP8_2D_SCALING: "32x32",
    ScalingMode.NVFP4_1D_SCALING: "1x16",
    ScalingMode.NVFP4_2D_SCALING: "16x16",
}
_MODES = {block: mode for mode, block in _BLOCKS.items()} | {"32x1": ScalingMode.MXFP8_1D_SCALING}


def flatten(shape, flatten_axis: int) -> tuple[int, int]:
    """The matrix that a tensor is quantized as: dims before `flatten_axis` by dims from it on."""
    axis = normalize_axis(len(shape), flatten_axis)
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def normalize_axis(ndim: int, flatten_axis: int) -> int:
    if type(flatten_axis) is not int:
        raise RecipeError(f"flatten_axis must be an integer, got {shown(flatten_axis)}")
    axis = flatten_axis + ndim if flatten_axis < 0 else flatten_axis
    if not 0 < axis < max(ndim, 2):
        raise RecipeError(f"flatten_axis must split the {ndim} dims in two, got {flatten_axis}")
    return axis


def scale_shape(scheme: Scheme, shape, columnwise: bool, *, is_padded=False, flatten_axis=-1) -> tuple[int, ...]:
    """The shape of the scales of a copy. Dims with a scale for each element keep their size."""
    matrix = flatten(shape, flatten_axis)
    compact = scales_shape(scheme, stored_shape(scheme, matrix, columnwise), columnwise)
    if scheme.family == "tensor":
        return compact
    if is_padded:
        return _padded(scheme, compact, columnwise)
    axis = normalize_axis(len(shape), flatten_axis)
    rows = tuple(shape[axis:] if columnwise else shape[:axis])
    if scheme.family == "mx" and columnwise:
        return (compact[0], *rows)
    return (compact[0], compact[1]) if scheme.block == "128x128" else (*rows, compact[1])


def _padded(scheme: Scheme, compact: tuple[int, ...], columnwise: bool) -> tuple[int, ...]:
    """The shape of scales padded for GPU GEMMs, in the order of the compact scales."""
    padded = gemm_scales_shape(scheme, compact, columnwise)
    return padded[::-1] if gemm_scales_are_transposed(scheme, columnwise) else padded
