"""`net.freeze`: the program of one call, without the checks that find the program of any call.

A call of a net asks torch whether what was captured still holds, and each parameter whether it was written. A frozen
net has the user's word that it does and was not, so that it looks at its arguments alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from steelyard.driver.block_programs import TracedProgram, compile_trace, tapes_text
from steelyard.driver.inference import without_autocast, without_gradients
from steelyard.driver.recording import Ran, recorded_graphs
from steelyard.driver.traces import Trace, traced
from steelyard.errors import UnsupportedModelError, shown

_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)


class FrozenNet:
    """A function of the arguments of one call of a net, which `net.freeze` makes."""

    def __init__(self, inputs: "Inputs", program: "BoundProgram", outputs: "Outputs", tape: str):
        self.tape = tape
        """The native steps that a call runs, as text; those of blocks that are alike stand there once."""
        self._inputs = inputs
        self._program = program
        self._outputs = outputs

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The results for arguments with the shapes, strides, dtypes and numbers that the net was frozen for."""
        leaves = self._inputs.leaves_of(arguments, keywords)
        return self._outputs.of(leaves, self._program.run(leaves))


def freeze(net: Any, arguments: tuple, keywords: dict[str, Any]) -> FrozenNet:
    """What a net does in a call with these arguments, found by calling it twice, with copies of their tensors.

    What is the same tensor in both calls belongs to the net.
    """
    leaves, structure, inputs = _begin(net, arguments, keywords)
    _, first, _ = _record(net, leaves, structure)
    given, ran, result = _record(net, leaves, structure)
    program = program_of(first, ran, given, ran.graph.freeze(ran.arguments))
    outputs = outputs_of(result, given, ran.results[len(ran.graph.written) :])
    return FrozenNet(inputs, program, outputs, tapes_text(ran.graph.program_of(ran.arguments)))


def freeze_blocks(net: Any, arguments: tuple, keywords: dict[str, Any]) -> FrozenNet | None:
    """The same for a net that is cut into blocks, by the programs that these have already.

    None if a call is more than calls of blocks and ops of torch's around them.
    """
    leaves, structure, inputs = _begin(net, arguments, keywords)
    _, first, _ = _trace(net, leaves, structure)
    given, trace, result = _trace(net, leaves, structure)
    if not trace.is_like(first):
        return None
    try:
        made = compile_trace(trace, trace.numbers_in(result), net._steelyard.backend)
        if not owns_the_same(made, first, trace, given):
            return None
        program = program_of_trace(made, trace, given)
        outputs = outputs_of(result, given, [trace.tensor(number) for number in made.outputs])
        return FrozenNet(inputs, program, outputs, made.text)
    except UnsupportedModelError:
        return None


def _begin(net: Any, arguments: tuple, keywords: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec, "Inputs"]:
    """Check the arguments of a call, and have everything compiled that it needs."""
    leaves, structure = _flatten(arguments, keywords)
    inputs = Inputs(structure, [describe(leaf) for leaf in leaves])
    own_arguments, own_keywords = pytree.tree_unflatten(_copies(leaves), structure)
    net.lower(*own_arguments, **own_keywords)
    return leaves, structure, inputs


