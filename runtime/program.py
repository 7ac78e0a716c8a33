"""A lowered program: its forward, its backward where it has one, and the weights that are quantized outside of both."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch_mlir import ir

from steelyard.ir.attributes import MEASURES, PARAMETER, PRIMAL, RNG, SAVED, SOURCES, STATE, WEIGHT
from steelyard.ir.functions import argument_attributes, argument_types, functions_of, result_attributes
from steelyard.ir.kernel_calls import callee_of
from steelyard.ir.renaming import Renaming
from steelyard.ir.torch_ops import op_name
from steelyard.ir.weights import weight_form, weight_key, weight_states
from steelyard.runtime.arena import Arenas
from steelyard.runtime.cuda.devices import Devices
from steelyard.runtime.dtypes import result_dtype, shape_of
from steelyard.runtime.emitted import Emitted
from steelyard.runtime.emitter import Emitter
from steelyard.runtime.entry import BlockStep, Entry
from steelyard.runtime.finite import make_check
from steelyard.runtime.profiling import CallName
from steelyard.runtime.quantizers import Quantizers
from steelyard.runtime.state import State
from steelyard.runtime.weights import Found, WeightArgument, Weights


@dataclass(eq=False)
class Program:
    """A module of the IR, ready to run: `@forward`, `@backward`, the functions of its weights, and its state by name.

    The programs of a net share its state and its weights. `devices` are those of the target, None for the CPU.
    """

    made: Mapping[str, Emitted]
    """All its functions, by name."""
    functions: Mapping[str, "Function"]
    """`forward` and, where there is one, `backward`."""
    state: State
    devices: Devices | None
    parameter_readers: Mapping[str, list[str]]
    """Ops of the forward that read the values of a parameter, by its name."""
    saved: list["SavedTensor"]
    """What the forward leaves to the backward."""
    primals: list[int]
    """Which arguments of the forward the backward takes."""
    kernel_texts: list[str]
    """The Python of the kernels that were made for it."""

    def __post_init__(self):
        self._forward = self.functions["forward"]

    def __call__(self, *arguments: torch.Tensor | int) -> tuple:
        """Run the forward; what it leaves to the backward follows its outputs."""
        self.state.runs += 1
        if not self.state.has_net:
            self.state.begin_call()
        return self._forward(arguments)

    def settled(self, arguments: tuple, parameters: Sequence[int]) -> "SettledCall | None":
        """The forward on the weights of these arguments; None where a call must look at each of them.

        `parameters` says which arguments must be the same in other calls.
        """
        return (
            None if self.devices is not None or not self.state.has_net else self._forward.settled(arguments, parameters)
        )

    def freeze(self, arguments: tuple) -> Callable[[tuple], tuple]:
        """The forward as a function of any arguments, with the weights of these."""
        return self._forward.freeze(arguments)

    @property
    def entry(self) -> Entry | None:
        """How another program runs the forward as a step; None where it is more than one tape, or has state."""
        function = self._forward
        has_state = function.state_names or function.moved or function.measures
        return None if self.devices is not None or has_state else function.emitted.code.entry

    def parts(self, arguments: tuple) -> list[Any]:
        """The quantized weights of these arguments, which the forward takes after them."""
        return self._forward.parts(arguments)

    def backward(self, values: list[Any]) -> tuple:
        """Run the backward: the gradients of the arguments that have one.

        `values` are what the forward saved, primals and tangents. The list is emptied, so that each of them is freed
        after its last use, unless the caller has it elsewhere.
        """
        return self.functions["backward"].consume(values)

    def bound_to(self, renaming: Renaming) -> "Program":
        """The same program for other parameters, layers and states: its code and its memory are shared."""
        made = {name: emitted.bound_to(renaming) for name, emitted in self.made.items()}
        functions = {name: function.bound_to(renaming, made) for name, function in self.functions.items()}
        readers = {renaming.parameter(name): ops for name, ops in self.parameter_readers.items()}
        return replace(self, made=made, functions=functions, parameter_readers=readers)

    @property
    def text(self) -> str:
        """Its Python."""
        return "\n\n".join([*self.kernel_texts, *(emitted.text for emitted in self.made.values())])

    @property
    def tapes(self) -> list[tuple[str, str]]:
        """The names of its functions that run native steps, and the text of each list of them."""
        pairs = [(name, function.emitted.code.tapes) for name, function in self.functions.items()]
        return [(name, f"tape {number}: {text}") for name, texts in pairs for number, text in enumerate(texts)]

    @property
    def torch_calls(self) -> list[CallName]:
        """The ops of torch's that its functions call, in their order."""
        return [call for function in self.functions.values() for call in function.emitted.torch_calls]

    @property
    def weight_arguments(self) -> list[WeightArgument]:
        """The weights that the forward takes."""
        return self._forward.weight_arguments

    @property
    def arenas(self) -> list[Arenas]:
        """The memory that calls leave to the next ones."""
        return [function.emitted.arenas for function in self.functions.values()]


