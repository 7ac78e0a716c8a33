"""One signature of a compiled function: its inference program, its training program, and how JAX calls them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
from torch_mlir import ir

from steelyard.errors import RecipeError, SteelyardError
from steelyard.insight.collecting import Collector
from steelyard.ir.attributes import PRIMAL, SAVED, SOURCES, STATE, TANGENT, TRIPS, WEIGHT
from steelyard.ir.bodies import argument_states, body_names, result_states, trips_of
from steelyard.ir.functions import argument_attributes
from steelyard.ir.weights import weight_key
from steelyard.jax import native
from steelyard.jax.compiler.compilation import Compilation, Source
from steelyard.jax.compiler.importer import Signature
from steelyard.jax.compiler.marks import mark_layers
from steelyard.jax.compiler.measuring import count_call
from steelyard.jax.compiler.parameters import Parameter
from steelyard.jax.compiler.runner import Runner
from steelyard.jax.compiler.state import State, initial_state, read_state, written_state
from steelyard.jax.compiler.values import shape_of
from steelyard.jax.explicit import placed_as
from steelyard.jax.internals import without_dead_code
from steelyard.jax.varying import each_its_own, vmapped_axes
from steelyard.recipes import Overrides, Recipe

_FORWARD, _BACKWARD, _MAIN = "forward", "backward", "main"


@dataclass(frozen=True)
class _Function:
    """A function of a program: what its arguments and results are."""

    runner: Runner
    name: str

    @cached_property
    def _arguments(self) -> list[dict[str, ir.Attribute]]:
        return argument_attributes(self.runner.functions[self.name])

    @cached_property
    def result_states(self) -> list[str | None]:
        return result_states(self.runner.functions[self.name])

    @cached_property
    def primal_numbers(self) -> list[int]:
        """Of a backward: the arguments of the forward that it takes."""
        return [ir.IntegerAttr(own[PRIMAL]).value for own in self._arguments if PRIMAL in own]

    @cached_property
    def weight_names(self) -> list[str]:
        """The functions of the weights that it takes."""
        return list(dict.fromkeys(_symbol(own[WEIGHT]) for own in self._arguments if WEIGHT in own))

    def weights(
        self, given: dict[str, list[Any]], values: Sequence[Any], state: State, saved: Sequence[Any] = ()
    ) -> dict[str, list[Any]]:
        """The weights that it takes, made where they are not given; `values` are its primals."""
        arguments = self._taken({PRIMAL: values, SAVED: saved}, {}, state)
        made = dict(given)
        for own in self._arguments:
            if WEIGHT in own and (name := _symbol(own[WEIGHT])) not in made:
                sources = [arguments[number] for number in ir.DenseI64ArrayAttr(own[SOURCES])]
                # Packed bytes have no rows to split: what lies on several devices keeps its codes, and its sharding.
                packs = not any(map(_is_split, sources))
                make: Any = lambda *own, name=name, packs=packs: self.runner.run(name, own, packs=packs)  # noqa: E731
                # What loops in loops quantize is stacked for the trips of each.
                for _ in range(sources[0].ndim - len(self._weight_shape(name)) if TRIPS in own else 0):
                    make = jax.vmap(make)
                made[name] = make(*sources)
        return made

    def _weight_shape(self, name: str) -> tuple[int, ...]:
        """The shape of the matrix that the function of a weight takes."""
        return shape_of(self.runner.functions[name].regions[0].blocks[0].arguments[0].type)

    @cached_property
    def weight_sources(self) -> dict[str, tuple[int, ...]]:
        """For each weight, the arguments that it is made from."""
        named = [own for own in self._arguments if WEIGHT in own]
        return {_symbol(own[WEIGHT]): tuple(ir.DenseI64ArrayAttr(own[SOURCES])) for own in named}

    @cached_property
    def read_numbers(self) -> set[int]:
        """The arguments that its ops read, or that it returns; what a loop takes and its body does not read is none."""
        arguments = self.runner.functions[self.name].regions[0].blocks[0].arguments
        return {argument.arg_number for argument in arguments if any(map(self._reads, argument.uses))}

    def _reads(self, use: Any) -> bool:
        op = use.owner.operation
        if trips_of(op) is None:
            return True
        body = self.runner.functions[body_names(op)[0]].regions[0].blocks[0]
        return any(map(self._reads, body.arguments[use.operand_number].uses))

    def _taken(
        self, given: Mapping[str, Sequence[Any]], weights: Mapping[str, Sequence[Any]], state: State
    ) -> list[Any]:
        """The arguments, by what each of them is; None for those of a kind, or weights, that are not given."""
        kinds = {kind: iter(values) for kind, values in given.items()}
        parts = {name: iter(values) for name, values in weights.items()}
        taken: list[Any] = []
        for own in self._arguments:
            if STATE in own:
                taken.append(read_state(_text(own[STATE]), state))
            elif WEIGHT in own:
                taken.append(next(parts.get(_symbol(own[WEIGHT]), iter([])), None))
            else:
                kind = next((each for each in (SAVED, TANGENT) if each in own), PRIMAL)
                taken.append(next(kinds.get(kind, iter([])), None))
        return taken

    def run(
        self,
        primals: Sequence[Any],
        weights: dict[str, list[Any]],
        state: State,
        saved: Sequence[Any] = (),
        tangents: Sequence[Any] = (),
    ) -> tuple[list[Any], State]:
        """The results that are no state, and the state that was updated."""
        arguments = self._taken({SAVED: saved, TANGENT: tangents, PRIMAL: primals}, weights, state)
        results = list(zip(self.runner.run(self.name, arguments), self.result_states, strict=True))
        moved = {name: written_state(name, value) for value, name in results if name is not None}
        return [value for value, name in results if name is None], moved


class Program:
    """A function with arguments of certain shapes and dtypes."""

    def __init__(
        self,
        closed: Any,
        parameters: list[Parameter | None],
        recipe: Recipe,
        overrides: Overrides,
        collector: Collector | None = None,
    ):
        self.avals = list(closed.in_avals)
        self.parameters = parameters
        self._recipe, self._overrides, self._collector = recipe, overrides, collector
        self._closed = mark_layers(without_dead_code(closed), parameters)
        self._outs = list(closed.out_avals)
        self._differentiated = _inexact(self.avals)
        self._with_tangents = _inexact(self._outs)
        self._axes = vmapped_axes(closed)
        self._calls: dict[str, Any] = {}
        self.is_trained = False
        self.checked: bool | None = None
        """Whether it was trained when users were last told what is odd about it."""

    @cached_property
    def inference(self) -> Compilation:
        """The program without gradients."""
        signature = Signature(self.parameters, [False] * len(self.avals), [None] * len(self._outs))
        made = Compilation(self._source(self._closed, signature))
        takes_gradients = any(row.kind in ("dgrad", "wgrad") for row in made.rows)
        if takes_gradients and any(argument_states(made.runner.functions[_MAIN])):
            raise RecipeError(
                f"recipe {self._recipe.name} has state, which a function that takes gradients itself does not hand on; "
                "compile the function that it differentiates, and take the gradient of that"
            )
        return made

    @cached_property
    def serving(self) -> Compilation:
        """The program without gradients that takes quantized weights."""
        signature = Signature(self.parameters, [False] * len(self.avals), [None] * len(self._outs))
        return Compilation(Source(self._closed, signature, self._recipe, self._overrides, packs=True))

    @cached_property
    def training(self) -> Compilation:
        """The program with gradients: a forward and a backward."""
        self.is_trained = True
        tangents = [False] * len(self.avals) + [True] * len(self._with_tangents)
        names = [parameter.name if parameter else f"argument{i}" for i, parameter in enumerate(self.parameters)]
        gradients = [None] * len(self._outs) + [names[i] for i in self._differentiated]
        parameters = [*self.parameters, *[None] * len(self._with_tangents)]
        return Compilation(self._source(self._joint(), Signature(parameters, tangents, gradients)))

    def _source(self, closed: Any, signature: Signature) -> Source:
        return Source(closed, signature, self._recipe, self._overrides, collector=self._collector)

    def _joint(self) -> Any:
        """The jaxpr of the function and of its gradients: the results, then the gradients of the arguments."""
        function, count = jex.jaxpr_as_fun(self._closed), len(self.avals)

        def joint(*arguments: Any) -> list[Any]:
            leaves, cotangents = arguments[:count], arguments[count:]

            def primal(*values: Any) -> tuple[list[Any], list[Any]]:
                whole = list(leaves)
                for number, value in zip(self._differentiated, values, strict=True):
                    whole[number] = value
                results = function(*whole)
                return [results[i] for i in self._with_tangents], results

            _, pullback, results = jax.vjp(primal, *(leaves[i] for i in self._differentiated), has_aux=True)
            return [*results, *pullback(list(cotangents))]

        return jax.make_jaxpr(joint)(*self.avals, *(self._outs[i] for i in self._with_tangents))

    def state(self, key: Any) -> State:
        """The state before the first step."""
        functions = self.training.runner.functions
        return initial_state([functions[_FORWARD], functions[_BACKWARD]], key)

    @cached_property
    def _serving_main(self) -> _Function:
        return _Function(self.serving.runner, _MAIN)

    @cached_property
    def _weight_keys(self) -> dict[str, str]:
        return {name: self._weight_key(self._serving_main, name) for name in self._serving_main.weight_names}

    def quantize(self, leaves: Sequence[Any], state: State) -> tuple[dict[str, list[Any]], set[int]]:
        """The weights that calls without gradients take, and the numbers of the leaves that they still read."""
        main = self._serving_main
        made = main.weights({}, leaves, state)
        return {self._weight_key(main, name): values for name, values in made.items()}, main.read_numbers

    def serve(self, leaves: Sequence[Any], weights: Mapping[str, list[Any]], state: State) -> list[Any]:
        """The results for weights that were quantized before; a leaf that they stand for is None."""
        main, keys = self._serving_main, self._weight_keys
        lost = [i for i in sorted(main.read_numbers) if i < len(leaves) and leaves[i] is None]
        if lost or not set(keys.values()) <= weights.keys():
            names = [parameter.name for i in lost if (parameter := self.parameters[i])]
            raise SteelyardError(
                "the weights must have been quantized for this call, which reads other parameters or formats"
                f"{': ' + ', '.join(names) if names else ''}; pass arguments like these to quantize, too"
            )
        path = f"{native.traced_path()} serving"
        if path not in self._calls:

            def call(leaves: list[Any], weights: dict[str, list[Any]], state: State) -> list[Any]:
                return self._placed(main.run(leaves, {name: weights[key] for name, key in keys.items()}, state)[0])

            self._calls[path] = jax.jit(call)
        return self._calls[path](list(leaves), {key: weights[key] for key in keys.values()}, state)

    def _weight_key(self, main: _Function, name: str) -> str:
        return f"{main.weight_sources[name][0]} {weight_key(main.runner.functions[name])}"

    def __call__(self, leaves: Sequence[Any], state: State) -> list[Any]:
        path = native.traced_path()
        if path not in self._calls:
            self._calls[path] = self._make_call()
        return self._calls[path](list(leaves), state)

    def _make_call(self) -> Any:
        @jax.custom_vjp
        def call(leaves: list[Any], state: State) -> list[Any]:
            count_call(self._collector)
            main = _Function(self.inference.runner, _MAIN)
            return self._placed(main.run(leaves, main.weights({}, leaves, state), state)[0])

        call.defvjp(self._forward, self._backward)
        return jax.jit(call)

    def _placed(self, results: list[Any]) -> list[Any]:
        """Results with the shardings that those of the function have, where shardings are part of types."""
        return [placed_as(value, aval) for value, aval in zip(results, self._outs, strict=True)]

    def _forward(self, leaves: list[Any], state: State) -> tuple[list[Any], tuple[Any, ...]]:
        count_call(self._collector)
        runner = self.training.runner
        forward, backward = _Function(runner, _FORWARD), _Function(runner, _BACKWARD)
        weights = forward.weights({}, leaves, state)
        results, moved = forward.run(leaves, weights, state)
        kept = [leaves[i] for i in backward.primal_numbers]
        # Quantized once for both: the backward reads the other copy.
        shared = {name: weights[name] for name in backward.weight_names if name in weights}
        # A sum over a vmapped axis has a gradient for each element, and JAX hands on one for all if it is one value.
        outs = [each_its_own(value, self._axes) for value in self._placed(results[: len(self._outs)])]
        return outs, (results[len(self._outs) :], kept, shared, state, moved)

    def _backward(self, residuals: tuple[Any, ...], cotangents: list[Any]) -> tuple[list[Any], State]:
        saved, primals, shared, state, moved = residuals
        backward = _Function(self.training.runner, _BACKWARD)
        weights = backward.weights(shared, primals, state, saved)
        tangents = [cotangents[i] for i in self._with_tangents]
        results, later = backward.run(primals, weights, state, saved, tangents)
        gradients: list[Any] = [None] * len(self.avals)
        for number, value in zip(self._differentiated, results, strict=True):
            gradients[number] = placed_as(value, self.avals[number])
        updated = {**state, **moved, **later}
        return gradients, {name: updated[name] for name in state}


def _is_split(value: Any) -> bool:
    """Whether an array lies in parts on several devices."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        return False
    return len(value.sharding.device_set) > 1 and not value.sharding.is_fully_replicated


def _inexact(avals: Sequence[Any]) -> list[int]:
    return [i for i, aval in enumerate(avals) if jnp.issubdtype(aval.dtype, jnp.inexact)]


def _symbol(attribute: ir.Attribute) -> str:
    return ir.FlatSymbolRefAttr(attribute).value


def _text(attribute: ir.Attribute) -> str:
    return ir.StringAttr(attribute).value
