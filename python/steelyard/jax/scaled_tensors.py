"""Quantized tensors for JAX: pytree nodes that hold codes, scales and amaxes, and can be decoded."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import register_pytree_node_class

from steelyard.errors import RecipeError, shown
from steelyard.formats.schemes import Scheme
from steelyard.jax import primitives, sharding
from steelyard.jax.arguments import as_high_precision, check_amax, check_array, check_flag, check_shape
from steelyard.jax.copies import CopySpec, Parts
from steelyard.jax.dequantizers import BY_MODE
from steelyard.jax.formats import codes_dtype, pack_nibbles, unpack_nibbles
from steelyard.jax.nodes import AbstractBaseTensor, AbstractBaseTensor1x, Node, checked_axes
from steelyard.jax.scaling_modes import ScalingMode, flatten, normalize_axis, scale_shape


class ScaledTensor(Node, AbstractBaseTensor):
    """A quantized tensor."""

    @property
    def ndim(self) -> int:
        return len(self.shape)


@register_pytree_node_class
class ScaledTensor1x(ScaledTensor, AbstractBaseTensor1x):
    """One quantized copy of a tensor, rowwise or columnwise.

    `codes` is what is stored: FP8 data as it is, FP4 as two codes per byte. `data` shows it in its real dtype.
    """

    leaves = ("codes", "scale_inv", "amax")
    static = ("scheme", "scaling_mode", "shape", "dq_dtype", "is_colwise", "data_layout", "flatten_axis", "dequantizer")

    codes: jax.Array
    scale_inv: jax.Array
    scheme: Scheme
    scaling_mode: ScalingMode
    dq_dtype: Any
    is_colwise: bool
    data_layout: str
    flatten_axis: int
    dequantizer: Callable[["ScaledTensor1x"], jax.Array]

    def __init__(
        self,
        data: jax.Array,
        scale_inv: jax.Array,
        amax: jax.Array | None = None,
        scaling_mode: ScalingMode = ScalingMode.CURRENT_TENSOR_SCALING,
        dq_dtype: Any = jnp.float32,
        is_colwise: bool = False,
        data_layout: str | None = None,
        flatten_axis: int = -1,
        dequantizer: Callable | None = None,
        *,
        scheme: Scheme | None = None,
        shape: tuple[int, ...] | None = None,
    ):
        check_mode(scaling_mode)
        check_given(data, scale_inv, amax, is_colwise, dequantizer, scheme, shape)
        element = jnp.float4_e2m1fn if scaling_mode.is_nvfp4 and data.dtype == jnp.uint8 else data.dtype
        scaling_mode.check_dtype(element, "data")
        self.scheme = scaling_mode.scheme(element, is_colwise=is_colwise) if scheme is None else scheme
        self.scaling_mode = scaling_mode
        self.dq_dtype = as_high_precision(dq_dtype, "dq_dtype")
        self.is_colwise = is_colwise
        self.data_layout = scaling_mode.get_data_layout()[is_colwise]
        if not isinstance(data_layout, str | None) or data_layout not in (None, self.data_layout):
            usage = "columnwise" if is_colwise else "rowwise"
            raise RecipeError(
                f"data_layout must be {self.data_layout!r} for {usage} data of {scaling_mode.name}, "
                f"got {shown(data_layout)}"
            )
        stored = data.shape if data.dtype != jnp.uint8 else (*data.shape[:-1], 2 * data.shape[-1])
        self.flatten_axis = normalize_axis(len(stored), flatten_axis)
        self.shape = _logical_shape(stored, self.flatten_axis, self.data_layout) if shape is None else tuple(shape)
        self.codes = data
        if data.dtype == jnp.float4_e2m1fn:
            self.codes = pack_nibbles(as_bytes_fp4(data).reshape(self.spec.stored)).reshape(self._codes_shape())
        self.scale_inv, self.amax = self._compact_scales(scale_inv), amax
        self.dequantizer = BY_MODE[scaling_mode] if dequantizer is None else dequantizer
        self._check_parts()

    def _scales_shape(self, *, is_padded: bool = False) -> tuple[int, ...]:
        return scale_shape(
            self.scheme, self.shape, self.is_colwise, is_padded=is_padded, flatten_axis=self.flatten_axis
        )

    def _compact_scales(self, scales: jax.Array) -> jax.Array:
        """The scales with their own dims: one value may have any, and a matrix may be padded for GPU GEMMs."""
        expected, padded = self._scales_shape(), self._scales_shape(is_padded=True)
        if padded and tuple(scales.shape) == padded != expected:
            rows, columns = self.spec.part_types()[1][0]
            return scales[:rows, :columns].reshape(expected)
        return with_dims(scales, expected)

    def _check_parts(self) -> None:
        expected = self._scales_shape()
        for name, value, shape, dtype in (
            ("data", self.codes, self._codes_shape(), codes_dtype(self.scheme)),
            ("scale_inv", self.scale_inv, expected, self.scaling_mode.get_scale_dtype()),
        ):
            if tuple(value.shape) != shape or value.dtype != dtype:
                raise RecipeError(
                    f"{name} must be {jnp.dtype(dtype).name} of shape {shape} for {self.scaling_mode.name}, "
                    f"got {value.dtype} of shape {tuple(value.shape)}"
                )
        if self.amax is None and self.scheme.family == "nvfp4":
            raise RecipeError("amax must be given for NVFP4 data: it is the second level of its scales, got None")
        types = self.spec.part_types()[2:]
        if self.amax is not None and types:
            self.amax = as_amax(self.amax, types[0][0])

    @property
    def spec(self) -> CopySpec:
        """How the copy of the flattened matrix is stored."""
        return CopySpec(self.scheme, self.is_colwise, flatten(self.shape, self.flatten_axis))

    @property
    def data(self) -> jax.Array:
        """The codes in their real dtype; FP4 codes are unpacked."""
        if self.scheme.element != "f4E2M1FN":
            return self.codes
        return from_bytes_fp4(unpack_nibbles(self.codes, self.spec.stored[1]).reshape(self._data_shape()))

    @property
    def parts(self) -> Parts:
        """The parts of the flattened matrix's copy."""
        (codes_type, scales_type, *amax_type) = self.spec.part_types()
        amax = self.amax.reshape(amax_type[0][0]) if amax_type and self.amax is not None else None
        if amax_type and amax is None:
            amax = jnp.zeros(amax_type[0][0], jnp.float32)
        return Parts(self.codes.reshape(codes_type[0]), self.scale_inv.reshape(scales_type[0]), amax)

    @classmethod
    def from_parts(cls, parts: Parts, spec: CopySpec, shape, dq_dtype, flatten_axis: int = -1) -> "ScaledTensor1x":
        """The tensor of a copy that a quantize made; nothing is checked again."""
        mode = ScalingMode.of_scheme(spec.scheme)
        axis = normalize_axis(len(shape), flatten_axis)
        layout = mode.get_data_layout()[spec.columnwise]
        static = (spec.scheme, mode, tuple(shape), jnp.dtype(dq_dtype), spec.columnwise, layout, axis, BY_MODE[mode])
        tensor = cls.tree_unflatten(static, parts)
        tensor.codes = parts.codes.reshape(tensor._codes_shape())
        tensor.scale_inv = parts.scales.reshape(scale_shape(spec.scheme, shape, spec.columnwise, flatten_axis=axis))
        return tensor

    def _data_shape(self) -> tuple[int, ...]:
        """Dims of the stored elements; the Hadamard transform pads the rows it runs along."""
        axis = self.flatten_axis
        rows, columns = self.shape[:axis], self.shape[axis:]
        if self.data_layout == "T":
            rows, columns = columns, rows
        return (*rows, self.spec.stored[1]) if self.scheme.rht else (*rows, *columns)

    def _codes_shape(self) -> tuple[int, ...]:
        """Dims of the codes; FP4 packs the flattened dims that it is scaled along."""
        dims = self._data_shape()
        if self.scheme.element != "f4E2M1FN":
            return dims
        rows = self.ndim - self.flatten_axis if self.data_layout == "T" else self.flatten_axis
        return (*dims[:rows], -(-self.spec.stored[1] // 2))

    def dequantize(self) -> jax.Array:
        return self.dequantizer(self)

    def decode(self) -> jax.Array:
        """Codes times scales, in `dq_dtype`. The dequantizers of the modes use it."""
        return primitives.dequantize(self.parts, self.spec, self.dq_dtype).reshape(self.shape)

    def get_tensor(self, is_colwise: bool = False) -> "ScaledTensor1x":
        check_flag(is_colwise, "is_colwise")
        if is_colwise != self.is_colwise:
            wanted, found = ("columnwise", "rowwise") if is_colwise else ("rowwise", "columnwise")
            raise RecipeError(f"the tensor must have {wanted} data, got only {found}; quantize it for both usages")
        return self

    def apply_sharding_constraint_by_logical_axes(self, axes: Sequence[str | None]) -> "ScaledTensor1x":
        mesh_axes = sharding.resolve(checked_axes(axes, self.ndim))
        if mesh_axes is None:
            return self
        split = self.flatten_axis
        rows, columns = list(mesh_axes[:split]), list(mesh_axes[split:])
        if self.data_layout == "T":
            rows, columns = columns, rows
        codes = sharding.constrain(self.codes, _fit((*rows, *columns), self.codes.ndim), "data")
        # Each dim of the scales has the axes of its dim of the data.
        if self.scale_inv.ndim == 0:
            return self._with(codes=codes)
        grouped = self.scheme.family == "mx" and self.is_colwise
        scale_axes = (_only(rows), *columns) if grouped else (*rows, _only(columns))
        if self.scheme.block == "128x128":
            scale_axes = (_only(rows), _only(columns))
        scales = sharding.constrain(self.scale_inv, scale_axes, "scale_inv", must_divide=False)
        return self._with(codes=codes, scale_inv=scales)


@register_pytree_node_class
class ScaledTensor2x(ScaledTensor):
    """Both copies of a quantized tensor."""

    leaves = ("rowwise_tensor", "colwise_tensor")

    def __init__(self, rowwise_tensor: ScaledTensor1x, colwise_tensor: ScaledTensor1x):
        for name, tensor in (("rowwise_tensor", rowwise_tensor), ("colwise_tensor", colwise_tensor)):
            if not isinstance(tensor, ScaledTensor1x):
                raise RecipeError(f"{name} must be a ScaledTensor1x, got {type(tensor).__name__}")
        if rowwise_tensor.is_colwise or not colwise_tensor.is_colwise:
            raise RecipeError("rowwise_tensor must be rowwise and colwise_tensor columnwise, got other usages")
        if rowwise_tensor.shape != colwise_tensor.shape:
            raise RecipeError(
                f"both tensors must have one shape, got {rowwise_tensor.shape} and {colwise_tensor.shape}"
            )
        self.rowwise_tensor, self.colwise_tensor = rowwise_tensor, colwise_tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rowwise_tensor.shape

    def dequantize(self) -> jax.Array:
        return self.rowwise_tensor.dequantize()

    def get_tensor(self, is_colwise: bool = False) -> ScaledTensor1x:
        check_flag(is_colwise, "is_colwise")
        return self.colwise_tensor if is_colwise else self.rowwise_tensor

    def apply_sharding_constraint_by_logical_axes(self, axes: Sequence[str | None]) -> "ScaledTensor2x":
        row, col = (
            t.apply_sharding_constraint_by_logical_axes(axes) for t in (self.rowwise_tensor, self.colwise_tensor)
        )
        return self._with(rowwise_tensor=row, colwise_tensor=col)


def _fit(axes: tuple, ndim: int) -> tuple:
    """Axes of an array whose last dims were flattened into one."""
    return axes if len(axes) == ndim else (*axes[: ndim - 1], _only(axes[ndim - 1 :]))


def _only(axes: Sequence) -> Any:
    """The mesh axes of dims that were flattened into one: those of the first that has any."""
    return next((axis for axis in axes if axis is not None), None)


def with_dims(part: jax.Array, expected: tuple[int, ...]) -> jax.Array:
    """One value may be given with any number of dims."""
    return part.reshape(expected) if part.size == math.prod(expected) == 1 else part


def check_mode(mode: Any) -> None:
    if not isinstance(mode, ScalingMode) or mode is ScalingMode.NO_SCALING:
        raise RecipeError(f"scaling_mode must be a ScalingMode that scales, got {shown(mode)}")


def check_given(
    data: Any, scale_inv: Any, amax: Any, is_colwise: Any, dequantizer: Any, scheme: Any, shape: Any
) -> None:
    """Refuse parts of a tensor that are of another kind."""
    check_array(data, "data")
    check_array(scale_inv, "scale_inv")
    check_amax(amax)
    check_flag(is_colwise, "is_colwise")
    if dequantizer is not None and not callable(dequantizer):
        raise RecipeError(f"dequantizer must be a function of a tensor, got {shown(dequantizer)}")
    if not isinstance(scheme, Scheme | None):
        raise RecipeError(f"scheme must be a Scheme, got {shown(scheme)}")
    if shape is not None:
        check_shape(shape, "shape")


def as_amax(amax: Any, shape: tuple[int, ...]) -> jax.Array:
    """The amax of a copy, as kernels read it."""
    amax = jnp.float32(amax) if isinstance(amax, Real) else amax
    if amax.dtype != jnp.float32 or amax.size != math.prod(shape):
        raise RecipeError(f"amax must be float32 of shape {shape}, got {amax.dtype} of shape {tuple(amax.shape)}")
    return amax.reshape(shape)


def _logical_shape(stored: tuple[int, ...], flatten_axis: int, layout: str) -> tuple[int, ...]:
    """The shape of a tensor from that of its data; `flatten_axis` counts dims of the tensor."""
    if layout == "N":
        return tuple(stored)
    split = len(stored) - flatten_axis
    return (*stored[split:], *stored[:split])


def as_bytes_fp4(data: jax.Array) -> jax.Array:
    """FP4 values as one code per byte."""
    return jax.lax.bitcast_convert_type(data, jnp.uint4).astype(jnp.uint8)


def from_bytes_fp4(codes: jax.Array) -> jax.Array:
    """FP4 values of codes, one per byte."""
    return jax.lax.bitcast_convert_type(codes.astype(jnp.uint4), jnp.float4_e2m1fn)