def read_program(
    module: ir.Module,
    state: State,
    quantizers: Quantizers,
    weights: Weights,
    check_finite: bool = False,
    devices: Devices | None = None,
    blocks: Sequence[BlockStep] = (),
) -> Program:
    """The program of a lowered module; its calls of blocks run these, by number."""
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions_of(module.operation)}
    check = make_check(state) if check_finite else None
    emitter = Emitter(module.operation, quantizers, check, takes_device=devices is not None, blocks=blocks)
    made = {name: emitter.emit(function) for name, function in functions.items()}
    primals: list[int] = []
    if "backward" in functions:
        numbers = [own[PRIMAL] for own in argument_attributes(functions["backward"]) if PRIMAL in own]
        primals = [ir.IntegerAttr(number).value for number in numbers]
    return Program(
        made,
        {
            name: _read_function(name, functions, made, state, weights, devices)
            for name in ("forward", "backward")
            if name in functions
        },
        state,
        devices,
        _parameter_readers(functions["forward"]),
        _saved(functions["forward"]),
        primals,
        emitter.kernel_texts(),
    )


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
            names = [_reader_name(use.owner.operation) for use in argument.uses]
            readers.setdefault(ir.StringAttr(attributes[PARAMETER]).value, []).extend(names)
    return readers


def _reader_name(op: ir.Operation) -> str:
    """An op of torch, or a kernel, whose symbol is its name and a number."""
    symbol = callee_of(op)
    return op_name(op).removeprefix("torch.") if symbol is None else symbol.rpartition("_")[0]


@dataclass(eq=False)
class Function:
    """An emitted function with the state and the weights that it takes beside its own arguments."""

    emitted: Emitted
    state_names: list[tuple[str, tuple[int, ...]]]
    """The names and shapes of the state that it takes."""
    weight_arguments: list[WeightArgument]
    moved: dict[int, str]
    """Results that are the next state, and its name."""
    measures: dict[int, list[str]]
    """Results that are what was measured, and what each is of."""
    state: State
    weights: Weights
    devices: Devices | None

    def __post_init__(self):
        names = [name for name, _ in self.state_names]
        self._random = names.index(RNG) if RNG in names else None
        """Which of its states random bits come from."""
        self._apart = self.moved.keys() | self.measures.keys()
        """Results that no caller gets."""
        for name, shape in self.state_names:
            self.state.expect(name, shape)

    def bound_to(self, renaming: Renaming, made: Mapping[str, Emitted]) -> "Function":
        """The same function for other parameters, layers and states; `made` has the functions for those."""
        makers = {name: _maker(emitted, self.devices) for name, emitted in made.items()}
        return replace(
            self,
            emitted=made[self.emitted.code.name],
            state_names=[(renaming.state(name), shape) for name, shape in self.state_names],
            weight_arguments=[weight.bound_to(renaming, makers) for weight in self.weight_arguments],
            moved={position: renaming.state(name) for position, name in self.moved.items()},
            measures={position: [_renamed(name, renaming) for name in of] for position, of in self.measures.items()},
        )

    def __call__(self, arguments: tuple) -> tuple:
        if self.devices is not None:
            device = self.devices.find(arguments)
            return self._call_on(device, list(arguments), lambda values: self.emitted(device, *values))
        arguments += self._states()
        return self._run(arguments, self.parts(arguments))

    def consume(self, values: list[Any]) -> tuple:
        """The call of a function that takes its arguments in a list, which it empties: a backward."""
        if self.devices is not None:
            device = self.devices.find(values)
            return self._call_on(device, values, lambda values: self.emitted(device, values))
        values += self._states()
        values += self.parts(tuple(values))
        results = self.emitted(values)
        return self._finish(results) if self._apart else results

    def freeze(self, arguments: tuple) -> Callable[[tuple], tuple]:
        """A function of any arguments that runs it with the weights of these, on the CPU."""
        parts = self.parts(arguments + self._states())
        return lambda arguments: self._run(arguments + self._states(), parts)

    def settled(self, arguments: tuple, parameters: Sequence[int]) -> "SettledCall | None":
        """What runs it on the weights that were found for these arguments."""
        if not self.weight_arguments:
            return None
        found = self.weights.found(self)
        return None if found is None else SettledCall(self, found, arguments, parameters)

    def _states(self) -> tuple[torch.Tensor, ...]:
        get = self.state.get
        states = [get(name, shape) for name, shape in self.state_names]
        if self._random is not None:
            states[self._random] = self._draw()
        return tuple(states)

    def parts(self, arguments: tuple) -> list[Any]:
        """The parts of its weights."""
        return self.weights.find(self, self.weight_arguments, arguments) if self.weight_arguments else []

    def _run(self, arguments: tuple, parts: list[Any]) -> tuple:
        results = self.emitted(*arguments, *parts)
        return self._finish(results) if self._apart else results

    def _finish(self, results: tuple) -> tuple:
        """Keep the next state and what was measured; the other results are the caller's."""
        self.state.put({name: results[i] for i, name in self.moved.items()})
        if self.measures and self.state.take_measures is not None:
            self.state.take_measures(self, {name: results[i] for i, of in self.measures.items() for name in of})
        return tuple([result for i, result in enumerate(results) if i not in self._apart])

    def _call_on(self, device: torch.device, values: list[Any], run: Callable[[list[Any]], tuple]) -> tuple:
        """The call on another device than the CPU."""
        states = [self.state.get_on(device, name, shape) for name, shape in self.state_names]
        if states:
            self.state.begin_use(device, states)
        if self._random is not None:
            states[self._random] = self._draw()
        values += states
        values += self.parts(tuple(values))
        results = run(values)
        # State is written where it lies, by this call or a later one: what goes on to the backward is a copy.
        own = {id(state) for state in states}
        kept = [
            result.clone() if id(result) in own else result for i, result in enumerate(results) if i not in self.moved
        ]
        if self.moved:
            self.state.write({name: results[i] for i, name in self.moved.items()})
        if self.state_names:
            self.state.end_use(device)
        return tuple(kept)

    def _draw(self) -> torch.Tensor:
        return self.state.draw(self, self.emitted.code.name)


