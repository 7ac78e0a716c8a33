"""Graphs that cannot be compiled: torch runs them as they are, with a warning and a row for each of their GEMMs."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from steelyard.driver.explanation import Row
from steelyard.driver.torch_rows import rows_of_call
from steelyard.driver.user_warnings import warn
from steelyard.errors import UnsupportedOpError
from steelyard.frontend.flops import Work, work_of


class GraphsOfTorch:
    """The graphs of a net that torch runs."""

    def __init__(self):
        self.rows: list[Row] = []
        """Their GEMMs."""
        self._warned: set[str] = set()

    def add(self, graph_module: torch.fx.GraphModule, error: Exception, layers: Mapping[torch.fx.Node, str]) -> None:
        """Warn that torch runs a graph, because of an error, and keep a row for each of its GEMMs."""
        reason, detail = _reason(error)
        rows = _find_rows(graph_module, layers, reason)
        self.rows += rows
        if detail in self._warned:
            return
        self._warned.add(detail)
        warn(
            f"{detail}. torch runs the graph around it in high precision, with the {len(rows)} GEMMs that explain() "
            "shows. To keep the others quantized, put the op into a function with @torch.compiler.disable, or express "
            "it by other ops"
        )


def _reason(error: Exception) -> tuple[str, str]:
    """Why torch runs a graph: for a row, and for a warning."""
    if isinstance(error, UnsupportedOpError):
        place = f" at {error.source}" if error.source else ""
        return f"torch runs its graph: {error.op}{place} cannot be compiled", str(error)
    text = next(iter(str(error).strip().splitlines()), "")
    reason = f"torch cannot capture its graph: {type(error).__name__}: {text}"
    return reason, reason.replace("its graph", "a graph of the model")


def _find_rows(graph_module: torch.fx.GraphModule, layers: Mapping[torch.fx.Node, str], reason: str) -> list[Row]:
    """The rows of the GEMMs that a graph runs, found by running it on tensors without memory."""
    found = _Recorder(graph_module, layers, reason)
    values = _arguments(graph_module)
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    try:
        if mode is not None:
            with mode, _Watch(found):
                found.run(*values)
    except Exception:
        # What cannot run without memory has no sizes to show; the rows so far and this one say that it is there.
        found.add_unknown()
    return found.rows


def _arguments(graph_module: torch.fx.GraphModule) -> list[Any]:
    return [node.meta.get("example_value") for node in graph_module.graph.nodes if node.op == "placeholder"]


class _Recorder(torch.fx.Interpreter):
    """Runs a graph, and knows which layer it is in."""

    def __init__(self, graph_module: torch.fx.GraphModule, layers: Mapping[torch.fx.Node, str], reason: str):
        super().__init__(graph_module)
        self.rows: list[Row] = []
        self._layers = layers
        self._reason = reason
        self._layer = ""

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node; each graph that an op contains, such as the branches of `torch.cond`, is run once."""
        self._layer = self._layers.get(n, self._layer)
        if not isinstance(n.target, torch._ops.HigherOrderOperator):
            return super().run_node(n)
        arguments, _ = self.fetch_args_kwargs_from_env(n)
        for inner in (one for one in arguments if isinstance(one, torch.fx.GraphModule)):
            torch.fx.Interpreter(inner).run(*_arguments(inner))
        return n.meta["example_value"]

    def add(self, op: Any, work: Work, arguments: Sequence[Any]) -> None:
        """The rows of an op: its own, and those of the gradients that torch will compute."""
        with_gradients = torch.is_grad_enabled()
        self.rows += rows_of_call(self._layer, op, work, arguments, self._reason, with_gradients=with_gradients)

    def add_unknown(self) -> None:
        """The row of a part that cannot be looked into."""
        self.rows.append(Row(self._layer, "", "", "", "", "", "", "", "torch", "", "", self._reason))


class _Watch(TorchDispatchMode):
    """Tells a recorder of every product that torch runs."""

    def __init__(self, recorder: _Recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        keywords = kwargs or {}
        result = func(*args, **keywords)
        work = work_of(func, args, keywords, result)
        if work is not None:
            self._recorder.add(func, work, args)
        return result
