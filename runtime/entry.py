"""The native entry of a function: how another program runs it as one step of its own tape."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch_mlir import ir

from steelyard.dialect.memory import FreeOp
from steelyard.ir.kernel_calls import BlockCall
from steelyard.ir.torch_ops import op_name
from steelyard.ir.view_ops import KEEPS_ORDER, STATIC_CAST
from steelyard.runtime.dtypes import result_dtype, shape_of
from steelyard.runtime.kernels import BoundKernel
from steelyard.runtime.tape import Tape, TapeSteps

_CONSTANTS = ("torch.constant.", "torch.prim.ListConstruct")
_NOWHERE = -1


class Made(NamedTuple):
    """A result that the tape makes."""

    number: int


class Given(NamedTuple):
    """A result that is an argument of the function, which the tape may have written."""

    number: int


@dataclass(frozen=True)
class Entry:
    """The one tape that a function is."""

    tape: Any
    """The native one."""
    text: str
    arena: int
    """Bytes that it works in."""
    arguments: Sequence[int]
    """Which arguments of the function those of the tape are."""
    results: Sequence[Made | Given]
    """What each result of the function is."""


@dataclass(frozen=True)
class BlockStep:
    """A function as a step: which of the tape's arguments the step is given, and what the others are."""

    entry: Entry
    positions: Sequence[int]
    """Of each argument of the tape: which operand of the step it is, or that it is none."""
    known: Sequence[Any]
    """What it is if it is none."""

    def bind(self, call: BlockCall) -> BoundKernel:
        """The kernel that runs it."""
        first = len(call.operands)
        places = [*range(first, first + len(call.results))]
        run = self.entry.tape.as_step(self.entry.arena, self.positions, self.known, places)
        results = [(shape_of(slot.type), result_dtype(slot.type)) for slot in call.results]

        def allocate(*_: Any) -> tuple[torch.Tensor, ...]:
            return tuple([torch.empty([size or 0 for size in shape], dtype=dtype) for shape, dtype in results])

        return BoundKernel(run, allocate)


def block_step(entry: Entry, operands: Sequence[int], arguments: Sequence[Any]) -> BlockStep:
    """A step that runs a function: `operands` says which of its arguments the step is given, in their order."""
    places = {number: place for place, number in enumerate(operands)}
    positions = [places.get(number, _NOWHERE) for number in entry.arguments]
    known = [None if number in places else arguments[number] for number in entry.arguments]
    return BlockStep(entry, positions, known)


def find_entry(
    ops: Sequence[ir.Operation],
    arguments: Sequence[ir.Value],
    tapes: Sequence[tuple[TapeSteps, Tape, Any]],
    arena: int,
) -> Entry | None:
    """The entry of a function with these ops; None if it is more than one tape and views of what that makes."""
    if len(tapes) != 1:
        return None
    ((steps, tape, native),) = tapes
    numbers = {value: number for number, value in enumerate(arguments)}
    if steps.shared or not all(_is_passive(op, steps.ops) for op in ops):
        return None
    if not all(value in numbers for value in tape.arguments) or not _are_in_order(tape):
        return None
    made = {value: number for number, value in enumerate(tape.results)}
    written = dict(steps.written)
    found: list[Made | Given] = []
    for value in ops[-1].operands:
        place = _place_of(value, made, written, numbers)
        if place is None:
            return None
        found.append(place)
    taken = [numbers[value] for value in tape.arguments]
    return Entry(native, str(tape), arena, taken, found)


def _is_passive(op: ir.Operation, steps: Collection[ir.Operation]) -> bool:
    """Whether an op is a step of the tape, or computes nothing."""
    name = op_name(op)
    is_nothing = isinstance(op.opview, FreeOp) or name.startswith(_CONSTANTS) or op.name == "func.return"
    return is_nothing or op in steps or name == STATIC_CAST or name in KEEPS_ORDER


def _are_in_order(tape: Tape) -> bool:
    """Whether the tape makes its results in the order of their dims."""
    results = [result for step in tape.kernels for result in step.results]
    return not any(result.order for result in results if result.is_returned)


def _place_of(
    value: ir.Value,
    made: Mapping[ir.Value, int],
    written: Mapping[ir.Value, ir.Value],
    numbers: Mapping[ir.Value, int],
) -> Made | Given | None:
    """What a result is: made by the tape, also seen in another shape, or an argument; None of anything else."""
    if value in written:
        value = written[value]
    if value in numbers:
        return Given(numbers[value])
    while value not in made:
        owner = value.owner
        if isinstance(owner, ir.Block) or (op_name(owner) not in KEEPS_ORDER and op_name(owner) != STATIC_CAST):
            return None
        value = owner.operands[0]
    return Made(made[value])
