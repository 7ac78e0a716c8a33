"""The programs of steps of `generate` that a net which is cut into blocks was seen to run."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from steelyard.driver.block_programs import BlockProgram, Owner, compile_trace
from steelyard.driver.traces import Trace
from steelyard.errors import UnsupportedModelError
from steelyard.runtime.weights import Found, Weights

_MOST = 8


@dataclass(frozen=True, eq=False)
class KnownStep:
    """A step whose program is known."""

    trace: Trace
    """Without its tensors."""
    results: Sequence[int]
    described: Sequence[tuple]
    """What the arguments of the program were like."""
    program: BlockProgram
    owners: Sequence[weakref.ref]
    """The parameters that the program is bound to."""
    found: Found
    """What those were like."""
    weights: Weights
    changes: int
    """How often weights had been made again."""

    def fits(self, trace: Trace, results: Sequence[int]) -> bool:
        """Whether a trace is that of such a step, on the same parameters, which nobody wrote since."""
        is_like = self.trace.is_like(trace) and self.results == results
        if not is_like or self.described != _described(trace, self.program):
            return False
        parameters = self.parameters(trace)
        is_same = all(owner() is parameter for owner, parameter in zip(self.owners, parameters, strict=True))
        return is_same and self.holds(parameters)

    def parameters(self, trace: Trace) -> tuple[torch.Tensor, ...]:
        """The parameters that the program is bound to, as a trace has them."""
        return tuple([trace.outside[number] for number in self.program.bound])

    def holds(self, parameters: tuple[torch.Tensor, ...]) -> bool:
        """Whether nobody wrote these parameters, and no weight was made again."""
        return self.weights.changes == self.changes and self.found.holds(parameters)


class TracedSteps:
    """What a net knows of its steps."""

    def __init__(self):
        self._known: list[KnownStep] = []

    def find(self, trace: Trace, result: Any, owner: Owner) -> KnownStep:
        """The program of a step, made if none is known; raises `UnsupportedModelError` where it is none."""
        results = trace.numbers_in(result)
        for known in self._known:
            if known.fits(trace, results):
                return known
        made = _make(trace, results, owner)
        # Others may be bound to weights that are no more, and hold them.
        valid = [known for known in self._known if known.changes == made.changes]
        self._known = [made, *valid[: _MOST - 1]]
        return made


def _make(trace: Trace, results: Sequence[int], owner: Owner) -> KnownStep:
    program = compile_trace(trace, results, owner)
    parameters = [trace.outside[number] for number in program.bound]
    found = owner.weights.stamped(parameters)
    if found is None:
        raise UnsupportedModelError("writes to a parameter cannot be told")
    owners = [weakref.ref(parameter) for parameter in parameters]
    described = _described(trace, program)
    steps = trace.without_tensors()
    return KnownStep(steps, results, described, program, owners, found, owner.weights, owner.weights.changes)


def _described(trace: Trace, program: BlockProgram) -> list[tuple]:
    tensors = [trace.outside[number] for number in program.inputs]
    return [(type(tensor), tensor.shape, tensor.dtype) for tensor in tensors]
