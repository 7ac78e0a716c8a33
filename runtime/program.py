"""A lowered program: its forward function, and the weights that are quantized outside of it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch_mlir import ir

from steelyard.passes.hoist_weights import SOURCE, WEIGHT
from steelyard.runtime.emitter import emit
from steelyard.runtime.steps import QuantizedValue

_optimizer_steps = 0


def _count_step(*_) -> None:
    global _optimizer_steps
    _optimizer_steps += 1


# Fused optimizers write parameters without moving their version, so a step of any optimizer counts as a write.
register_optimizer_step_post_hook(_count_step)


@dataclass
class Weight:
    """A quantized weight, kept until its parameter changes."""

    make: Callable[[torch.Tensor], tuple[QuantizedValue]]
    source: int
    """Which argument the parameter is."""
    stamp: tuple | None = None
    value: QuantizedValue | None = None

    def get(self, parameter: torch.Tensor) -> QuantizedValue:
        """The quantized parameter, made anew if it was written since."""
        stamp = (id(parameter), parameter._version, parameter.data_ptr(), parameter.dtype, _optimizer_steps)
        if self.stamp != stamp or self.value is None:
            (self.value,) = self.make(parameter)
            self.stamp = stamp
        return self.value


class Program:
    """A module of the IR, ready to run: `@forward` and the functions of its weights."""

    def __init__(self, module: ir.Module):
        functions = {ir.StringAttr(op.attributes["sym_name"]).value: op.operation for op in module.body.operations}
        forward = functions["forward"]
        self._run, self.text = emit(forward)
        self._lock = threading.Lock()
        self._weights = []
        for attributes in ir.ArrayAttr(forward.attributes["arg_attrs"]):
            named = ir.DictAttr(attributes)
            if WEIGHT in named:
                make, text = emit(functions[ir.FlatSymbolRefAttr(named[WEIGHT]).value])
                self._weights.append(Weight(make, ir.IntegerAttr(named[SOURCE]).value))
                self.text += f"\n\n{text}"

    def __call__(self, *arguments: torch.Tensor | int) -> tuple:
        # Two threads must not quantize one weight at once; the step itself holds no lock.
        with self._lock:
            weights = [weight.get(arguments[weight.source]) for weight in self._weights]
        return self._run(*arguments, *weights)

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
