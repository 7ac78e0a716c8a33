"""Calls on scales and on the state that scales and random bits come from."""

from dataclasses import dataclass
from typing import ClassVar

from steelyard.dialect.scale import Algorithm
from steelyard.formats.schemes import Scheme
from steelyard.ir.kernel_calls.base import KernelCall, Names


@dataclass(frozen=True, kw_only=True)
class AmaxCall(KernelCall):
    """The largest magnitude of a tensor, or of each of its rows."""

    OPERATION: ClassVar[str] = "amax"

    per_row: bool = False
    rht: bool = False
    """After the random Hadamard transform of the columns."""

    def operand_names(self) -> Names:
        return Names(("source",))


@dataclass(frozen=True, kw_only=True)
class UpdateScaleCall(KernelCall):
    """One step of delayed scaling."""

    OPERATION: ClassVar[str] = "update_scale"

    scheme: Scheme
    margin: int = 0
    algorithm: Algorithm = "max"
    """How an amax is picked from the history; `custom` is the user's own function of the layer."""
    reduce: bool = False
    """The amax is the largest over all ranks."""
    layer: str = ""
    """The layer whose own algorithm it is."""

    def operand_names(self) -> Names:
        return Names(("scale", "history", "amax"))

    def result_names(self) -> Names:
        return Names(("new_scale", "new_history"))


@dataclass(frozen=True, kw_only=True)
class CountSaturatedCall(KernelCall):
    """Count the values that are too large for a static scale; of a matrix in groups, those of rows that are in one."""

    OPERATION: ClassVar[str] = "count_saturated"

    scheme: Scheme

    def operand_names(self) -> Names:
        return Names(("source", "scale", "count"), ("ends",))


@dataclass(frozen=True, kw_only=True)
class AdvanceRngCall(KernelCall):
    """The random state of the next backward."""

    OPERATION: ClassVar[str] = "advance_rng"

    def operand_names(self) -> Names:
        return Names(("rng",))
