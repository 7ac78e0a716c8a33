"""Programs of whole calls of a net that is cut into blocks, made from what a call was seen to run.

The ops around blocks become a graph of their own, which goes through the passes like any other. It calls the blocks by
number: their programs are compiled already, so that a deep model takes no longer than a shallow one, and each call of a
block is one step of the tape.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.driver.compilation import Compilation
from steelyard.driver.compile_lock import compile_lock
from steelyard.driver.settings import Settings
from steelyard.driver.traces import GraphRun, OpRun, Ref, Step, Trace, used_steps
from steelyard.errors import UnsupportedModelError
from steelyard.frontend.block_calls import call_block
from steelyard.frontend.importer import import_graph
from steelyard.runtime.entry import BlockStep, Entry, Given, block_step
from steelyard.runtime.program import Program
from steelyard.runtime.state import State
from steelyard.runtime.weights import Weights


class Owner(Protocol):
    """The backend of the net that blocks are of."""

    settings: Settings
    state: State
    weights: Weights
    names_by_id: Callable[[], Mapping[int, str]]


@dataclass(frozen=True)
class TracedProgram:
    """A program of a whole call."""

    compilation: Compilation
    program: Program
    inputs: Sequence[int]
    """Which tensors of the trace its arguments are."""
    written: tuple[int, ...]
    """Arguments whose new values are its first results."""
    outputs: Sequence[int]
    """Which tensors of the trace its other results are."""
    held: Sequence[torch.Tensor]
    """Its last arguments: the quantized weights of blocks, and constants."""
    bound: Sequence[int]
    """Which tensors of the trace are the parameters of blocks."""
    blocks: Sequence[BlockStep]
    """What it calls, by number."""

    def nbytes(self) -> int:
        """Bytes that its calls leave to the next ones, in its own memory and in that of blocks."""
        tapes = {id(block.entry): block.entry.tape for block in self.blocks}.values()
        return sum(arenas.nbytes() for arenas in self.program.arenas) + sum(tape.nbytes() for tape in tapes)

    @property
    def text(self) -> str:
        """Its native steps, and those of each block that others are like."""
        alike: dict[int, list[int]] = {}
        for number, block in enumerate(self.blocks):
            alike.setdefault(id(block.entry), []).append(number)
        names = {numbers[0]: ", ".join(f"block {number}" for number in numbers) for numbers in alike.values()}
        own = [f"{names[first]}: {self.blocks[first].entry.text}" for first in names]
        return "\n\n".join([tapes_text(self.program), *own])


def tapes_text(program: Program) -> str:
    """The native steps of a program."""
    return "\n\n".join(text for _, text in program.tapes)


def compile_trace(trace: Trace, results: Sequence[int], owner: Owner) -> TracedProgram:
    """The program of a call that left a trace and returned these tensors.

    The quantized weights of blocks are bound to it as they are now. Raises `UnsupportedModelError` where the call is no
    such program, whatever the reason: the call itself has run.
    """
    if trace.refusal:
        raise UnsupportedModelError(trace.refusal)
    try:
        with compile_lock():
            return _Builder(trace, results, owner).build()
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(f"what runs around blocks is no program: {error}") from error


def parameters_of_blocks(trace: Trace) -> list[int]:
    """Which tensors of a trace are the parameters of blocks."""
    calls = [step for step in trace.steps if isinstance(step, GraphRun)]
    refs = [ref for step in calls for ref in step.arguments if isinstance(ref, Ref)]
    outside = dict.fromkeys(ref.number for ref in refs if ref.number in trace.outside)
    return [number for number in outside if isinstance(trace.outside[number], torch.nn.Parameter)]


class _Block(NamedTuple):
    """A call of a block."""

    step: BlockStep
    operands: list[Ref | torch.Tensor]
    """What the program around it gives to it: what the trace knows, weights and constants."""
    results: list[int]
    """What somebody reads of its results."""


class _Builder:
    def __init__(self, trace: Trace, results: Sequence[int], owner: Owner):
        self._trace = trace
        self._owner = owner
        self._results = list(dict.fromkeys(number for number in results if number not in trace.outside))
        self._steps = used_steps(trace, self._results)
        refs = [ref for step in self._steps for ref in step.arguments if isinstance(ref, Ref)]
        self._needed = {*self._results, *trace.copies.values(), *(ref.number for ref in refs)}
        """The tensors that somebody reads."""
        self._graph = torch.fx.Graph()
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self._nodes: dict[int, torch.fx.Node] = {}
        self._layers: dict[torch.fx.Node, str] = {}
        self._blocks = {id(step): self._block(step) for step in self._steps if isinstance(step, GraphRun)}
        self._steps_of_blocks: list[BlockStep] = []
        self._inputs: list[int] = []
        self._held: dict[int, tuple[torch.Tensor, torch.fx.Node]] = {}
        """Weights and constants of blocks, by id."""

    def build(self) -> TracedProgram:
        """The program of all steps."""
        for number in self._read_by_steps():
            self._take(number)
        for tensor in (x for block in self._blocks.values() for x in block.operands if isinstance(x, torch.Tensor)):
            self._hold(tensor)
        for step in self._steps:
            if isinstance(step, GraphRun):
                self._call(step)
            else:
                self._run(step)
        self._graph.output(tuple([self._nodes[number] for number in (*self._trace.copies.values(), *self._results)]))
        written = tuple([self._inputs.index(number) for number in self._trace.copies])
        compilation = self._compile(written)
        assert compilation.program is not None, "what was compiled has a program"
        return TracedProgram(
            compilation=compilation,
            program=compilation.program,
            inputs=self._inputs,
            written=written,
            outputs=self._results,
            held=[tensor for tensor, _ in self._held.values()],
            bound=parameters_of_blocks(self._trace),
            blocks=self._steps_of_blocks,
        )

    def _block(self, step: GraphRun) -> _Block:
        """What a call of a block is a step of, with its weights."""
        unread = frozenset(i for i, number in enumerate(step.results) if number not in self._needed)
        graph = step.graph.variant(unread, [self._given(value) for value in step.arguments])
        values = tuple([self._trace.outside.get(x.number) if isinstance(x, Ref) else x for x in step.arguments])
        entry, known = graph.entry(values)
        if entry is None:
            raise UnsupportedModelError("a block is more than one tape")
        given = [*step.arguments, *known[len(values) :]]
        operands = [number for number in entry.arguments if isinstance(given[number], Ref | torch.Tensor)]
        results = [number for number in step.results if number in self._needed]
        return _Block(block_step(entry, operands, given), [given[number] for number in operands], results)

    def _given(self, value: Any) -> Any:
        """What a graph was given."""
        return self._trace.tensor(value.number) if isinstance(value, Ref) else value

    def _compile(self, written: tuple[int, ...]) -> Compilation:
        owner = self._owner
        names = owner.names_by_id()
        parameters = [names.get(id(self._trace.outside[number])) for number in self._inputs]
        parameters += [None for _ in self._held]
        # The importer writes some ops again, in the module that owns the graph.
        graph_module = torch.fx.GraphModule(torch.nn.Module(), self._graph)
        module: ir.Module = import_graph(
            graph_module.graph,
            make_context(),
            name="forward",
            layers=self._layers,
            parameters=parameters,
            written=written,
        )
        compilation = Compilation(owner.settings, owner.state, owner.weights, self._steps_of_blocks)
        compilation.run(module)
        return compilation

    def _read_by_steps(self) -> list[int]:
        """The tensors from outside that the program takes, without what it holds."""
        read = [ref.number for step in self._steps for ref in self._operands(step)]
        return list(dict.fromkeys([*(number for number in read if number in self._trace.outside), *self._trace.copies]))

    def _operands(self, step: Step) -> list[Ref]:
        if isinstance(step, GraphRun):
            return [value for value in self._blocks[id(step)].operands if isinstance(value, Ref)]
        return [value for value in step.arguments if isinstance(value, Ref)]

    def _take(self, number: int) -> None:
        self._nodes[number] = self._graph.placeholder(f"input_{number}")
        self._nodes[number].meta["val"] = self._fake(number)
        self._inputs.append(number)

    def _hold(self, tensor: torch.Tensor) -> None:
        if id(tensor) in self._held:
            return
        node = self._graph.placeholder(f"held_{len(self._held)}")
        node.meta["val"] = self._fakes.from_tensor(tensor.detach(), static_shapes=True)
        self._held[id(tensor)] = tensor, node

    def _run(self, step: OpRun) -> None:
        leaves = [self._nodes[leaf.number] if isinstance(leaf, Ref) else leaf for leaf in step.arguments]
        args, keywords = pytree.tree_unflatten(leaves, step.structure)
        self._bind(self._graph.call_function(step.op, args, keywords), step.results, step.several)

    def _call(self, step: GraphRun) -> None:
        """A call of a block."""
        block = self._blocks[id(step)]
        made = _made(step.arguments, block.results, block.step.entry)
        if not made:
            raise UnsupportedModelError("a block makes nothing")
        operands = [
            self._nodes[value.number] if isinstance(value, Ref) else self._held[id(value)][1]
            for value in block.operands
        ]
        node = self._graph.call_function(call_block(len(made)), (len(self._steps_of_blocks), operands))
        self._steps_of_blocks.append(block.step)
        self._layers[node] = step.graph.module_of([self._given(value) for value in step.arguments])
        self._bind(node, made, tuple if len(made) > 1 else None)

    def _bind(self, node: torch.fx.Node, results: Sequence[int], several: type[list] | type[tuple] | None) -> None:
        """Give the results of a node their numbers."""
        fakes = [self._fake(number) for number in results]
        node.meta["val"] = fakes[0] if several is None else several(fakes)
        if several is None:
            self._nodes[results[0]] = node
            return
        for place, (number, fake) in enumerate(zip(results, fakes, strict=True)):
            item = self._graph.call_function(operator.getitem, (node, place))
            item.meta["val"] = fake
            self._nodes[number] = item

    def _fake(self, number: int) -> Any:
        tensor = self._trace.tensor(number)
        return self._fakes.from_tensor(tensor.detach(), static_shapes=True)


def _made(arguments: Sequence[Any], results: Sequence[int], entry: Entry) -> list[int]:
    """The tensors that a block makes, in the order of its tape's results."""
    made: dict[int, int] = {}
    for number, place in zip(results, entry.results, strict=True):
        if isinstance(place, Given):
            is_same = arguments[place.number] == Ref(number)
        else:
            is_same = made.setdefault(place.number, number) == number and Ref(number) not in arguments
        if not is_same:
            raise UnsupportedModelError("a block returns a tensor twice")
    return [made[number] for number in sorted(made)]
