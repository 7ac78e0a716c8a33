"""Graphs with gradients: the joint graph of a forward and its backward becomes one program.

AOTAutograd asks a partitioner for two graphs. It gets two thin graphs that only declare what the forward saves for the
backward: the program runs instead of them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import GradAOTOutput
from torch._functorch.partitioners import cleanup_recompute_tags
from torch._guards import TracingContext
from torch_mlir import ir

from steelyard.driver.captured import CapturedGraph
from steelyard.errors import UnsupportedModelError
from steelyard.frontend.importer import lift_constants
from steelyard.ir.attributes import GRADIENT, TANGENT
from steelyard.runtime.cuda.devices import device_among
from steelyard.runtime.program import Program, SavedTensor


class JointGraph:
    """The graph of a forward and its backward, without the gradients that are None."""

    def __init__(self, module: torch.fx.GraphModule, forward_outputs: int):
        # Checkpointed regions save what they read from outside.
        module = cleanup_recompute_tags(module, is_default_partition=True)
        self.module = module
        self.graph = module.graph
        self.constants = lift_constants(module)
        self.forward_outputs = forward_outputs
        self.placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        self.tangents = [node for node in self.placeholders if node.name.startswith("tangents")]
        self.primals = self.placeholders[: len(self.placeholders) - len(self.tangents) - len(self.constants)]
        self._output = next(node for node in self.graph.nodes if node.op == "output")
        self.outputs = list(self._output.args[0])
        self.gradients = self.outputs[forward_outputs:]
        self._descriptions = list(self._output.meta.get("desc", ()))[forward_outputs:]

    def drop_missing_gradients(self) -> None:
        """Drop None from the outputs: the importer has no type for it."""
        self._output.args = (tuple(node for node in self.outputs if node is not None),)

    def mark(self, function: ir.Operation, parameters: Sequence[str | None]) -> None:
        """Mark in the imported function which arguments are tangents and which results are gradients."""
        known = [dict(_entries(one)) for one in ir.ArrayAttr(function.attributes["arg_attrs"])]
        for placeholder, attributes in zip(self.placeholders, known, strict=True):
            if placeholder in self.tangents:
                attributes[TANGENT] = ir.UnitAttr.get()
        function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in known])
        kept = [node for node in self.outputs[: self.forward_outputs] if node is not None]
        results: list[dict[str, ir.Attribute]] = [{} for _ in kept]
        for gradient, name in zip(self.gradients, self._gradient_names(parameters), strict=True):
            if gradient is not None:
                results.append({GRADIENT: ir.StringAttr.get(name)})
        function.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in results])

    def _gradient_names(self, parameters: Sequence[str | None]) -> list[str]:
        """What each gradient belongs to: a parameter, or an input by its number."""
        names = []
        for position in range(len(self.gradients)):
            description = self._descriptions[position] if position < len(self._descriptions) else None
            index = position
            if isinstance(description, GradAOTOutput):
                index = getattr(description.grad_of, "idx", position)
            name = parameters[index] if index < len(parameters) else None
            names.append(name or f"input {index}")
        return names


def _entries(attribute: ir.Attribute) -> list[tuple[str, ir.Attribute]]:
    return [(entry.name, entry.attr) for entry in ir.DictAttr(attribute)]


_NUMBER = SavedTensor((), torch.int64)
"""The number of the program that a forward was: its backward must be of the same."""


def make_thin_graphs(joint: JointGraph, program: Program) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The two graphs that AOTAutograd wants: a forward to outputs, saved values and sizes, and its backward."""
    device = device_among(node.meta["val"] for node in joint.primals)
    saved = [*(_fake_like(tensor, device) for tensor in program.saved), _fake_like(_NUMBER, None)]
    primals = [joint.primals[i] for i in _kept_primals(joint, program)]
    tensors = [node for node in primals if isinstance(node.meta["val"], torch.Tensor)]
    sizes = [node for node in primals if not isinstance(node.meta["val"], torch.Tensor)]
    return _thin_forward(joint, saved, tensors, sizes), _thin_backward(joint, saved, tensors, sizes)


