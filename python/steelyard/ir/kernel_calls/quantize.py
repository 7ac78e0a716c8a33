"""Calls that quantize, and calls that read whole copies: `quantize`, `stored`, `produce_quantize`, `dequantize`,
`transpose`, `pack`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from steelyard.dialect.base import require
from steelyard.dialect.produce import PRODUCERS, Producer
from steelyard.dialect.types import Shape
from steelyard.formats.gemms import Role, Usage
from steelyard.formats.parts import Part, can_pack
from steelyard.formats.schemes import Scheme
from steelyard.ir.kernel_calls.base import KernelCall, Names, matrix_shape
from steelyard.ir.kernel_calls.copies import CopySlots, named_parts

ROW, COL = "row", "col"
"""What the names of the parts of a rowwise and of a columnwise copy begin with."""


def pair_of_copies(
    row: Scheme | None,
    col: Scheme | None,
    shape: tuple[int | None, int | None],
    places: Callable[[str], dict[Part, int]],
) -> tuple[CopySlots | None, CopySlots | None]:
    """The rowwise and the columnwise copy of a matrix."""
    return (
        None if row is None else CopySlots(row, False, shape, places(ROW)),
        None if col is None else CopySlots(col, True, shape, places(COL)),
    )


def names_of_copies(row: Scheme | None, col: Scheme | None) -> tuple[str, ...]:
    """The names of the parts of both copies."""
    pairs = ((row, ROW), (col, COL))
    return tuple(name for scheme, prefix in pairs if scheme is not None for name in named_parts(scheme, prefix))


@dataclass(frozen=True, kw_only=True)
class QuantizingCall(KernelCall):
    """A call that quantizes into a rowwise copy, a columnwise copy, or both."""

    row: Scheme | None = None
    col: Scheme | None = None
    role: Role
    """What the quantized tensor is to a recipe."""

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The schemes of the copies."""
        return tuple(scheme for scheme in (self.row, self.col) if scheme is not None)

    @property
    def source(self) -> int:
        """The position of the first tensor that is read."""
        return self._required("source")

    @property
    def scale(self) -> int | None:
        """The position of a scale that is known before."""
        return self.operand("scale")

    @property
    def checked_operands(self) -> tuple[int, ...]:
        """Positions of what must be finite for the copies to be."""
        return tuple(place for name in ("source", "other") if (place := self.operand(name)) is not None)

    @cached_property
    def copies(self) -> tuple[CopySlots | None, CopySlots | None]:
        """The rowwise and the columnwise copy that are made."""
        return pair_of_copies(self.row, self.col, self.source_shape, self._made_parts)

    @property
    def source_shape(self) -> tuple[int | None, int | None]:
        """Of the first tensor that is read, as a matrix."""
        return matrix_shape(self._tensor(self.source).shape, "source")

    @property
    def made_copies(self) -> tuple[CopySlots, ...]:
        return () if self.is_custom else tuple(copy for copy in self.copies if copy is not None)

    def check_settings(self) -> None:
        require(len(self.schemes) > 0, "call_c2", f"{self.OPERATION} needs a scheme, row or col, got none")

    def result_names(self) -> Names:
        return Names(names_of_copies(self.row, self.col))


@dataclass(frozen=True, kw_only=True)
class QuantizeCall(QuantizingCall):
    """Quantize a tensor; a user's own quantizer makes one opaque `storage`."""

    OPERATION: ClassVar[str] = "quantize"

    layer: str = ""
    """The layer whose quantizer it is, of a user's own."""

    @property
    def is_custom(self) -> bool:
        return any(scheme.custom for scheme in self.schemes)

    @property
    def rng(self) -> int | None:
        """The position of the random state of stochastic rounding."""
        return self.operand("rng")

    def operand_names(self) -> Names:
        return Names(("source",), ("scale", "rng"))

    def result_names(self) -> Names:
        if self.is_custom:
            return Names(("storage",), ("new_amax",), opaque=("storage",))
        return Names(names_of_copies(self.row, self.col), ("new_amax",))


@dataclass(frozen=True, kw_only=True)
class ProduceQuantizeCall(QuantizingCall):
    """Compute a norm or an activation and quantize it."""

    OPERATION: ClassVar[str] = "produce_quantize"

    producer: Producer
    epsilon: float = 0.0

    @property
    def inputs(self) -> slice:
        """Positions of what the producer reads, in its order."""
        return slice(0, 1 + len(PRODUCERS[self.producer]))

    def check_settings(self) -> None:
        super().check_settings()
        built_in = not any(scheme.custom for scheme in self.schemes)
        require(built_in, "call_c2", "produce_quantize needs built-in schemes, got a user's own")

    def operand_names(self) -> Names:
        return Names(("source", *PRODUCERS[self.producer]), ("scale",))


