"""What a call of a net runs, in order: the graphs of its blocks, and torch's ops around them.

Two calls that left the same trace, on tensors of the same kinds, did the same: what they were given, what the net owns,
and what they computed is told apart by number.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from steelyard.driver.recording import noted_by
from steelyard.frontend.flops import work_of

_COPY = torch.ops.aten.copy_.default
_INDEX = torch.ops.aten.index.Tensor
_MASKS = (torch.bool, torch.uint8)
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_READS = ("tolist", "numpy", "__array__", "data_ptr", "__dlpack__")
"""Methods of tensors that read values without an op."""


class Ref(NamedTuple):
    """A tensor, by its number in the trace."""

    number: int


class OpRun(NamedTuple):
    """A run of an op of torch's."""

    op: Any
    arguments: tuple[Any, ...]
    """The leaves of its arguments: tensors by number, and constants."""
    structure: pytree.TreeSpec
    results: tuple[int, ...]
    """The numbers of what it made."""
    several: type[list] | type[tuple] | None
    """What its tensors come in; None of one tensor by itself."""


class GraphRun(NamedTuple):
    """A run of a graph that was compiled."""

    graph: Any
    arguments: tuple[Any, ...]
    results: tuple[int, ...]


Step = OpRun | GraphRun


@dataclass
class Trace:
    """The steps of a call."""

    steps: list[Step] = field(default_factory=list)
    outside: dict[int, torch.Tensor] = field(default_factory=dict)
    """By number: tensors that were there before the call."""
    copies: dict[int, int] = field(default_factory=dict)
    """Which of those were overwritten in the end, and by what."""
    refusal: str = ""
    """Why the trace is not all that happened; empty where it is."""
    constants: set[int] = field(default_factory=set)
    """What follows from nothing that a call is given or the net owns, such as the positions of tokens."""
    _numbers: dict[int, int] = field(default_factory=dict)
    _kept: list[torch.Tensor] = field(default_factory=list)
    """All tensors of the call, so that no other one gets the id of one."""
    _versions: list[int | None] = field(default_factory=list)
    """How often each was written when a step last did so; None where nobody counts."""

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor; None if the call did not see it."""
        return self._numbers.get(id(tensor))

    def tensor(self, number: int) -> torch.Tensor:
        """The tensor with a number."""
        return self._kept[number]

    def numbers_in(self, result: Any) -> list[int]:
        """The numbers of the tensors that a call returned."""
        returned = [value for value in pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]
        return [number for value in returned if (number := self.number(value)) is not None]

    def without_tensors(self) -> "Trace":
        """The steps only."""
        return Trace(self.steps, copies=self.copies, refusal=self.refusal)

    def is_like(self, other: "Trace") -> bool:
        """Whether another call did the same."""
        return self.steps == other.steps and self.copies == other.copies and not (self.refusal or other.refusal)

    def has_parameters_of(self, other: "Trace") -> bool:
        """Whether a call that did the same did it with the same parameters."""
        owned = [number for number, tensor in self.outside.items() if isinstance(tensor, torch.nn.Parameter)]
        return all(self.outside[number] is other.outside.get(number) for number in owned)

    def read(self, tensor: torch.Tensor) -> Ref:
        """The number of a tensor that is read."""
        known = self._numbers.get(id(tensor))
        if known is None:
            known = self._new(tensor)
            self.outside[known] = tensor
        return Ref(known)

    def make(self, tensor: torch.Tensor) -> int:
        """The number of a tensor that a step returned: it may be one that it was given."""
        known = self._numbers.get(id(tensor))
        return self._new(tensor) if known is None else known

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Note that a tensor from outside was overwritten, once, by what a step made.

        From here on it has the number of that: what reads it later reads the new values.
        """
        place, value = self.read(target).number, self.read(source).number
        self.wrote(place)
        if place == value:
            return
        if place not in self.outside or target.shape != source.shape or target.dtype != source.dtype:
            self.refuse("it writes into a tensor that it made, or into a part of one")
        if value in self.outside:
            self.refuse("it copies a tensor that it did not make")
        self.copies[place] = value
        self._numbers[id(target)] = value

    def storages(self) -> dict[int, int]:
        """By number, what tells the memory of each tensor of the call."""
        return {number: tensor.untyped_storage()._cdata for number, tensor in enumerate(self._kept)}

    def wrote(self, number: int) -> None:
        """Note that a step wrote a tensor."""
        self._versions[number] = _version(self._kept[number])

    def is_written_unseen(self) -> bool:
        """Whether something else than a step wrote a tensor of the call, such as code that torch compiled."""
        return any(_version(x) != version for x, version in zip(self._kept, self._versions, strict=True))

    def refuse(self, reason: str) -> None:
        """Say why this is not all that happened."""
        self.refusal = self.refusal or reason

    def _new(self, tensor: torch.Tensor) -> int:
        number = len(self._kept)
        self._kept.append(tensor)
        self._versions.append(_version(tensor))
        self._numbers[id(tensor)] = number
        return number


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


