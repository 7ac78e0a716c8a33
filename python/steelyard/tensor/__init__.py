"""Quantized tensors and the quantizers that make them, usable without compiling anything."""

import torch.serialization

from steelyard.tensor.float8 import Float8CurrentScalingQuantizer, Float8Quantizer, Float8Tensor, Float8TensorStorage
from steelyard.tensor.float8_blockwise import (
    Float8BlockQuantizer,
    Float8BlockwiseQTensor,
    Float8BlockwiseQTensorStorage,
)
from steelyard.tensor.float8_row import Float8RowQuantizer, Float8RowTensor, Float8RowTensorStorage
from steelyard.tensor.mxfp4 import MXFP4Quantizer, MXFP4Tensor, MXFP4TensorStorage
from steelyard.tensor.mxfp8 import MXFP8Quantizer, MXFP8Tensor, MXFP8TensorStorage
from steelyard.tensor.nvfp4 import NVFP4Quantizer, NVFP4Tensor, NVFP4TensorStorage
from steelyard.tensor.quantized_tensor import QuantizedTensor, rebuild_tensor
from steelyard.tensor.quantizer import Quantizer, rebuild_quantizer
from steelyard.tensor.stack import QuantizedStack, rebuild_stack
from steelyard.tensor.storage import QuantizedTensorStorage, prepare_for_saving, restore_from_saved

__all__ = [
    "Float8BlockQuantizer",
    "Float8BlockwiseQTensor",
    "Float8BlockwiseQTensorStorage",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Float8RowQuantizer",
    "Float8RowTensor",
    "Float8RowTensorStorage",
    "Float8Tensor",
    "Float8TensorStorage",
    "MXFP4Quantizer",
    "MXFP4Tensor",
    "MXFP4TensorStorage",
    "MXFP8Quantizer",
    "MXFP8Tensor",
    "MXFP8TensorStorage",
    "NVFP4Quantizer",
    "NVFP4Tensor",
    "NVFP4TensorStorage",
    "QuantizedStack",
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "prepare_for_saving",
    "restore_from_saved",
]

# What `torch.load(weights_only=True)` must be allowed to load.
torch.serialization.add_safe_globals(
    [
        rebuild_quantizer,
        rebuild_stack,
        rebuild_tensor,
        Float8BlockQuantizer,
        Float8BlockwiseQTensor,
        Float8CurrentScalingQuantizer,
        Float8Quantizer,
        Float8RowQuantizer,
        Float8RowTensor,
        Float8Tensor,
        MXFP4Quantizer,
        MXFP4Tensor,
        MXFP8Quantizer,
        MXFP8Tensor,
        NVFP4Quantizer,
        NVFP4Tensor,
    ]
)
