"""Where values live: `free`."""

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.base import ScaledOp, build, require
from steelyard.dialect.types import TensorType, tensor_info


class FreeOp(ScaledOp, name="free"):
    """Free a value: nothing reads it from here on, and its memory may be used again.

    Constraints:
    - free_c1: value is a ranked tensor or a !scaled.tensor
    """

    assembly_format = "$value"

    value: ext.Operand[Any]

    def check(self) -> None:
        type_ = self.value.type
        is_tensor = isinstance(type_, TensorType) or tensor_info(type_) is not None
        require(is_tensor, "free_c1", f"value must be a ranked tensor or a !scaled.tensor, got {type_}")


def free(value: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None) -> FreeOp:
    """Build a `scaled.free`."""
    return build(FreeOp, [value], [], {}, loc, ip)
