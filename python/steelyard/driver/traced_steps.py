"""The programs of steps of `generate` that a net which is cut into blocks was seen to run."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from steelyard.driver.block_programs import Owner, TracedProgram, compile_trace, parameters_of_blocks
from steelyard.driver.compile_lock import compile_lock
from steelyard.driver.traces import Trace
from steelyard.errors import UnsupportedModelError
from steelyard.runtime.weights import Found

_MOST = 8


@dataclass(frozen=True, eq=False)
class KnownStep:
    """A step whose program is known."""

    trace: Trace
    """Without its tensors."""
    results: Sequence[int]
    kinds: Sequence[tuple]
    """What the arguments of the program were like."""
    program: TracedProgram
    owners: Sequence[weakref.ref]
    """The parameters that the program is bound to."""
    stamps: Found
    """What tells whether those were written."""

    def fits(self, trace: Trace, results: Sequence[int]) -> bool:
        """Whether a trace is that of such a step, on the same parameters, which nobody wrote since."""
        is_like = self.trace.is_like(trace) and self.results == results
        if not is_like or self.kinds != _kinds(trace, self.program):
            return False
        return self._is_of(self.parameters(trace))

    def is_current(self) -> bool:
        """Whether the parameters are as the program has them."""
        parameters = tuple([parameter for owner in self.owners if (parameter := owner()) is not None])
        return len(parameters) == len(self.owners) and self._is_of(parameters)

    def _is_of(self, parameters: tuple[torch.Tensor, ...]) -> bool:
        is_same = all(owner() is parameter for owner, parameter in zip(self.owners, parameters, strict=True))
        return is_same and self.stamps.holds(parameters)

    def parameters(self, trace: Trace) -> tuple[torch.Tensor, ...]:
        """The parameters that the program is bound to, as a trace has them."""
        return tuple([trace.outside[number] for number in self.program.bound])


class TracedSteps:
    """What a net knows of its steps.

    A program holds the weights that are bound to it, so its step is known until one of the net's weights is made again.
    """

    def __init__(self):
        self._known: list[weakref.ref[KnownStep]] = []

    def find(self, trace: Trace, result: Any, owner: Owner) -> KnownStep:
        """The program of a step, made if none is known; raises `UnsupportedModelError` where it is none."""
        results = trace.numbers_in(result)
        found = self._find(trace, results)
        if found is None:
            with compile_lock():
                # Of threads that come together, the first one makes it.
                found = self._find(trace, results) or self._make(trace, results, owner)
        return found

    @property
    def known(self) -> list[KnownStep]:
        """The steps that are known."""
        return [known for reference in self._known if (known := reference()) is not None]

    def nbytes(self) -> int:
        """Bytes that steps leave to the next ones."""
        return sum(known.program.nbytes() for known in self.known)

    def _find(self, trace: Trace, results: Sequence[int]) -> KnownStep | None:
        return next((known for known in self.known if known.fits(trace, results)), None)

    def _make(self, trace: Trace, results: Sequence[int], owner: Owner) -> KnownStep:
        parameters = [trace.outside[number] for number in parameters_of_blocks(trace)]
        # Before the program is bound to what they are now.
        stamps = owner.weights.stamped(parameters)
        if stamps is None:
            raise UnsupportedModelError("writes to a parameter cannot be told")
        program = compile_trace(trace, results, owner)
        owners = [weakref.ref(parameter) for parameter in parameters]
        made = KnownStep(trace.without_tensors(), results, _kinds(trace, program), program, owners, stamps)
        known = [step for step in self.known if step.is_current()][: _MOST - 1]
        owner.weights.keep_until_change(self, [made, *known])
        self._known = [weakref.ref(step) for step in (made, *known)]
        return made


def _kinds(trace: Trace, program: TracedProgram) -> list[tuple]:
    tensors = [trace.outside[number] for number in program.inputs]
    return [(type(tensor), tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
