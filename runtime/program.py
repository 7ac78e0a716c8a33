"""A lowered program: its forward function, and the weights that are quantized outside of it."""

import threading
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch_mlir import ir

from steelyard.passes.functions import STATE, argument_attributes
from steelyard.passes.hoist_weights import SOURCES, WEIGHT
from steelyard.runtime.emitter import emit
from steelyard.runtime.steps import QuantizedValue, Quantizers

_optimizer_steps = 0


def _count_step(*_) -> None:
    global _optimizer_steps
    _optimizer_steps += 1


# Fused optimizers write parameters without moving their version, so a step of any optimizer counts as a write.
register_optimizer_step_post_hook(_count_step)


@dataclass
class Weight:
    """A quantized weight, kept until its parameter changes."""

    make: Callable[..., tuple[QuantizedValue]]
    sources: list[int]
    """Which arguments it is made from: the parameter, and its scale where that is state."""
    stamp: tuple | None = None
    value: QuantizedValue | None = None

    def get(self, arguments: Sequence[Any]) -> QuantizedValue:
        """The quantized parameter, made anew if it or its scale was written since."""
        sources = [arguments[index] for index in self.sources]
        stamp = (_optimizer_steps, *(part for source in sources for part in _stamp(source)))
        if self.stamp != stamp or self.value is None:
            (self.value,) = self.make(*sources)
            self.stamp = stamp
        return self.value


def _stamp(tensor: torch.Tensor) -> tuple:
    return id(tensor), tensor._version, tensor.data_ptr(), tensor.dtype


class Program:
    """A module of the IR, ready to run: `@forward`, the functions of its weights, and its state by name."""

    def __init__(self, module: ir.Module, state: MutableMapping[str, torch.Tensor], quantizers: Quantizers):
        functions = {ir.StringAttr(op.attributes["sym_name"]).value: op.operation for op in module.body.operations}
        forward = functions["forward"]
        self._run, self.text = emit(forward, quantizers)
        self._lock = threading.Lock()
        self._state = state
        self._state_names: list[str] = []
        self._weights: list[Weight] = []
        # Passes append: first come the graph's own arguments, then the state, then the weights.
        for attributes in argument_attributes(forward):
            if STATE in attributes:
                self._state_names.append(ir.StringAttr(attributes[STATE]).value)
            if WEIGHT in attributes:
                make, text = emit(functions[ir.FlatSymbolRefAttr(attributes[WEIGHT]).value], quantizers)
                self._weights.append(Weight(make, list(ir.DenseI64ArrayAttr(attributes[SOURCES]))))
                self.text += f"\n\n{text}"

    def __call__(self, *arguments: torch.Tensor | int) -> tuple:
        arguments += tuple(self._state_tensor(name) for name in self._state_names)
        # Two threads must not quantize one weight at once; the step itself holds no lock.
        with self._lock:
            weights = [weight.get(arguments) for weight in self._weights]
        return self._run(*arguments, *weights)

    def _state_tensor(self, name: str) -> torch.Tensor:
        # Made at the first call and not when compiling, where torch would make a fake tensor of it.
        if name not in self._state:
            self._state[name] = torch.ones(())
        return self._state[name]

    def forget_weights(self) -> None:
        """Quantize every weight anew at the next call."""
        with self._lock:
            for weight in self._weights:
                weight.stamp = weight.value = None

    def weight_bytes(self) -> int:
        """Bytes that the kept weights take."""
        values = [weight.value for weight in self._weights if weight.value is not None]
        return sum(_copy_bytes([value.row, value.col]) for value in values)


def _copy_bytes(copies: Sequence) -> int:
    parts = [part for copy in copies if copy is not None for part in (copy.codes, copy.scales, copy.amax)]
    return sum(part.numel() * part.element_size() for part in parts if part is not None)
