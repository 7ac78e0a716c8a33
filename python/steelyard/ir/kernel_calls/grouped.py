"""Calls on tensors in groups, each of which is a matrix of its own: `grouped_quantize`, `grouped_stored`,
`grouped_pack`, `grouped_gemm`."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from steelyard.dialect.base import require
from steelyard.dialect.types import Shape
from steelyard.formats.gemms import Kind, reads_columnwise
from steelyard.formats.parts import Part, grouped_part_shapes
from steelyard.formats.schemes import Scheme
from steelyard.ir.kernel_calls.base import KernelCall, Names, matrix_shape
from steelyard.ir.kernel_calls.copies import CopySlots, named_parts
from steelyard.ir.kernel_calls.gemm import Path
from steelyard.ir.kernel_calls.quantize import PackCall, QuantizeCall, StoredCall


@dataclass(frozen=True)
class GroupedCopySlots(CopySlots):
    """One copy of a tensor in groups."""

    groups: int
    whole: Shape
    """The shape of the tensor: a stack of matrices, or a matrix whose rows are in groups."""

    @property
    def is_stack(self) -> bool:
        """Whether all groups have the same, known size."""
        return len(self.whole) == 3

    def part_shapes(self) -> dict[Part, tuple[Shape, str]]:
        return grouped_part_shapes(self.scheme, self.whole, self.columnwise, self.groups)


@dataclass(frozen=True, kw_only=True)
class GroupedQuantizeCall(QuantizeCall):
    """Quantize each group of a tensor."""

    OPERATION: ClassVar[str] = "grouped_quantize"

    groups: int

    @property
    def ends(self) -> int | None:
        """The position of where the groups of a matrix end; None for a stack of matrices."""
        return self.operand("ends")

    @property
    def whole(self) -> Shape:
        """The shape of the tensor."""
        return self._tensor(self.source).shape

    @cached_property
    def copies(self) -> tuple[CopySlots | None, CopySlots | None]:
        row, col = QuantizeCall.copies.func(self)
        return _in_groups(row, self.groups, self.whole), _in_groups(col, self.groups, self.whole)

    def check_settings(self) -> None:
        super().check_settings()
        _check_groups(self.groups, self.schemes)

    def operand_names(self) -> Names:
        if len(self.whole) == 3:
            return Names(("source",), ("scale", "rng"))
        return Names(("source", "ends"), ("scale", "rng"))


@dataclass(frozen=True, kw_only=True)
class GroupedStoredCall(StoredCall):
    """The parts of a stack of matrices that are quantized already."""

    OPERATION: ClassVar[str] = "grouped_stored"

    groups: int

    @cached_property
    def copy(self) -> CopySlots:
        grouped = _in_groups(StoredCall.copy.func(self), self.groups, self.shape)
        assert grouped is not None
        return grouped

    def check_settings(self) -> None:
        super().check_settings()
        _check_groups(self.groups, (self.scheme,))


@dataclass(frozen=True, kw_only=True)
class GroupedPackCall(PackCall):
    """Pack the copies of a stack of weights, each by itself."""

    OPERATION: ClassVar[str] = "grouped_pack"

    groups: int

    @cached_property
    def pairs(self) -> tuple[tuple[CopySlots, CopySlots], ...]:
        pairs = PackCall.pairs.func(self)
        return tuple((self._in_groups(read), self._in_groups(made)) for read, made in pairs)

    def check_settings(self) -> None:
        super().check_settings()
        _check_groups(self.groups, ())

    def _in_groups(self, copy: CopySlots) -> CopySlots:
        grouped = _in_groups(copy, self.groups, self.shape)
        assert grouped is not None
        return grouped


@dataclass(frozen=True, kw_only=True)
class GroupedGemmCall(KernelCall):
    """The products of experts."""

    OPERATION: ClassVar[str] = "grouped_gemm"

    kind: Kind
    groups: int
    rhs: Scheme
    """Of the copy that is read, as lhs is."""
    rhs_shape: Shape
    lhs: Scheme | None = None
    """None for a tensor that is not quantized."""
    lhs_shape: Shape
    path: Path | None = None
    """How a CUDA target runs it; None on the CPU."""

    @property
    def ends(self) -> int:
        """The position of where the groups end."""
        return self._required("ends")

    @property
    def out(self) -> int:
        """The position of the result."""
        return self._result_positions["result"]

    @cached_property
    def left(self) -> GroupedCopySlots | None:
        """The copy of lhs; None where the first operand is a plain tensor."""
        if self.lhs is None:
            return None
        return self._copy("lhs", self.lhs, self.lhs_shape, reads_columnwise(self.kind)[0])

    @cached_property
    def right(self) -> GroupedCopySlots:
        """The copy of rhs."""
        return self._copy("rhs", self.rhs, self.rhs_shape, reads_columnwise(self.kind)[1])

    @property
    def read_copies(self) -> tuple[CopySlots, ...]:
        return tuple(copy for copy in (self.left, self.right) if copy is not None)

    def _copy(self, name: str, scheme: Scheme, shape: Shape, columnwise: bool) -> GroupedCopySlots:
        matrix = matrix_shape(shape, f"{name}_shape")
        return GroupedCopySlots(scheme, columnwise, matrix, self._read_parts(name), self.groups, shape)

    def check_settings(self) -> None:
        _check_groups(self.groups, tuple(scheme for scheme in (self.lhs, self.rhs) if scheme is not None))
        fits = self.kind != "wgrad" or self.lhs is not None
        require(fits, "call_c2", "lhs must have a scheme in wgrad, got none")

    def operand_names(self) -> Names:
        left = ("lhs",) if self.lhs is None else named_parts(self.lhs, "lhs")
        return Names((*left, *named_parts(self.rhs, "rhs"), "ends"))


def _in_groups(copy: CopySlots | None, groups: int, whole: Shape) -> GroupedCopySlots | None:
    if copy is None:
        return None
    return GroupedCopySlots(copy.scheme, copy.columnwise, copy.shape, copy.places, groups, whole)


def _check_groups(groups: int, schemes: tuple[Scheme, ...]) -> None:
    require(groups > 0, "call_c2", f"there must be at least one group, got {groups}")
    built_in = not any(scheme.custom for scheme in schemes)
    require(built_in, "call_c2", "tensors in groups need built-in schemes, got a user's own")