def _flatten(arguments: tuple, keywords: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    """The arguments of a call, whatever the order of its keywords."""
    return pytree.tree_flatten((arguments, dict(sorted(keywords.items()))))


def owns_the_same(made: TracedProgram, first: Trace, trace: Trace, leaves: Sequence[Any]) -> bool:
    """Whether an earlier trace had the same tensors where a program reads others than a call was given."""
    numbers = [number for number in made.inputs if _index_of(trace.outside[number], leaves) is None]
    return all(first.outside[number] is trace.outside[number] for number in (*numbers, *made.bound))


def outputs_of(result: Any, leaves: Sequence[Any], computed: Sequence[Any]) -> "Outputs":
    """Where what a call returned comes from: these arguments, or what its program computed."""
    returned, structure = pytree.tree_flatten(result)
    return Outputs(structure, [_place(value, leaves, computed) for value in returned])


def _trace(net: Any, leaves: list[Any], structure: pytree.TreeSpec) -> tuple[list[Any], Trace, Any]:
    """A call of a net that is cut into blocks: what it was given, what it ran, and what it returned."""
    given = _copies(leaves)
    arguments, keywords = pytree.tree_unflatten(given, structure)
    with traced() as trace:
        result = net(*arguments, **keywords)
    return given, trace, result


def _record(net: Any, leaves: list[Any], structure: pytree.TreeSpec) -> tuple[list[Any], Ran, Any]:
    """A call of a net: what it was given, what ran, and what it returned."""
    given = _copies(leaves)
    arguments, keywords = pytree.tree_unflatten(given, structure)
    with recorded_graphs() as found:
        result = net(*arguments, **keywords)
    ran = _only(found.runs)
    if found.has_breaks:
        raise UnsupportedModelError(
            "a call that is frozen must be one graph, and torch breaks this one to run Python, which may read values; "
            "torch._dynamo.explain shows where. Remove the break, or freeze a part that is compiled by itself"
        )
    return given, ran, result


def _copies(leaves: list[Any]) -> list[Any]:
    """Arguments with tensors of their own, in the same strides."""

    def copy(leaf: torch.Tensor) -> torch.Tensor:
        # Of an expanded dim, the one entry that there is.
        own = leaf.detach()[tuple([slice(None) if stride else slice(1) for stride in leaf.stride()])]
        return torch.empty_strided(own.shape, own.stride(), dtype=leaf.dtype).copy_(own).expand(leaf.shape)

    return [copy(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _only(runs: list[Ran]) -> Ran:
    """The one graph of a call."""
    if len(runs) != 1:
        raise UnsupportedModelError(
            f"a call that is frozen must be one graph, and {len(runs)} ran; net.explain() shows what ran between them. "
            "Make the model's forward one graph, or freeze a part of it that is compiled by itself"
        )
    return runs[0]


@dataclass(frozen=True)
class _Tensor:
    """A tensor among the arguments, without its values."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def fits(self, value: Any) -> bool:
        """Whether a value is such a tensor."""
        return (
            isinstance(value, torch.Tensor)
            and value.shape == self.shape
            and value.dtype is self.dtype
            and value.stride() == self.stride
            and value.is_cpu
        )

    def __str__(self) -> str:
        return f"a CPU tensor of {self.dtype} with shape {tuple(self.shape)} and strides {self.stride}"


@dataclass(frozen=True)
class _Constant:
    """An argument that is no tensor."""

    value: Any

    def fits(self, value: Any) -> bool:
        """Whether a value is the same."""
        return type(value) is type(self.value) and value == self.value

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class _Object:
    """An argument that must be this very object."""

    value: Any

    def fits(self, value: Any) -> bool:
        """Whether it is."""
        return value is self.value

    def __str__(self) -> str:
        return f"the same {type(self.value).__name__}"


Described = _Tensor | _Constant | _Object


def describe(leaf: Any, kept: Sequence[Any] = ()) -> Described:
    """What an argument must be like; what is `kept` must be the same object."""
    if _index_of(leaf, kept) is not None:
        return _Object(leaf)
    is_plain = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.is_cpu and not leaf.is_nested
    if is_plain:
        return _Tensor(leaf.shape, leaf.stride(), leaf.dtype)
    if isinstance(leaf, _CONSTANTS):
        return _Constant(leaf)
    raise UnsupportedModelError(
        "the arguments of a frozen net must be dense tensors on the CPU, numbers, text or None, also in lists and "
        f"dicts, got {shown(leaf)}; pass the tensors that it holds"
    )


class Inputs:
    """What the arguments must be like."""

    def __init__(self, structure: pytree.TreeSpec, expected: list[Described]):
        self._structure = structure
        self._expected = expected
        self._is_flat = structure == pytree.tree_structure(((0,) * len(expected), {}))

    def leaves_of(self, arguments: tuple, keywords: dict[str, Any]) -> Sequence[Any]:
        """The tensors and constants of a call, in order; raises `UnsupportedModelError` if one does not fit."""
        expected = self._expected
        is_flat = self._is_flat and not keywords and len(arguments) == len(expected)
        leaves = arguments if is_flat else self._flatten(arguments, keywords)
        for number, leaf in enumerate(leaves):
            if not expected[number].fits(leaf):
                raise UnsupportedModelError(
                    f"argument {number} of a frozen net must be {expected[number]}, got {_found(leaf)}; freeze the net "
                    "for such arguments, or call the net itself"
                )
        return leaves

    def fit(self, leaves: Sequence[Any]) -> bool:
        """Whether the tensors and constants of a call fit."""
        return len(leaves) == len(self._expected) and all(
            one.fits(leaf) for one, leaf in zip(self._expected, leaves, strict=True)
        )

    def _flatten(self, arguments: tuple, keywords: dict[str, Any]) -> list[Any]:
        leaves, structure = _flatten(arguments, keywords)
        if structure != self._structure:
            raise UnsupportedModelError(
                f"a frozen net takes arguments as it was frozen for, {self._structure}, got {structure}; freeze the "
                "net for these"
            )
        return leaves


def _found(leaf: Any) -> str:
    try:
        return str(describe(leaf))
    except UnsupportedModelError:
        return shown(leaf)


class BoundProgram(NamedTuple):
    """A graph with the net's own tensors as its arguments."""

    graph: Callable[[tuple], tuple]
    values: list[Any]
    """Its arguments; those that a call gives are None."""
    places: list[tuple[int, int]]
    """Which arguments of the graph are which of a call."""
    written: tuple[int, ...]
    """Arguments of the graph that it has new values for, its first results."""

    def run(self, leaves: Sequence[Any]) -> tuple:
        """The results for the arguments of a call."""
        values = self.values.copy()
        for place, leaf in self.places:
            values[place] = leaves[leaf]
        results = without_gradients(self.graph, tuple(values))
        for position, place in enumerate(self.written):
            values[place].copy_(results[position])
        return results[len(self.written) :]


def program_of(first: Ran, ran: Ran, leaves: Sequence[Any], run: Callable[[tuple], tuple]) -> BoundProgram:
    """What a graph reads, the arguments of a call, or what was the same in an earlier call; `run` runs it."""
    if ran.graph.written is None:
        raise UnsupportedModelError(
            "a call that is frozen must only compute its results and write to its arguments, and this one also returns "
            "views of them or changes their shapes; return copies instead"
        )
    values: list[Any] = list(ran.arguments)
    places = []
    for place, (earlier, value) in enumerate(zip(first.arguments, ran.arguments, strict=True)):
        leaf = _index_of(value, leaves) if isinstance(value, torch.Tensor) else None
        if leaf is not None:
            places.append((place, leaf))
            values[place] = None
        elif earlier is not value and (isinstance(value, torch.Tensor) or earlier != value):
            raise UnsupportedModelError(
                "a call that is frozen must be one graph from its arguments to its results, and its graph reads "
                f"{shown(value)}, which is made before it; net.explain() shows what runs outside of graphs"
            )
    return BoundProgram(without_autocast(run), values, places, ran.graph.written)


def program_of_trace(made: TracedProgram, trace: Trace, leaves: Sequence[Any]) -> BoundProgram:
    """A program of a trace with the tensors that its call was given, or that the net owns, as its arguments."""
    values: list[Any] = [*(trace.outside[number] for number in made.inputs), *made.held]
    found = [(place, leaf) for place, value in enumerate(values) if (leaf := _index_of(value, leaves)) is not None]
    for place, _ in found:
        values[place] = None
    return BoundProgram(without_autocast(made.program.freeze(tuple(values))), values, found, made.written)


class _Place(NamedTuple):
    """Where something that a call returns comes from: an argument, a result of the graph, or nowhere."""

    argument: int | None = None
    result: int | None = None
    constant: Any = None


def _place(value: Any, leaves: Sequence[Any], results: Sequence[Any]) -> _Place:
    if isinstance(value, _CONSTANTS):
        return _Place(constant=value)
    result = _index_of(value, results)
    if result is not None:
        return _Place(result=result)
    argument = _index_of(value, leaves)
    if argument is not None:
        return _Place(argument=argument)
    if not isinstance(value, torch.Tensor):
        raise UnsupportedModelError(
            "a call that is frozen must return tensors, numbers and text, also in lists and dicts, and this one "
            f"returns {shown(value)}, which holds what the first call made; leave it out (a language model's cache by "
            "use_cache=False), or return the tensors that it holds"
        )
    raise UnsupportedModelError(
        "a call that is frozen must return what its graph computes, and this one returns a tensor that is made after "
        "it, or a parameter; net.explain() shows what runs outside of graphs"
    )


def _index_of(value: Any, values: Sequence[Any]) -> int | None:
    return next((i for i, other in enumerate(values) if other is value), None)


class Outputs:
    """What a call returns."""

    def __init__(self, structure: pytree.TreeSpec, places: list[_Place]):
        self._structure = structure
        self._places = places
        self._only = places[0].result if structure == pytree.tree_structure(0) else None
        """Which result of the graph is all that a call returns."""

    def of(self, leaves: Sequence[Any], results: tuple) -> Any:
        """What a call returns, from its arguments and the results of its graph."""
        if self._only is not None:
            return results[self._only]
        found = [_read(place, leaves, results) for place in self._places]
        return pytree.tree_unflatten(found, self._structure)


def _read(place: _Place, leaves: Sequence[Any], results: tuple) -> Any:
    if place.result is not None:
        return results[place.result]
    return place.constant if place.argument is None else leaves[place.argument]
