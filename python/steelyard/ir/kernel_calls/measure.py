"""Calls that measure what low precision costs, and the one that chooses between two results."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from steelyard.ir.kernel_calls.base import KernelCall, Names
from steelyard.ir.kernel_calls.copies import CopySlots, named_parts
from steelyard.ir.kernel_calls.grouped import GroupedCopySlots
from steelyard.ir.kernel_calls.quantize import CopyCall


@dataclass(frozen=True, kw_only=True)
class MeasureQuantizeCall(CopyCall):
    """What quantizing did to the values of a copy."""

    OPERATION: ClassVar[str] = "measure_quantize"

    groups: int = 0
    """How many groups are matrices of their own; 0 where the tensor is one."""

    @cached_property
    def copy(self) -> CopySlots:
        if not self.groups:
            return CopyCall.copy.func(self)
        parts, shape = self._read_parts(self.prefix), (self.shape[-2], self.shape[-1])
        return GroupedCopySlots(self.scheme, self.columnwise, shape, parts, self.groups, self.shape)

    def operand_names(self) -> Names:
        return Names(named_parts(self.scheme, self.prefix), ("source", "ends"))


@dataclass(frozen=True, kw_only=True)
class MeasureProductCall(KernelCall):
    """The error of a GEMM's result."""

    OPERATION: ClassVar[str] = "measure_product"

    def operand_names(self) -> Names:
        return Names(("computed", "product"), ("bias",))


@dataclass(frozen=True, kw_only=True)
class MeasureInfluenceCall(KernelCall):
    """How far that error moves the loss."""

    OPERATION: ClassVar[str] = "measure_influence"

    def operand_names(self) -> Names:
        return Names(("computed", "product", "gradient"), ("bias",))


@dataclass(frozen=True, kw_only=True)
class SwitchCall(KernelCall):
    """One of two results."""

    OPERATION: ClassVar[str] = "switch"

    def operand_names(self) -> Names:
        return Names(("on", "quantized", "exact"))
