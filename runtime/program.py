"""A lowered program: its forward function, and the weights that are quantized outside of it."""

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch
from torch_mlir import ir

from steelyard.passes.functions import STATE, argument_attributes
from steelyard.passes.hoist_weights import SOURCES, WEIGHT
from steelyard.runtime.emitter import emit
from steelyard.runtime.steps import Quantizers
from steelyard.runtime.weights import Make, Weights


@dataclass
class WeightArgument:
    """An argument of `@forward` that is made from others and kept."""

    function: str
    """The IR of the function that makes it."""
    make: Make
    sources: list[int]
    """Which arguments it is made from: the parameter, and its scale where that is state."""


class Program:
    """A module of the IR, ready to run: `@forward`, the functions of its weights, and its state by name.

    `weights` keeps what those functions make; the programs of a net share it.
    """

    def __init__(
        self, module: ir.Module, state: MutableMapping[str, torch.Tensor], quantizers: Quantizers, weights: Weights
    ):
        functions = {ir.StringAttr(op.attributes["sym_name"]).value: op.operation for op in module.body.operations}
        forward = functions["forward"]
        self._run, self.text = emit(forward, quantizers)
        self._state = state
        self._state_names: list[str] = []
        self._weights = weights
        self._weight_arguments: list[WeightArgument] = []
        # Passes append: first come the graph's own arguments, then the state, then the weights.
        for attributes in argument_attributes(forward):
            if STATE in attributes:
                self._state_names.append(ir.StringAttr(attributes[STATE]).value)
            if WEIGHT in attributes:
                name = ir.FlatSymbolRefAttr(attributes[WEIGHT]).value
                make, text = emit(functions[name], quantizers)
                # Its number differs from program to program.
                function = str(functions[name]).replace(f"@{name}(", "@weight(")
                sources = list(ir.DenseI64ArrayAttr(attributes[SOURCES]))
                self._weight_arguments.append(WeightArgument(function, make, sources))
                self.text += f"\n\n{text}"

    def __call__(self, *arguments: torch.Tensor | int) -> tuple:
        arguments += tuple(self._state_tensor(name) for name in self._state_names)
        get = self._weights.get
        weights = [get(w.function, w.make, [arguments[i] for i in w.sources]) for w in self._weight_arguments]
        return self._run(*arguments, *weights)

    def _state_tensor(self, name: str) -> torch.Tensor:
        # Made at the first call and not when compiling, where torch would make a fake tensor of it.
        if name not in self._state:
            self._state[name] = torch.ones(())
        return self._state[name]