@dataclass(frozen=True, kw_only=True)
class StoredCall(KernelCall):
    """The parts of a tensor that is quantized already, as they are."""

    OPERATION: ClassVar[str] = "stored"

    scheme: Scheme

    @cached_property
    def copy(self) -> CopySlots:
        """The rowwise copy that it holds."""
        return CopySlots(self.scheme, False, matrix_shape(self.shape, "source"), self._made_parts(ROW))

    @property
    def shape(self) -> Shape:
        """Of the tensor."""
        return self._tensor(self._required("source")).shape

    @property
    def made_copies(self) -> tuple[CopySlots, ...]:
        return (self.copy,)

    def check_settings(self) -> None:
        require(not self.scheme.custom, "call_c2", f"{self.OPERATION} needs a built-in scheme, got a user's own")

    def operand_names(self) -> Names:
        return Names(("source",))

    def result_names(self) -> Names:
        return Names(named_parts(self.scheme, ROW))


@dataclass(frozen=True, kw_only=True)
class CopyCall(KernelCall):
    """A call that reads one copy of a quantized tensor."""

    scheme: Scheme
    usage: Usage
    shape: Shape
    """Of the quantized tensor."""

    @property
    def columnwise(self) -> bool:
        """Whether it is the columnwise copy."""
        return self.usage == "columnwise"

    @property
    def prefix(self) -> str:
        """What the names of the copy's parts begin with."""
        return COL if self.columnwise else ROW

    @cached_property
    def copy(self) -> CopySlots:
        """The copy that is read."""
        return CopySlots(self.scheme, self.columnwise, matrix_shape(self.shape, "shape"), self._read_parts(self.prefix))

    @property
    def read_copies(self) -> tuple[CopySlots, ...]:
        return (self.copy,)

    def check_settings(self) -> None:
        require(not self.scheme.custom, "call_c2", f"{self.OPERATION} needs a built-in scheme, got a user's own")

    def operand_names(self) -> Names:
        return Names(named_parts(self.scheme, self.prefix))


@dataclass(frozen=True, kw_only=True)
class DequantizeCall(CopyCall):
    """Decode one copy of a quantized tensor."""

    OPERATION: ClassVar[str] = "dequantize"


@dataclass(frozen=True, kw_only=True)
class TransposeCall(CopyCall):
    """Make the copy of the other usage from the codes of one."""

    OPERATION: ClassVar[str] = "transpose"

    @cached_property
    def made_copy(self) -> CopySlots:
        """The copy of the other usage."""
        made = self._made_parts(ROW if self.columnwise else COL)
        return CopySlots(self.scheme, not self.columnwise, self.copy.shape, made)

    @property
    def made_copies(self) -> tuple[CopySlots, ...]:
        return (self.made_copy,)

    def result_names(self) -> Names:
        return Names(named_parts(self.scheme, ROW if self.columnwise else COL))


@dataclass(frozen=True, kw_only=True)
class PackCall(KernelCall):
    """Pack the copies of a weight in the order that GEMMs of the CPU read."""

    OPERATION: ClassVar[str] = "pack"

    row: Scheme | None = None
    """The scheme of the copy that is read, in the compact layout."""
    col: Scheme | None = None
    shape: Shape

    @cached_property
    def pairs(self) -> tuple[tuple[CopySlots, CopySlots], ...]:
        """Each copy that is read, and the packed one that is made of it."""
        shape = matrix_shape(self.shape, "shape")
        read = pair_of_copies(self.row, self.col, shape, self._read_parts)
        made = pair_of_copies(*self._packed(), shape, self._made_parts)
        return tuple((r, m) for r, m in zip(read, made, strict=True) if r is not None and m is not None)

    @property
    def read_copies(self) -> tuple[CopySlots, ...]:
        return tuple(read for read, _ in self.pairs)

    @property
    def made_copies(self) -> tuple[CopySlots, ...]:
        return tuple(made for _, made in self.pairs)

    def check_settings(self) -> None:
        schemes = [scheme for scheme in (self.row, self.col) if scheme is not None]
        fits = all(map(can_pack, schemes))
        require(len(schemes) > 0 and fits, "call_c2", "pack needs f4E2M1FN schemes in the compact layout, row or col")

    def operand_names(self) -> Names:
        return Names(names_of_copies(self.row, self.col))

    def result_names(self) -> Names:
        return Names(names_of_copies(*self._packed()))

    def _packed(self) -> tuple[Scheme | None, Scheme | None]:
        row, col = (None if scheme is None else replace(scheme, layout="packed") for scheme in (self.row, self.col))
        return row, col