def _thin_forward(joint: JointGraph, saved: list, tensors: list, sizes: list) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies = {node: _placeholder(graph, node.name, node.meta) for node in joint.primals}
    call = graph.call_function(_unreachable, tuple(copies.values()))
    outputs = [None if node is None else _item(graph, call, node.meta.get("val")) for node in _forward_outputs(joint)]
    kept = [_item(graph, call, value) for value in saved]
    output = graph.output((*outputs, *kept, *(copies[node] for node in tensors), *(copies[node] for node in sizes)))
    output.meta["desc"] = []
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _forward_outputs(joint: JointGraph) -> list:
    return joint.outputs[: joint.forward_outputs]


def _thin_backward(joint: JointGraph, saved: list, tensors: list, sizes: list) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    arguments = [_placeholder(graph, node.name, node.meta) for node in sizes]
    arguments += [_placeholder(graph, f"saved_{i}", {"val": value}) for i, value in enumerate(saved)]
    arguments += [_placeholder(graph, node.name, node.meta) for node in tensors]
    arguments += [_placeholder(graph, node.name, node.meta) for node in joint.tangents]
    call = graph.call_function(_unreachable, tuple(arguments))
    outputs = [None if node is None else _item(graph, call, node.meta.get("val")) for node in joint.gradients]
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _placeholder(graph: torch.fx.Graph, name: str, meta: dict) -> torch.fx.Node:
    node = graph.placeholder(name)
    node.meta = {key: meta[key] for key in ("val", "tensor_meta", "desc") if key in meta}
    return node


def _item(graph: torch.fx.Graph, call: torch.fx.Node, value: Any) -> torch.fx.Node:
    node = graph.call_function(_unreachable, (call,))
    node.meta["val"] = value
    return node


def _unreachable(*_):
    raise AssertionError("a program must run instead of this graph")


def _fake_like(saved: SavedTensor, device: torch.device | None) -> torch.Tensor:
    """A tensor without memory; sizes known only at run time do not matter here."""
    context = TracingContext.try_get()
    assert context is not None
    assert context.fake_mode is not None
    with context.fake_mode:
        return torch.empty(_sizes_of(saved), dtype=saved.dtype, device=device)


def _sizes_of(saved: SavedTensor) -> list[int]:
    return [1 if size is None else size for size in saved.shape]


def run_graph(module: torch.fx.GraphModule, values: Sequence[Any], outputs: int | None = None) -> tuple:
    """Run a graph of ATen ops by torch itself, and return its first outputs."""
    graph = torch.fx.Graph()
    copied = graph.graph_copy(module.graph, {})
    graph.output(tuple(copied[:outputs]))  # pyright: ignore[reportIndexIssue, reportOptionalSubscript, reportArgumentType]
    graph.eliminate_dead_code()
    return torch.fx.Interpreter(torch.fx.GraphModule(module, graph)).run(*values)


def _kept_primals(joint: JointGraph, program: Program) -> list[int]:
    """The primals that the backward takes, without constants."""
    return [i for i in program.primals if i < len(joint.primals)]


def _is_view(value: Any) -> bool:
    return type(value) is torch.Tensor and value._is_view()


def _memory(value: Any) -> int:
    return value.untyped_storage().data_ptr() if type(value) in (torch.Tensor, torch.nn.Parameter) else 0