class SettledCall:
    """A function with the weights of some parameters: what a call of it costs is one look at all of them."""

    __slots__ = ("_finish", "_found", "_run", "_same", "_state", "_states")

    def __init__(self, function: Function, found: Found, arguments: tuple, parameters: Sequence[int]):
        self._found = weakref.ref(found)
        """A weight that is made again must not live on here."""
        self._state = function.state
        self._states = function._states if function.state_names else None
        self._run = function.emitted
        self._finish = function._finish if function._apart else None
        self._same = [(i, weakref.ref(arguments[i])) for i in parameters if not found.has(i)]
        """Parameters that are no weights, such as those of norms: they are read where they are."""

    @property
    def is_over(self) -> bool:
        """Whether the weights are no longer those that were found."""
        return self._found() is None

    def run(self, arguments: tuple) -> tuple | None:
        """The results; None if a parameter is another than it was, or was written since."""
        found = self._found()
        if found is None or not found.holds(arguments):
            return None
        for i, parameter in self._same:
            if arguments[i] is not parameter():
                return None
        self._state.runs += 1
        if self._states is not None:
            arguments += self._states()
        results = self._run(*arguments, *found.parts)
        return results if self._finish is None else self._finish(results)


def _read_function(
    name: str,
    functions: Mapping[str, ir.Operation],
    made: Mapping[str, Emitted],
    state: State,
    weights: Weights,
    devices: Devices | None,
) -> Function:
    state_names: list[tuple[str, tuple[int, ...]]] = []
    weight_arguments: list[WeightArgument] = []
    # Passes append: first come the graph's own arguments, then the state, then the parts of each weight.
    last = ""
    function = functions[name]
    for attributes, type_ in zip(argument_attributes(function), argument_types(function), strict=True):
        if STATE in attributes and SAVED not in attributes:
            state_names.append((ir.StringAttr(attributes[STATE]).value, state.shape_of(type_)))
        maker = ir.FlatSymbolRefAttr(attributes[WEIGHT]).value if WEIGHT in attributes else ""
        if maker and maker != last:
            last = maker
            weight_arguments.append(
                WeightArgument(
                    key=weight_key(functions[maker]),
                    make=_maker(made[maker], devices),
                    sources=list(ir.DenseI64ArrayAttr(attributes[SOURCES])),
                    parameter=ir.StringAttr(attributes[PARAMETER]).value,
                    states=weight_states(functions[maker]),
                    form=weight_form(functions[maker]),
                    is_trained="backward" in made,
                    maker=maker,
                )
            )
    results = enumerate(result_attributes(function))
    moved = {i: ir.StringAttr(own[STATE]).value for i, own in results if STATE in own}
    measured = enumerate(result_attributes(function))
    measures = {
        i: [ir.StringAttr(one).value for one in ir.ArrayAttr(own[MEASURES])] for i, own in measured if MEASURES in own
    }
    return Function(made[name], state_names, weight_arguments, moved, measures, state, weights, devices)


def _renamed(measure: str, renaming: Renaming) -> str:
    """What is measured of another layer."""
    layer, *rest = measure.rsplit(":", 3)
    return ":".join([renaming.layer(layer) if layer else layer, *rest])


def _maker(emitted: Emitted, devices: Devices | None) -> Callable[..., tuple]:
    """What makes a weight, where its parameter is."""
    if devices is None:
        return emitted
    return lambda parameter, *others: emitted(parameter.device, parameter, *others)
