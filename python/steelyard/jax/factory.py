"""Tensors from their parts: the mode and the given parts decide the class."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from steelyard.errors import RecipeError, shown
from steelyard.jax.arguments import check_flag
from steelyard.jax.grouped_tensors import GroupedScaledTensor1x
from steelyard.jax.nodes import AbstractBaseTensor, NoScaleTensor
from steelyard.jax.scaled_tensors import ScaledTensor1x, ScaledTensor2x, check_mode
from steelyard.jax.scaling_modes import ScalingMode


class ScaledTensorFactory:
    """Makes tensors from their parts."""

    @staticmethod
    def create(
        data: jax.Array | None = None,
        scale_inv: jax.Array | None = None,
        *,
        amax: jax.Array | None = None,
        colwise_data: jax.Array | None = None,
        colwise_scale_inv: jax.Array | None = None,
        colwise_amax: jax.Array | None = None,
        scaling_mode: ScalingMode = ScalingMode.CURRENT_TENSOR_SCALING,
        dq_dtype: Any = jnp.float32,
        data_layout: str | None = None,
        is_colwise: bool = False,
        flatten_axis: int = -1,
        dequantizer: Callable | None = None,
        group_sizes: jax.Array | None = None,
        original_shape: tuple[int, int] | None = None,
    ) -> AbstractBaseTensor:
        """The tensor that has these parts.

        A `ScaledTensor1x`; a `ScaledTensor2x` if both rowwise and columnwise data are given; a `GroupedScaledTensor1x`
        if group sizes are given; or a `NoScaleTensor`."""
        if not isinstance(scaling_mode, ScalingMode):
            raise RecipeError(f"scaling_mode must be a ScalingMode, got {shown(scaling_mode)}")
        check_flag(is_colwise, "is_colwise")
        if not isinstance(data_layout, str | None):
            raise RecipeError(f"data_layout must have a letter for each copy, got {shown(data_layout)}")
        if data is None:
            if colwise_data is None:
                raise RecipeError("data or colwise_data must be given, got neither")
            data, scale_inv, amax, is_colwise = colwise_data, colwise_scale_inv, colwise_amax, True
            colwise_data = None
        if scaling_mode is ScalingMode.NO_SCALING:
            return NoScaleTensor(data, amax)
        common = {"scaling_mode": scaling_mode, "dq_dtype": dq_dtype, "flatten_axis": flatten_axis}
        if colwise_data is None:
            layout = data_layout[-1 if is_colwise else 0] if data_layout else None
            return ScaledTensorFactory.create_1x(
                data,
                scale_inv,
                amax,
                is_colwise=is_colwise,
                data_layout=layout,
                dequantizer=dequantizer,
                group_sizes=group_sizes,
                original_shape=original_shape,
                **common,
            )
        if group_sizes is not None:
            raise RecipeError("group_sizes need original_shape and the data of one usage")
        return ScaledTensorFactory.create_2x(
            data,
            scale_inv,
            colwise_data,
            colwise_scale_inv,
            amax,
            colwise_amax,
            data_layout=data_layout,
            dequantizer=dequantizer,
            **common,
        )

    @staticmethod
    def create_1x(
        data: jax.Array,
        scale_inv: jax.Array | None,
        amax: jax.Array | None = None,
        scaling_mode: ScalingMode = ScalingMode.CURRENT_TENSOR_SCALING,
        dq_dtype: Any = jnp.float32,
        is_colwise: bool = False,
        data_layout: str | None = None,
        flatten_axis: int = -1,
        *,
        dequantizer: Callable | None = None,
        group_sizes: jax.Array | None = None,
        original_shape: tuple[int, int] | None = None,
    ) -> ScaledTensor1x:
        """The tensor of one copy; a `GroupedScaledTensor1x` if group sizes are given."""
        check_mode(scaling_mode)
        if scale_inv is None:
            raise RecipeError(f"scale_inv must be given for {scaling_mode.name}, got None")
        if group_sizes is None:
            return ScaledTensor1x(
                data, scale_inv, amax, scaling_mode, dq_dtype, is_colwise, data_layout, flatten_axis, dequantizer
            )
        if original_shape is None:
            raise RecipeError("group_sizes need original_shape and the data of one usage")
        return GroupedScaledTensor1x(
            data, scale_inv, group_sizes, amax, scaling_mode, dq_dtype, is_colwise, dequantizer, shape=original_shape
        )

    @staticmethod
    def create_2x(
        data: jax.Array,
        scale_inv: jax.Array | None,
        colwise_data: jax.Array,
        colwise_scale_inv: jax.Array | None,
        amax: jax.Array | None = None,
        colwise_amax: jax.Array | None = None,
        scaling_mode: ScalingMode = ScalingMode.CURRENT_TENSOR_SCALING,
        dq_dtype: Any = jnp.float32,
        data_layout: str | None = None,
        flatten_axis: int = -1,
        *,
        dequantizer: Callable | None = None,
    ) -> ScaledTensor2x:
        """The tensor of both copies. `data_layout` has a letter for each; the columnwise amax is by default `amax`."""
        check_mode(scaling_mode)
        if colwise_scale_inv is None:
            raise RecipeError("colwise_scale_inv must be given beside colwise_data, got None")
        if len(data_layout or "") > 2:
            raise RecipeError(f"data_layout must have a letter for each of the two copies, got {data_layout!r}")
        common = {"flatten_axis": flatten_axis, "dequantizer": dequantizer}
        row, col, *_ = *(data_layout or ""), None, None
        colwise_amax = amax if colwise_amax is None else colwise_amax
        create = ScaledTensorFactory.create_1x
        return ScaledTensor2x(
            create(data, scale_inv, amax, scaling_mode, dq_dtype, False, row, **common),
            create(colwise_data, colwise_scale_inv, colwise_amax, scaling_mode, dq_dtype, True, col, **common),
        )
