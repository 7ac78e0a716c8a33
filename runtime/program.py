"""A lowered program: its forward, its backward where it has one, and the weights that are quantized outside of both."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch_mlir import ir

from steelyard.ir.attributes import PARAMETER, PRIMAL, SAVED, SOURCES, STATE, WEIGHT
from steelyard.ir.functions import argument_attributes, argument_types, functions_of, result_attributes
from steelyard.ir.torch_ops import op_name
from steelyard.ir.weights import is_weight, weight_form, weight_key
from steelyard.runtime.cuda.devices import Devices
from steelyard.runtime.dtypes import result_dtype, shape_of
from steelyard.runtime.emitter import Emitted, Emitter
from steelyard.runtime.finite import make_check
from steelyard.runtime.profiling import is_recording
from steelyard.runtime.quantizers import Quantizers
from steelyard.runtime.state import State
from steelyard.runtime.weights import WeightArgument, Weights


class Program:
    """A module of the IR, ready to run: `@forward`, `@backward`, the functions of its weights, and its state by name.

    `weights` keeps what the functions of weights make; the programs of a net share it, and its state. `devices` are
    those of the target, None for the CPU.
    """

    def __init__(
        self,
        module: ir.Module,
        state: State,
        quantizers: Quantizers,
        weights: Weights,
        check_finite: bool = False,
        devices: Devices | None = None,
    ):
        self._state = state
        self.devices = devices
        functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions_of(module.operation)}
        check = make_check(state) if check_finite else None
        emitter = Emitter(module.operation, quantizers, check, takes_device=devices is not None)
        makers = {name: function for name, function in functions.items() if is_weight(function)}
        made = {name: emitter.emit(function) for name, function in functions.items()}
        self.text = "\n\n".join([*emitter.kernel_texts(), *(emitted.text for emitted in made.values())])
        self._functions = {
            name: _Function(functions[name], made, makers, state, weights, devices)
            for name in ("forward", "backward")
            if name in functions
        }
        self._forward = self._functions["forward"]
        self.parameter_readers = _parameter_readers(functions["forward"])
        """Ops of the forward that read the values of a parameter, by its name."""
        self.saved = _saved(functions["forward"])
        """What the forward leaves to the backward."""
        self.primals: list[int] = []
        """Which arguments of the forward the backward takes."""
        if "backward" in functions:
            numbers = [own[PRIMAL] for own in argument_attributes(functions["backward"]) if PRIMAL in own]
            self.primals = [ir.IntegerAttr(number).value for number in numbers]

    def __call__(self, *arguments: torch.Tensor | int) -> tuple:
        """Run the forward; what it leaves to the backward follows its outputs."""
        self._state.calls += 1
        return self._forward(arguments)

    def backward(self, saved: Sequence[Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple:
        """Run the backward: the gradients of the arguments that have one."""
        return self._functions["backward"]((*saved, *primals, *tangents))

    @property
    def weight_arguments(self) -> list[WeightArgument]:
        """The weights that the forward takes."""
        return self._forward.weight_arguments

    def nbytes(self) -> int:
        """Bytes of the memory that calls leave to the next ones."""
        return sum(function.emitted.arenas.nbytes() for function in self._functions.values())


class SavedTensor(NamedTuple):
    """A tensor that a forward leaves to its backward. A type of the IR would keep the whole context alive."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype


def _saved(function: ir.Operation) -> list[SavedTensor]:
    types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    results = zip(types, result_attributes(function), strict=True)
    return [SavedTensor(shape_of(type_), result_dtype(type_)) for type_, own in results if SAVED in own]


def _parameter_readers(function: ir.Operation) -> dict[str, list[str]]:
    arguments = function.regions[0].blocks[0].arguments
    readers: dict[str, list[str]] = {}
    for argument, attributes in zip(arguments, argument_attributes(function), strict=True):
        if PARAMETER in attributes and WEIGHT not in attributes:
            names = [op_name(use.owner.operation).removeprefix("torch.") for use in argument.uses]
            readers.setdefault(ir.StringAttr(attributes[PARAMETER]).value, []).extend(names)
    return readers


class _Function:
    """An emitted function with the state and the weights that it takes beside its own arguments."""

    def __init__(
        self,
        function: ir.Operation,
        made: Mapping[str, Emitted],
        makers: Mapping[str, ir.Operation],
        state: State,
        weights: Weights,
        devices: Devices | None,
    ):
        name = ir.StringAttr(function.attributes["sym_name"]).value
        self._devices = devices
        self.emitted = made[name]
        self._run = self.emitted.run
        self._state, self._weights = state, weights
        self._state_names: list[tuple[str, tuple[int, ...]]] = []
        self.weight_arguments: list[WeightArgument] = []
        types = argument_types(function)
        # Passes append: first come the graph's own arguments, then the state, then the parts of each weight.
        last = ""
        known = argument_attributes(function)
        for attributes, type_ in zip(known, types, strict=True):
            if STATE in attributes and SAVED not in attributes:
                name, shape = ir.StringAttr(attributes[STATE]).value, state.shape_of(type_)
                state.expect(name, shape)
                self._state_names.append((name, shape))
            weight = ir.FlatSymbolRefAttr(attributes[WEIGHT]).value if WEIGHT in attributes else ""
            if weight and weight != last:
                last = weight
                sources = list(ir.DenseI64ArrayAttr(attributes[SOURCES]))
                parameter = ir.StringAttr(attributes[PARAMETER]).value
                states = tuple(ir.StringAttr(known[i][STATE]).value for i in sources[1:] if STATE in known[i])
                make = made[weight] if devices is None else _on_own_device(made[weight])
                key, form = weight_key(makers[weight]), weight_form(makers[weight])
                argument = WeightArgument(key, make, sources, parameter, states, form, is_trained="backward" in made)
                self.weight_arguments.append(argument)
        results = enumerate(result_attributes(function))
        self._moved = {i: ir.StringAttr(own[STATE]).value for i, own in results if STATE in own}

    def __call__(self, arguments: tuple) -> tuple:
        if self._devices is not None:
            return self._call_on(self._devices.find(arguments), arguments)
        get_state = self._state.get
        arguments += tuple([get_state(name, shape) for name, shape in self._state_names])
        get = self._weights.get
        parts = []
        for weight in self.weight_arguments:
            parts += get(weight, [arguments[i] for i in weight.sources])
        results = (self.emitted.recorded if is_recording() else self._run)(*arguments, *parts)
        if not self._moved:
            return results
        self._state.put({name: results[i] for i, name in self._moved.items()})
        return tuple([result for i, result in enumerate(results) if i not in self._moved])

    def _call_on(self, device: torch.device, arguments: tuple) -> tuple:
        """The call on another device than the CPU."""
        states = [self._state.get_on(device, name, shape) for name, shape in self._state_names]
        arguments += tuple(states)
        parts = []
        for weight in self.weight_arguments:
            parts += self._weights.get(weight, [arguments[i] for i in weight.sources])
        results = (self.emitted.recorded if is_recording() else self._run)(device, *arguments, *parts)
        # State is written where it lies, by this call or a later one: what goes on to the backward is a copy.
        own = {id(state) for state in states}
        kept = [
            result.clone() if id(result) in own else result for i, result in enumerate(results) if i not in self._moved
        ]
        if self._moved:
            self._state.write({name: results[i] for i, name in self._moved.items()})
        return tuple(kept)


def _on_own_device(run: Callable) -> Callable:
    """A weight is made where its parameter is."""
    return lambda parameter, *others: run(parameter.device, parameter, *others)
