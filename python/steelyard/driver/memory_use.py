"""The memory of a net for a report: what it holds, what calls read, and what lives at each step of its programs."""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.driver.compilation import Compilation
from steelyard.driver.memory import parameter_bytes
from steelyard.insight.report import HeldBytes, MemoryUse
from steelyard.ir.attributes import PARAMETER, PART, WEIGHT
from steelyard.ir.functions import argument_attributes, functions_of
from steelyard.ir.live_bytes import live_steps
from steelyard.ir.renaming import Renaming
from steelyard.ir.saved import byte_size

Part = tuple[str, str, str]
"""The parameter that a weight is quantized from, the part of it, and its type."""


def memory_use(net: Any, high_precision: int) -> MemoryUse:
    """The memory of a net that has run; `high_precision` are the bytes of its parameters before quantization."""
    programs = _Programs(net._steelyard.backend.compilations)
    quantized = programs.quantized_weights()
    parameters = dict(net.named_parameters(remove_duplicate=False))
    read = {id(parameters[name]) for name, _, _ in quantized if name in parameters}
    others = [parameter for parameter in parameters.values() if id(parameter) not in read]
    ops, layers, live = programs.steps()
    return MemoryUse(
        held=[HeldBytes(purpose, size) for purpose, size in net.memory().items()],
        weights=sum(quantized.values()) + parameter_bytes(others)["parameters"],
        weights_high_precision=high_precision,
        ops=ops,
        layers=layers,
        live_bytes=live,
    )


class _Programs:
    """The lowered programs of a net; a graph that was compiled again, for other sizes, counts once."""

    def __init__(self, compilations: Iterable[Compilation]):
        self._current = list({frozenset(row.layer for row in c.rows) or id(c): c for c in compilations}.values())
        context = make_context()
        # Compilations of one source share their module.
        self._modules = {c.source: ir.Module.parse(c.source.stages["lowered"], context) for c in self._current}

    def steps(self) -> tuple[list[str], list[str], list[int]]:
        """The steps of all forwards, then of all backwards in the opposite order: ops, layers and live bytes."""
        forwards = [(compilation, "forward") for compilation in self._current]
        backwards = [(compilation, "backward") for compilation in reversed(self._current)]
        # What is kept for the backwards of other graphs lives, too.
        kept = list(accumulate((sum(c.kept.values()) for c in self._current), initial=0))
        before = dict(zip(self._current, kept, strict=False))
        found = [
            (
                step.op.removeprefix("torch."),
                _renamed(step.layer, compilation.renaming),
                before[compilation] + step.live_bytes,
            )
            for compilation, name in (*forwards, *backwards)
            for function in self._functions(compilation, name)
            for step in live_steps(function)
        ]
        return [op for op, _, _ in found], [layer for _, layer, _ in found], [live for _, _, live in found]

    def quantized_weights(self) -> dict[Part, int]:
        """The bytes of the parts of quantized weights that the programs read."""
        sizes: dict[Part, int] = {}
        for compilation in self._current:
            for name in ("forward", "backward"):
                for function in self._functions(compilation, name):
                    sizes |= _weight_sizes(function, compilation.renaming)
        return sizes

    def _functions(self, compilation: Compilation, name: str) -> list[ir.Operation]:
        functions = functions_of(self._modules[compilation.source].operation)
        return [op for op in functions if ir.StringAttr(op.attributes["sym_name"]).value == name]


def _weight_sizes(function: ir.Operation, renaming: Renaming | None) -> dict[Part, int]:
    """The bytes of each part of a quantized weight that a function takes, if it reads it."""
    sizes: dict[Part, int] = {}
    block = function.regions[0].blocks[0]
    for argument, own in zip(block.arguments, argument_attributes(function), strict=True):
        if WEIGHT in own and PARAMETER in own and any(True for _ in argument.uses):
            name = ir.StringAttr(own[PARAMETER]).value
            key = (name if renaming is None else renaming.parameter(name), str(own.get(PART)), str(argument.type))
            sizes[key] = byte_size(argument.type)
    return sizes


def _renamed(layer: str, renaming: Renaming | None) -> str:
    return layer if renaming is None or not layer else renaming.layer(layer)
