"""Calls of elementwise programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from steelyard.dialect.base import require
from steelyard.formats.elementwise import OUT, Program, parse
from steelyard.ir.kernel_calls.base import SIZE, KernelCall, Names


@dataclass(frozen=True, kw_only=True)
class ElementwiseCall(KernelCall):
    """What a program of `steelyard.formats.elementwise` makes of its operands, element by element.

    Constraints, beside those of all calls:
    - elementwise_c1: the program is spelled as its grammar says
    - elementwise_c2: its loops are within the tensors, and of types and numbers of steps that kernels have room for
    - elementwise_c3: `dense` names operands of known sizes, each once, whose elements lie in memory in their order
    - elementwise_c4: the call has one size for each size of the result that is not known, in their order
    """

    OPERATION: ClassVar[str] = "elementwise"

    program: tuple[str, ...]
    """Its lines."""
    dense: tuple[str, ...] = ()
    """Operands that kernels read by their address alone."""

    @cached_property
    def parsed(self) -> Program:
        """The program that its lines spell."""
        return parse(self.program)

    @cached_property
    def shapes(self) -> dict[str, tuple[int | None, ...]]:
        """The shape of each tensor of the program, by its name there."""
        return {name: self._tensor(position).shape for name, position in self._places.items()}

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each tensor of the program, by its name there."""
        return {name: self._tensor(position).dtype for name, position in self._places.items()}

    def _part_positions(self) -> frozenset[int]:
        """Those that kernels take as addresses: the result lies in order too."""
        return frozenset(self._places[name] for name in self.addressed)

    @cached_property
    def addressed(self) -> tuple[str, ...]:
        """The tensors that kernels take as addresses, by their names in the program."""
        return self.dense if None in self.shapes[OUT] else (*self.dense, OUT)

    @property
    def _places(self) -> dict[str, int]:
        names = [slot.name for slot in self.operands[: self.sizes.start]]
        return {**{name: index for index, name in enumerate(names)}, OUT: len(self.operands)}

    def operand_names(self) -> Names:
        names = [slot.name for slot in self.operands if slot.name != SIZE]
        return Names(tuple(f"in{index}" for index in range(len(names))))

    def check(self) -> None:
        super().check()
        sizes = self.sizes.stop - self.sizes.start
        self.parsed.check(self.shapes, self.dtypes, sizes)
        fits = all(self._is_known(name) for name in self.dense) and len(set(self.dense)) == len(self.dense)
        require(fits, "elementwise_c3", f"dense must name operands of known sizes, each once, got {self.dense}")
        unknown = list(self.shapes[OUT]).count(None)
        message = f"there must be {unknown} sizes, one for each of the result's that is not known, got {sizes}"
        require(unknown == sizes, "elementwise_c4", message)

    def _is_known(self, name: str) -> bool:
        shape: Sequence[int | None] = self.shapes.get(name, (None,))
        return name != OUT and None not in shape
