"""Quantized matrices for JAX whose rows belong to groups."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import register_pytree_node_class

from steelyard.errors import RecipeError
from steelyard.formats.schemes import Scheme
from steelyard.jax import grouped_layout, grouped_primitives, sharding
from steelyard.jax.arguments import as_high_precision, check_array
from steelyard.jax.copies import CopySpec, Parts
from steelyard.jax.dequantizers import BY_MODE
from steelyard.jax.formats import unpack_nibbles
from steelyard.jax.nodes import checked_axes
from steelyard.jax.scaled_tensors import ScaledTensor1x, check_given, check_mode, from_bytes_fp4, with_dims
from steelyard.jax.scaling_modes import ScalingMode


@register_pytree_node_class
class GroupedScaledTensor1x(ScaledTensor1x):
    """One quantized copy of a matrix whose rows belong to groups, each with scales of its own.

    `group_sizes` are int32, the rows of each group in order; `grouped_layout` says where groups lie in the parts.
    """

    leaves = ("codes", "scale_inv", "amax", "group_sizes")

    group_sizes: jax.Array

    def __init__(
        self,
        data: jax.Array,
        scale_inv: jax.Array,
        group_sizes: jax.Array,
        amax: jax.Array | None = None,
        scaling_mode: ScalingMode = ScalingMode.CURRENT_TENSOR_SCALING,
        dq_dtype: Any = jnp.float32,
        is_colwise: bool = False,
        dequantizer: Callable | None = None,
        *,
        shape: tuple[int, int],
        scheme: Scheme | None = None,
    ):
        """`data`: codes as they are stored; `shape`: that of the matrix."""
        check_mode(scaling_mode)
        check_given(data, scale_inv, amax, is_colwise, dequantizer, scheme, shape)
        check_array(group_sizes, "group_sizes")
        q_dtype = jnp.float4_e2m1fn if scaling_mode.is_nvfp4 else data.dtype
        scheme = scaling_mode.scheme(q_dtype, is_colwise=is_colwise) if scheme is None else scheme
        spec = CopySpec(scheme, is_colwise, shape)
        types: list[tuple[tuple[int, ...], Any]] = grouped_layout.part_types(spec, len(group_sizes))
        # With one group, what is per group is one value.
        scale_inv = with_dims(scale_inv, types[1][0])
        amax = amax if amax is None or len(types) < 3 else with_dims(amax, types[2][0])
        parts = {"data": data, "scale_inv": scale_inv, "amax": amax}
        for (name, value), (expected, dtype) in zip(parts.items(), types, strict=False):
            if value is None or (tuple(value.shape), value.dtype) != (expected, dtype):
                found = "None" if value is None else f"{value.dtype} of shape {tuple(value.shape)}"
                raise RecipeError(
                    f"{name} must be {jnp.dtype(dtype).name} of shape {expected} for {scaling_mode.name}, got {found}"
                )
        made = self.from_grouped_parts(
            Parts(data, scale_inv, amax), spec, group_sizes, as_high_precision(dq_dtype, "dq_dtype")
        )
        for field in (*self.leaves, *self.static):
            setattr(self, field, getattr(made, field))
        if dequantizer is not None:
            self.dequantizer = dequantizer

    @classmethod
    def from_grouped_parts(cls, parts: Parts, spec: CopySpec, group_sizes, dq_dtype) -> "GroupedScaledTensor1x":
        """The tensor of a copy that a grouped quantize made."""
        mode = ScalingMode.of_scheme(spec.scheme)
        layout = mode.get_data_layout()[spec.columnwise]
        static = (spec.scheme, mode, spec.shape, jnp.dtype(dq_dtype), spec.columnwise, layout, 1, BY_MODE[mode])
        return cls.tree_unflatten(static, (*parts, group_sizes))

    @property
    def data(self) -> jax.Array:
        if self.scheme.element != "f4E2M1FN":
            return self.codes
        columns = 2 * self.codes.shape[1] if self.is_colwise else self.spec.stored[1]
        return from_bytes_fp4(unpack_nibbles(self.codes, columns))

    @property
    def parts(self) -> Parts:
        keeps_amax = self.scheme.family in ("tensor", "nvfp4")
        return Parts(self.codes, self.scale_inv, self.amax if keeps_amax else None)

    def decode(self) -> jax.Array:
        return grouped_primitives.dequantize(self.parts, self.group_sizes, self.spec, self.dq_dtype)

    def apply_sharding_constraint_by_logical_axes(self, axes: Sequence[str | None]) -> "GroupedScaledTensor1x":
        if sharding.resolve(checked_axes(axes, self.ndim)) is None:
            return self
        raise RecipeError(
            "a grouped tensor must stay whole: its groups have no fixed places; shard the array it was made from"
        )
