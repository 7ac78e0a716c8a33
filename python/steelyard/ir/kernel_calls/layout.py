"""Calls that rearrange tensors for the GEMMs of a GPU: `pad`, `unpad`, `turn`, `swizzle`."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from steelyard.dialect.base import require
from steelyard.dialect.types import Shape
from steelyard.formats.gemms import Usage
from steelyard.formats.parts import Part
from steelyard.formats.schemes import Scheme
from steelyard.ir.kernel_calls.base import KernelCall, Names, matrix_shape
from steelyard.ir.kernel_calls.copies import CopySlots
from steelyard.ir.kernel_calls.quantize import COL, ROW, CopyCall


@dataclass(frozen=True, kw_only=True)
class PadCall(KernelCall):
    """Round each dim up to a multiple, of a plain tensor or of those parts of a copy that change."""

    OPERATION: ClassVar[str] = "pad"

    multiples: tuple[int, ...]
    scheme: Scheme | None = None
    """Of the copy; None for a plain tensor."""
    usage: Usage = "rowwise"
    shape: Shape = ()
    """Of the quantized tensor, before it is padded."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the copy that are padded, in their order; none of a plain tensor."""
        return tuple(self._read_parts(self._prefix))

    @property
    def _prefix(self) -> str:
        return COL if self.usage == "columnwise" else ROW

    @cached_property
    def copy(self) -> CopySlots | None:
        """The copy that is padded; None for a plain tensor."""
        if self.scheme is None:
            return None
        shape = matrix_shape(self.shape, "shape")
        return CopySlots(self.scheme, self.usage == "columnwise", shape, self._read_parts(self._prefix))

    @property
    def read_copies(self) -> tuple[CopySlots, ...]:
        return () if self.copy is None else (self.copy,)

    def check_settings(self) -> None:
        if self.scheme is None:
            dims = len(self._tensor(0).shape) if self.operands else 0
        else:
            require(not self.scheme.custom, "call_c2", "pad needs a built-in scheme, got a user's own")
            dims = len(self.shape)
        fits = len(self.multiples) == dims
        require(fits, "call_c2", f"multiples must have one entry per dim, {dims}, got {len(self.multiples)}")

    def operand_names(self) -> Names:
        if self.scheme is None:
            return Names(("source",))
        # Codes come first: the others follow from their size.
        return Names((f"{self._prefix}.codes",), (f"{self._prefix}.scales", f"{self._prefix}.amax"))

    def result_names(self) -> Names:
        return Names(("result",) if self.scheme is None else tuple(slot.name for slot in self.operands))


@dataclass(frozen=True, kw_only=True)
class UnpadCall(KernelCall):
    """Keep the first elements of each dim; the sizes are those of the result that are known only at run time."""

    OPERATION: ClassVar[str] = "unpad"

    def operand_names(self) -> Names:
        return Names(("source",))


@dataclass(frozen=True, kw_only=True)
class TurnCall(CopyCall):
    """Turn the codes of a columnwise MX copy to lie along the reduction."""

    OPERATION: ClassVar[str] = "turn"

    def operand_names(self) -> Names:
        return Names((f"{self.prefix}.codes",))

    def result_names(self) -> Names:
        return self.operand_names()


@dataclass(frozen=True, kw_only=True)
class SwizzleCall(CopyCall):
    """Put the scales of a copy in the order that GEMMs of a GPU read."""

    OPERATION: ClassVar[str] = "swizzle"

    def operand_names(self) -> Names:
        return Names((f"{self.prefix}.scales",))

    def result_names(self) -> Names:
        return self.operand_names()
