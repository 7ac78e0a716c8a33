"""Calls that put tensors one after the other."""

from dataclasses import dataclass
from typing import ClassVar

from steelyard.dialect.base import require
from steelyard.ir.kernel_calls.base import KernelCall, Names


@dataclass(frozen=True, kw_only=True)
class ConcatenateCall(KernelCall):
    """Tensors one after the other along a dim.

    Constraints, beside those of all calls:
    - concatenate_c1: all tensors have one dtype and as many dims, of which `dim` is one, counted from the first
    """

    OPERATION: ClassVar[str] = "concatenate"

    dim: int

    def operand_names(self) -> Names:
        return Names(tuple(f"part{index}" for index in range(len(self.operands))))

    def check(self) -> None:
        super().check()
        tensors = [self._tensor(position) for position in range(len(self.operands) + 1)]
        alike = len({(info.dtype, len(info.shape)) for info in tensors}) == 1 and self.sizes.start == self.sizes.stop
        found = ", ".join(f"{len(info.shape)} dims of {info.dtype}" for info in tensors)
        fits = alike and 0 <= self.dim < len(tensors[0].shape)
        message = f"parts and result must have one dtype and as many dims, of which {self.dim} is one, got {found}"
        require(fits, "concatenate_c1", message)
