"""Make the quantizer of a scheme."""

import torch

from steelyard.formats.schemes import Scheme
from steelyard.tensor.elements import ELEMENT_DTYPES
from steelyard.tensor.float8 import Float8CurrentScalingQuantizer, Float8Quantizer
from steelyard.tensor.float8_blockwise import Float8BlockQuantizer
from steelyard.tensor.float8_row import Float8RowQuantizer
from steelyard.tensor.mxfp4 import MXFP4Quantizer
from steelyard.tensor.mxfp8 import MXFP8Quantizer
from steelyard.tensor.nvfp4 import NVFP4Quantizer
from steelyard.tensor.scheme_quantizer import SchemeQuantizer


def make_quantizer(scheme: Scheme, scale: torch.Tensor | None = None) -> SchemeQuantizer | None:
    """A quantizer whose rowwise copies have this scheme; None if there is none.

    `scale` is that of delayed scaling, of a stack one for each matrix, or the second level that NVFP4 is given.
    """
    made = _MAKERS[scheme.family](scheme, scale) if scheme.family in _MAKERS else None
    return made if made is not None and made.row_scheme == scheme else None


def _tensor(scheme: Scheme, scale: torch.Tensor | None) -> SchemeQuantizer | None:
    dtype = ELEMENT_DTYPES[scheme.element]
    if scheme.source == "current":
        return Float8CurrentScalingQuantizer(
            dtype, force_pow_2_scales=scheme.power_of_two, amax_epsilon=scheme.epsilon, columnwise=False
        )
    if scale is None:
        return None
    if scale.dim() == 0:
        return Float8Quantizer(scale.detach().clone(), torch.zeros(()), dtype, columnwise=False)
    return Float8Quantizer(torch.ones(()), torch.zeros(()), dtype, columnwise=False).of_stack(scale)


def _row(scheme: Scheme, _) -> SchemeQuantizer:
    return Float8RowQuantizer(
        ELEMENT_DTYPES[scheme.element],
        force_pow_2_scales=scheme.power_of_two,
        amax_epsilon=scheme.epsilon,
        columnwise=False,
    )


def _block(scheme: Scheme, _) -> SchemeQuantizer:
    return Float8BlockQuantizer(
        ELEMENT_DTYPES[scheme.element],
        block_scaling_dim=2 if scheme.is_tiled else 1,
        force_pow_2_scales=scheme.power_of_two,
        amax_epsilon=scheme.epsilon,
        columnwise=False,
    )


def _mx(scheme: Scheme, _) -> SchemeQuantizer:
    return MXFP8Quantizer(
        ELEMENT_DTYPES[scheme.element],
        with_2d_quantization=scheme.is_tiled,
        scale_rule=scheme.rule,
        columnwise=False,
    )


def _mxfp4(scheme: Scheme, _) -> SchemeQuantizer:
    return MXFP4Quantizer(scale_rule=scheme.rule, columnwise=False)


def _nvfp4(scheme: Scheme, scale: torch.Tensor | None) -> SchemeQuantizer:
    level = None if scale is None else float(scale)
    return NVFP4Quantizer(
        tensor_scale_inv=level if scheme.source == "static" else None,
        tensor_scale=level if scheme.source == "divisor" else None,
        with_2d_quantization=scheme.is_tiled,
        row_scaled=scheme.second_level == "row",
        four_over_six=None if scheme.four_over_six == "none" else scheme.four_over_six,
        block_size=scheme.block_sizes[1],
        columnwise=False,
    )


_MAKERS = {"tensor": _tensor, "row": _row, "block": _block, "mx": _mx, "mxfp4": _mxfp4, "nvfp4": _nvfp4}
