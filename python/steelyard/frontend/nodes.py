"""The import of one FX node, and what is said of one that cannot be imported."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch_mlir import ir
from torch_mlir.extras.fx_importer import GraphNodeImporter

from steelyard.errors import UnsupportedOpError
from steelyard.ir.torch_ops import PYTHON

_TORCH = str(Path(torch.__file__).parent)
_PYTHON_MODULES = {"_operator": "operator", "math": "math", "builtins": "builtins", "torch": "torch"}
# torch-mlir takes it for an overload that has an index for every dim.
_SAME_OPS: dict[Any, Any] = {torch.ops.aten._unsafe_index_put.default: torch.ops.aten.index_put.default}
_NUMBERS = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}
_NUMBERS |= {int: "int", float: "float", bool: "bool"}


class NodeImporter(GraphNodeImporter):
    """Imports nodes one by one, so that a failure names its node. Arithmetic of sizes stays Python's."""

    __slots__ = ("_layers",)

    def __init__(self, *arguments, layers: Mapping[torch.fx.Node, str]):
        super().__init__(*arguments)
        self._layers = layers

    def import_nodes(self, nodes: Iterable[torch.fx.Node], **_) -> None:
        """Import the nodes of a graph."""
        arguments = iter(self._b.arguments)
        for node in nodes:
            if node.op == "placeholder":
                self.bind_node_value(node, next(arguments))
                continue
            try:
                self._import_node(node)
            except Exception as error:
                raise unsupported(node, self._layers.get(node, ""), error) from error

    def _import_node(self, node: torch.fx.Node) -> None:
        node.target = _SAME_OPS.get(node.target, node.target)
        if _is_arithmetic(node):
            self._import_arithmetic(node)
        else:
            super().import_nodes([node])

    def _import_arithmetic(self, node: torch.fx.Node) -> None:
        """A Python function of numbers as `torch.operator "torch.python.<module>.<function>"`.

        torch-mlir knows few of them, and gives some another meaning: the sign of a remainder, the order of a
        comparison.
        """
        target: Any = node.target
        module = _PYTHON_MODULES.get(target.__module__)
        if module is None or node.kwargs:
            raise NotImplementedError(f"the function {target.__module__}.{target.__name__} of numbers is unknown")
        location = self._cc.get_node_location(node) or ir.Location.unknown(self._c)
        # torch.sym_sum takes its numbers as a list.
        numbers = [one for given in node.args for one in (given if isinstance(given, list | tuple) else [given])]
        with location, ir.InsertionPoint(self._b):
            operands = [self._import_argument(location, number) for number in numbers]
            result = ir.Type.parse(f"!torch.{_NUMBERS[type(node.meta['val'])]}")
            name = {"name": ir.StringAttr.get(f"{PYTHON}{module}.{target.__name__}")}
            self.bind_node_value(node, ir.Operation.create("torch.operator", [result], operands, name).result)


def _is_arithmetic(node: torch.fx.Node) -> bool:
    """Whether a node is a Python function whose result is a number known only at run time."""
    if node.op != "call_function" or isinstance(node.target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return False
    return type(node.meta.get("val")) in _NUMBERS


def unsupported(node: torch.fx.Node, layer: str, error: BaseException) -> UnsupportedOpError:
    """The error for a node that cannot be imported."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
    return UnsupportedOpError(_name(node), layer, source_line(lines), _cause(node, error))


def source_line(lines: Sequence[tuple[str, Any]]) -> str:
    """The innermost of some lines that is not torch's own."""
    own = [line for line in lines if not line[0].startswith(_TORCH)] or lines
    return ":".join(map(str, own[-1])) if own else ""


def _cause(node: torch.fx.Node, error: BaseException) -> str:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return "the IR has no op that contains graphs"
    if isinstance(error, KeyError) and isinstance(error.args[0], torch.dtype):
        return f"the IR has no tensors of {error.args[0]}"
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def _name(node: torch.fx.Node) -> str:
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return str(target)
    return target if isinstance(target, str) else f"{target.__module__}.{getattr(target, '__name__', target)}"
