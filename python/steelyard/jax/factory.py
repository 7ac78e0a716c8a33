"""Tensors from their parts: the mode and the given parts decide the class."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from steelyard.errors import RecipeError
from steelyard.jax.scaling_modes import ScalingMode
from steelyard.jax.tensor import (
    AbstractBaseTensor,
    GroupedScaledTensor1x,
    NoScaleTensor,
    ScaledTensor1x,
    ScaledTensor2x,
)


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
            raise RecipeError(f"scaling_mode must be a ScalingMode, got {scaling_mode!r}")
        if data is None:
            if colwise_data is None:
                raise RecipeError("data or colwise_data must be given, got neither")
            data, scale_inv, amax, is_colwise = colwise_data, colwise_scale_inv, colwise_amax, True
            colwise_data = None
        if scaling_mode is ScalingMode.NO_SCALING:
            return NoScaleTensor(data, amax)
        if scale_inv is None:
            raise RecipeError(f"scale_inv must be given for {scaling_mode.name}, got None")
        if group_sizes is not None:
            if original_shape is None or colwise_data is not None:
                raise RecipeError("group_sizes need original_shape and the data of one usage")
            return GroupedScaledTensor1x(
                data,
                scale_inv,
                group_sizes,
                amax,
                scaling_mode,
                dq_dtype,
                is_colwise,
                dequantizer,
                shape=original_shape,
            )
        common = {
            "scaling_mode": scaling_mode,
            "dq_dtype": dq_dtype,
            "flatten_axis": flatten_axis,
            "dequantizer": dequantizer,
        }
        layouts = data_layout if data_layout and len(data_layout) == 2 else (data_layout, data_layout)
        tensor = ScaledTensor1x(data, scale_inv, amax, is_colwise=is_colwise, data_layout=layouts[is_colwise], **common)
        if colwise_data is None:
            return tensor
        if colwise_scale_inv is None:
            raise RecipeError("colwise_scale_inv must be given beside colwise_data, got None")
        colwise_amax = amax if colwise_amax is None else colwise_amax
        layout = layouts[1] if data_layout and len(data_layout) == 2 else None
        colwise = ScaledTensor1x(
            colwise_data, colwise_scale_inv, colwise_amax, is_colwise=True, data_layout=layout, **common
        )
        return ScaledTensor2x(tensor, colwise)