class JointPrograms:
    """Runs the program of a joint graph as AOTAutograd calls its two graphs."""

    def __init__(self, joint: JointGraph, captured: CapturedGraph, runs_by_torch: Callable[[Program, Sequence], bool]):
        self._captured = captured
        self._joint = joint
        self._runs_by_torch = runs_by_torch
        first = captured.first
        self._saved = first.saved
        self._primals = first.primals
        self._programs: list[Program] = []
        self._numbers: dict[Program, torch.Tensor] = {}
        """The number of each program, as a value that is saved for the backward."""
        self._constants = joint.constants
        self._kept = kept = _kept_primals(joint, first)
        self._is_tensor = [isinstance(joint.primals[i].meta["val"], torch.Tensor) for i in kept]
        self._kept_constants = [joint.constants[i - len(joint.primals)] for i in first.primals[len(kept) :]]
        pairs = list(zip(kept, self._is_tensor, strict=True))
        self._tensors = [number for number, is_tensor in pairs if is_tensor]
        self._sizes = [number for number, is_tensor in pairs if not is_tensor]
        self._missing_outputs = [i for i, node in enumerate(_forward_outputs(joint)) if node is None]
        self._has_gradient = [node is not None for node in joint.gradients]
        self._views: list[int] | None = None
        """Outputs that are views of memory which nothing else is in; known after the first call."""

    def forward(self, values: Sequence[Any]) -> tuple:
        """Returns outputs, saved values, saved arguments and sizes."""
        program = self._captured.find(values)
        number = self._numbers.get(program)
        if number is None:
            number = self._number(program)
        if self._runs_by_torch(program, values):
            results = self._run_by_torch(program, values)
        else:
            results = self._without_views(program(*values, *self._constants), values)
        for position in self._missing_outputs:
            results.insert(position, None)
        return (*results, number, *(values[i] for i in self._tensors), *(values[i] for i in self._sizes))

    def _without_views(self, results: Sequence[Any], values: Sequence[Any]) -> list:
        """The results; autograd lets nobody write an output that is a view, such as a product in its final shape.

        Where something else is in the same memory, such as a saved value, a view it stays: only the counter of writes
        that they share tells whether that was overwritten.
        """
        results = list(results)
        if self._views is None:
            outputs = self._joint.forward_outputs - len(self._missing_outputs)
            known = {id(value): value for value in (*results, *values, *self._constants)}
            owners = Counter(map(_memory, known.values()))
            views = [i for i, result in enumerate(results[:outputs]) if _is_view(result)]
            self._views = [i for i in views if owners[_memory(results[i])] == 1]
        for i in self._views:
            view = results[i]
            alone = torch.empty(0, dtype=view.dtype, device=view.device)
            results[i] = alone.set_(view.untyped_storage(), view.storage_offset(), view.size(), view.stride())
        return results

    def _run_by_torch(self, program: Program, values: Sequence[Any]) -> list:
        """The outputs computed by torch, and placeholders for saved values: this backward is never called."""
        joint = self._joint
        count = joint.forward_outputs - len(self._missing_outputs)
        given, constants = iter(values), iter(self._constants)
        primals, tangents = set(joint.primals), set(joint.tangents)
        arguments = [
            None if node in tangents else next(given if node in primals else constants) for node in joint.placeholders
        ]
        results = run_graph(joint.module, arguments, count)
        return [*results, *(torch.empty(_sizes_of(saved), dtype=saved.dtype) for saved in program.saved)]

    def backward(self, values: list[Any]) -> tuple:
        """From sizes, saved values, saved arguments and tangents to gradients.

        The list is emptied: what the forward saved is freed as the backward goes, where nobody else holds it.
        """
        number = len(self._sizes) + len(self._saved)
        first = number + 1
        last = first + len(self._tensors)
        sizes, tensors = iter(values[: len(self._sizes)]), iter(values[first:last])
        primals = [next(tensors) if is_tensor else next(sizes) for is_tensor in self._is_tensor]
        program = self._programs[values[number].item()]
        given = [*values[len(self._sizes) : number], *primals, *self._kept_constants, *values[last:]]
        values.clear()
        found = iter(program.backward(given))
        return tuple([next(found) if has_gradient else None for has_gradient in self._has_gradient])

    def _number(self, program: Program) -> torch.Tensor:
        """A number for a program that runs for the first time, if it saves the same values as the others."""
        if program.saved != self._saved or program.primals != self._primals:
            raise UnsupportedModelError(
                "in training, layers of the same code after a graph break must be quantized alike, got overrides for "
                "some of them; remove the graph break (torch.compile with fullgraph=True names it) or the override"
            )
        self._programs.append(program)
        # The values that a backward reads may not come from inference mode.
        with torch.inference_mode(False):
            return self._numbers.setdefault(program, torch.tensor(self._programs.index(program)))
