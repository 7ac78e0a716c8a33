"""Calls of blocks: programs of their own that a program runs as one step."""

from dataclasses import dataclass
from typing import ClassVar

from steelyard.dialect.base import require
from steelyard.ir.kernel_calls.base import KernelCall, Names


@dataclass(frozen=True, kw_only=True)
class BlockCall(KernelCall):
    """What a block of layers makes of tensors, by the tape of its own program; it may write into some of them.

    Constraints, beside those of all calls:
    - block_c1: number, which says which block it is, is not negative, and all sizes are known
    """

    OPERATION: ClassVar[str] = "block"

    number: int

    def operand_names(self) -> Names:
        return Names(tuple(f"argument{index}" for index in range(len(self.operands))))

    def result_names(self) -> Names:
        return Names(tuple(f"result{index}" for index in range(len(self.results))))

    def check(self) -> None:
        super().check()
        shapes = [self._tensor(position).shape for position in range(len(self.operands) + len(self.results))]
        fits = self.number >= 0 and not any(None in shape for shape in shapes)
        require(fits, "block_c1", f"number must not be negative and sizes known, got {self.number} and {shapes}")
