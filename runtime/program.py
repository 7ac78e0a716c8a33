"""A lowered program: its forward function, and the weights that are quantized outside of it."""

from collections.abc import MutableMapping

import torch
from torch_mlir import ir

from steelyard.passes.functions import STATE, argument_attributes, functions_of
from steelyard.passes.hoist_weights import SOURCES, WEIGHT
from steelyard.runtime.emitter import Emitter
from steelyard.runtime.kernels import Quantizers
from steelyard.runtime.weights import WeightArgument, Weights


class Program:
    """A module of the IR, ready to run: `@forward`, the functions of its weights, and its state by name.

    `weights` keeps what those functions make; the programs of a net share it.
    """

    def __init__(
        self, module: ir.Module, state: MutableMapping[str, torch.Tensor], quantizers: Quantizers, weights: Weights
    ):
        functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions_of(module.operation)}
        emitter = Emitter(module.operation, quantizers)
        forward = emitter.emit(functions["forward"])
        self._run, self._arenas = forward.run, forward.arenas
        texts = [forward.text]
        self._state = state
        self._state_names: list[str] = []
        self._weights = weights
        self._weight_arguments: list[WeightArgument] = []
        # Passes append: first come the graph's own arguments, then the state, then the parts of each weight.
        last = ""
        for attributes in argument_attributes(functions["forward"]):
            if STATE in attributes:
                self._state_names.append(ir.StringAttr(attributes[STATE]).value)
            name = ir.FlatSymbolRefAttr(attributes[WEIGHT]).value if WEIGHT in attributes else ""
            if name and name != last:
                last = name
                made = emitter.emit(functions[name])
                # Its number differs from program to program.
                function = str(functions[name]).replace(f"@{name}(", "@weight(")
                sources = list(ir.DenseI64ArrayAttr(attributes[SOURCES]))
                self._weight_arguments.append(WeightArgument(function, made.run, sources))
                texts.append(made.text)
        self.text = "\n\n".join(texts)

    def __call__(self, *arguments: torch.Tensor | int) -> tuple:
        arguments += tuple([self._state_tensor(name) for name in self._state_names])
        get = self._weights.get
        parts = []
        for weight in self._weight_arguments:
            parts += get(weight, [arguments[i] for i in weight.sources])
        return self._run(*arguments, *parts)

    def nbytes(self) -> int:
        """Bytes of the memory that calls leave to the next ones."""
        return self._arenas.nbytes()

    def _state_tensor(self, name: str) -> torch.Tensor:
        # Made at the first call and not when compiling, where torch would make a fake tensor of it.
        if name not in self._state:
            self._state[name] = torch.ones(())
        return self._state[name]
