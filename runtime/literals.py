"""Tensors that the IR spells out: `torch.vtensor.literal`."""

import re
from typing import Any

import numpy as np
import torch
from torch_mlir import ir

from steelyard.errors import UnsupportedOpError
from steelyard.ir.locations import layer_of
from steelyard.ir.torch_ops import op_name
from steelyard.runtime.dtypes import result_dtype, shape_of


def read_literal(op: ir.Operation) -> torch.Tensor:
    """The tensor that a literal spells out."""
    value: Any = op.attributes["value"]
    sizes, dtype = [size or 0 for size in shape_of(op.result.type)], result_dtype(op.result.type)
    if not isinstance(value, ir.DenseElementsAttr):
        raise unsupported_op(op, f"it must spell out its elements, got {value.type}")
    if value.is_splat:
        return torch.full(sizes, value.get_splat_value().value, dtype=dtype)
    try:
        return torch.from_numpy(np.array(value)).to(dtype).reshape(sizes)
    except TypeError:
        raise unsupported_op(op, f"elements of type {value.type} must all be equal") from None


def unsupported_op(op: ir.Operation, cause: str) -> UnsupportedOpError:
    """The error for an op that no program can run, with its layer and source line."""
    sources = re.findall(r'"([^"]+)":(\d+):\d+', str(op.location))
    return UnsupportedOpError(op_name(op), layer_of(op.location), ":".join(sources[0]) if sources else "", cause)