@contextmanager
def traced() -> Iterator[Trace]:
    """A context that traces a call."""
    trace = Trace()

    def note(graph: Any, arguments: tuple) -> tuple:
        with _disable_current_modes():
            results = graph.run(arguments)
        # Parameters are bound to graphs, whatever holds them; all else is read by native steps.
        _refuse_unknown(trace, [x for x in arguments if not isinstance(x, torch.nn.Parameter)])
        _refuse_unknown(trace, results, may_be_numbers=False)
        if trace.refusal:
            return results
        taken = tuple([trace.read(x) if isinstance(x, torch.Tensor) else x for x in arguments])
        trace.steps.append(GraphRun(graph, taken, tuple([trace.make(x) for x in results])))
        return results

    def call(captured: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
        if not isinstance(_get_current_function_mode(), _Reads):
            trace.refuse("a block is called under a mode of torch's functions")
            return captured.run(*arguments, **keywords)
        first = len(trace.steps)
        # torch looks at modes where it finds compiled code, and would compile it again.
        with _pop_mode_temporarily():
            result = captured.run(*arguments, **keywords)
        # torch copies new values of arguments when the graph has run.
        for number in _written(trace.steps[first:]):
            trace.wrote(number)
        if captured.has_breaks():
            trace.refuse("torch captures a block in several graphs")
        return result

    with noted_by(note, call), _Reads(trace), _Tracer(trace):
        yield trace
    if not trace.refusal:
        _check_writes(trace)


def _refuse_unknown(trace: Trace, values: Sequence[Any], *, may_be_numbers: bool = True) -> None:
    """Refuse a trace in which some of these values are neither plain tensors nor numbers."""
    for value in values:
        if type(value) not in _PLAIN and (isinstance(value, torch.Tensor) or not may_be_numbers):
            trace.refuse(f"a step has a {type(value).__name__}")


class _Reads(TorchFunctionMode):
    """Sees Python read values of tensors."""

    def __init__(self, trace: Trace):
        super().__init__()
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _READS:
            self._trace.refuse(f"Python reads values of a tensor, by {func.__name__}")
        return func(*args, **(kwargs or {}))


class _Tracer(TorchDispatchMode):
    """Sees the ops that torch runs between graphs."""

    supports_higher_order_operators = True

    def __init__(self, trace: Trace):
        super().__init__()
        self._trace = trace

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile under this mode as it does without."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        if FakeTensor not in types:
            self._note(func, args, keywords, result)
        return result

    def _note(self, func: Any, args: tuple, keywords: dict[str, Any], result: Any) -> None:
        trace = self._trace
        if func is _COPY:
            trace.copy(args[0], args[1])
            return
        leaves, structure = pytree.tree_flatten((args, keywords))
        _refuse_unknown(trace, leaves)
        taken = tuple([trace.read(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
        is_constant = trace.constants.issuperset(_refs(taken))
        made = list(result) if isinstance(result, list | tuple) else [result]
        if is_constant and not any(isinstance(value, torch.Tensor) for value in made):
            return
        reason = _reason_against(func, args, keywords, result, made)
        if reason:
            trace.refuse(reason)
            return
        results = tuple([trace.make(tensor) for tensor in made])
        if is_constant:
            trace.constants.update(results)
        several = next((kind for kind in (list, tuple) if isinstance(result, kind)), None)
        trace.steps.append(OpRun(func, taken, structure, results, several))


def _reason_against(func: Any, args: tuple, keywords: dict[str, Any], result: Any, made: list[Any]) -> str:
    """Why an op cannot be a step; empty where it can."""
    if not isinstance(func, torch._ops.OpOverload) or func._schema.is_mutable:
        return f"it runs {func}, which writes"
    if not all(isinstance(tensor, torch.Tensor) for tensor in made):
        return f"it runs {func}, whose result is read in Python"
    if torch.Tag.nondeterministic_seeded in func.tags:
        return f"it runs {func}, which is random"
    if torch.Tag.dynamic_output_shape in func.tags and not _takes_integers(func, args):
        return f"it runs {func}, whose sizes depend on values"
    if work_of(func, args, keywords, result) is not None:
        return f"it runs {func}, a product"
    return ""


def _takes_integers(func: Any, args: tuple) -> bool:
    """Whether an op indexes by numbers, and not by a mask: then its sizes are those of the numbers."""
    return func is _INDEX and not any(index is not None and index.dtype in _MASKS for index in args[1])


def _check_writes(trace: Trace) -> None:
    """Refuse a trace where what is written may be read by others than who wrote it, before or after."""
    if any(isinstance(step, GraphRun) and step.graph.written is None for step in trace.steps):
        trace.refuse("a graph returns views of its arguments")
        return
    if trace.is_written_unseen():
        trace.refuse("code that torch compiled writes a tensor")
        return
    written = _written(trace.steps) | set(trace.copies)
    readers = Counter(number for step in trace.steps for number in {*_refs(step.arguments)})
    readers.update(trace.copies.values())
    if any(readers[number] > 1 for number in written):
        trace.refuse("several steps read a tensor that is written")
    storages = trace.storages()
    owners = Counter(storages.values())
    if any(number not in trace.outside or owners[storages[number]] > 1 for number in written):
        trace.refuse("a tensor that is written shares its memory, or was made by the call")


def _written(steps: Sequence[Step]) -> set[int]:
    """The numbers of tensors that graphs write."""
    calls = [(step, step.graph.written or ()) for step in steps if isinstance(step, GraphRun)]
    return {ref.number for step, places in calls for i in places if isinstance(ref := step.arguments[i], Ref)}


def _refs(values: Sequence[Any]) -> Iterator[int]:
    return (value.number for value in values if isinstance(value, Ref))


def used_steps(trace: Trace, results: Sequence[int]) -> list[Step]:
    """The steps that results, what is overwritten, and graphs, which may write, follow from."""
    needed = {*results, *trace.copies.values()}
    kept: list[Step] = []
    for step in reversed(trace.steps):
        if isinstance(step, GraphRun) or needed.intersection(step.results):
            needed |= {*_refs(step.arguments)}
            kept.append(step)
    return kept[::-1]
