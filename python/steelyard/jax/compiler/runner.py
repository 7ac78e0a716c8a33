"""Runs the functions of a module under JAX's tracing: kernels for `scaled` ops, the equation itself for the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from torch_mlir import ir

from steelyard.insight.collecting import Collector
from steelyard.ir.attributes import RNG
from steelyard.ir.bodies import added_arguments, added_states, body_names, named_functions, result_states
from steelyard.ir.stablehlo_ops import CONVERT, RESHAPE, TRANSPOSE
from steelyard.ir.torch_ops import ABSENT, LITERAL, defining_op
from steelyard.jax import random
from steelyard.jax.compiler import equations
from steelyard.jax.compiler.importer import EQN, NUMBER, Imported
from steelyard.jax.compiler.measuring import hand_out, measured_results
from steelyard.jax.compiler.rules import RULES, is_matrix_transpose, is_turned, run_quantize
from steelyard.jax.compiler.values import Quantized, Stacked, shape_of
from steelyard.jax.internals import axes_of, bind
from steelyard.jax.varying import largest_over

_VIEWS, _QUANTIZE, _GEMM, _PACK = (TRANSPOSE, RESHAPE, CONVERT), "scaled.quantize", "scaled.gemm", "scaled.pack"


class Runner:
    """The functions of a module, as functions of JAX values.

    Kernels are quantized where they lie (`in_place`), or in the order in which products read them fastest: that takes
    longer, and pays off where they are quantized once.
    """

    def __init__(self, imported: Imported, *, in_place: bool = True, collector: Collector | None = None):
        self._imported, self._collector = imported, collector
        self._in_place = in_place
        self.functions = named_functions(imported.module.operation)
        self._draws: dict[ir.Operation, int] = {}

    def run(self, name: str, arguments: Sequence[Any], *, packs: bool = True) -> list[Any]:
        """The results of a function. Without `packs` the weight that it makes stays as it was quantized."""
        block = self.functions[name].regions[0].blocks[0]
        values: dict[ir.Value, Any] = dict(zip(block.arguments, arguments, strict=True))
        measured = measured_results(self.functions[name])
        for view in block.operations:
            op = view.operation
            operands = [values[value] for value in op.operands]
            if op.name == "func.return":
                for number, names in measured.items():
                    hand_out(operands[number], names, self._collector)
                return [value for number, value in enumerate(operands) if number not in measured]
            made = operands if op.name == _PACK and not packs else self._run_op(op, operands)
            values.update(zip(op.results, made, strict=True))
        raise AssertionError("a function ends with a return")

    def _run_op(self, op: ir.Operation, operands: list[Any]) -> list[Any]:
        if op.name == LITERAL:
            return [self._imported.literals[ir.IntegerAttr(op.attributes[NUMBER]).value]]
        if op.name == ABSENT:
            return [None]
        if op.name == _QUANTIZE:
            return run_quantize(op, self._with_own_bits(op, operands), in_place=self._in_place)
        if is_matrix_transpose(op) and is_turned(defining_op(op.operands[0])):
            return operands
        if op.name != _GEMM and not body_names(op):
            operands = [value.taken() if isinstance(value, Stacked) else value for value in operands]
        rule = RULES.get(op.name)
        if rule is not None and not (op.name in _VIEWS and self._is_as_traced(op, operands)):
            return rule(op, operands)
        eqn = self._imported.equations[ir.IntegerAttr(op.attributes[EQN]).value]
        names = body_names(op)
        if not names:
            return bind(eqn, operands, eqn.params)
        return _BodyCall(self, eqn, [self.functions[name] for name in names], operands).run()

    def _is_as_traced(self, op: ir.Operation, operands: list[Any]) -> bool:
        """Whether a view is the equation that it was imported from; passes make views of their own."""
        if EQN not in op.attributes:
            return False
        eqn = self._imported.equations[ir.IntegerAttr(op.attributes[EQN]).value]
        # A literal is a number of Python's.
        is_same = eqn.invars[0].aval.shape == jnp.shape(operands[0])
        return is_same and eqn.outvars[0].aval.shape == shape_of(op.result.type)

    def _with_own_bits(self, op: ir.Operation, operands: list[Any]) -> list[Any]:
        """The operands of a quantize; one that rounds stochastically draws bits of its own."""
        view: Any = op.opview
        if view.rng is None:
            return operands
        number = self._draws.setdefault(op, len(self._draws))
        place = 1 if view.scale is None else 2
        return [*operands[:place], random.split_words(operands[place], number), *operands[place + 1 :]]


class _BodyCall:
    """An equation with bodies that runs again, with the state that passes added to them."""

    def __init__(self, runner: Runner, eqn: Any, functions: list[ir.Operation], operands: list[Any]):
        self._runner, self._eqn, self._functions = runner, eqn, functions
        self._taken = added_states(functions, added_arguments)
        self._made = added_states(functions, result_states)
        count = len(eqn.invars)
        # A parameter that quantized weights stand for is not there, and the body does not read it.
        pairs = zip(eqn.invars, operands, strict=False)
        self._operands = [_zeros(atom.aval) if value is None else value for atom, value in pairs]
        self._added = operands[count:]
        # Weights are trees of arrays.
        self._state, self._tree = jax.tree.flatten(self._added)
        self._results: Any = None
        """The tree of the results of the body that was traced last."""

    def run(self) -> list[Any]:
        return _CALLS[self._eqn.primitive.name](self)

    def scan(self) -> list[Any]:
        """State is stacked: a loop takes it as xs and returns it as ys. Weights are constants, and xs number them."""
        length = self._eqn.params["length"]
        added = [_over_trips(name, value, length) for name, value in zip(self._taken, self._added, strict=True)]
        leaves, self._tree = jax.tree.flatten(added)
        is_whole = jax.tree.leaves([_wholes(value) for value in added])
        wholes = [value for value, flag in zip(leaves, is_whole, strict=True) if flag]
        stacks = [value for value, flag in zip(leaves, is_whole, strict=True) if not flag]
        avals = [jax.typeof(value) if flag else _part(value) for value, flag in zip(leaves, is_whole, strict=True)]
        (body,) = self._bodies(avals, is_whole)
        params = equations.with_bodies(self._eqn, [body])
        params["num_consts"] += len(wholes)
        made = bind(self._eqn, [*wholes, *jax.tree.leaves(self._operands), *stacks], params)
        return jax.tree.unflatten(self._results, made)

    def cond(self) -> list[Any]:
        params = equations.with_bodies(self._eqn, self._bodies(self._added_avals()))
        return bind(self._eqn, [*self._operands, *self._state], params)

    def whilst(self) -> list[Any]:
        """State does not change in a loop that has no backward: it is among the constants of both bodies."""
        bodies = self._bodies(self._added_avals(), [True] * len(self._state))
        params = equations.with_bodies(self._eqn, bodies)
        first = params["cond_nconsts"]
        params["cond_nconsts"] += len(self._state)
        params["body_nconsts"] += len(self._state)
        condition, rest = self._operands[:first], self._operands[first:]
        return bind(self._eqn, [*self._state, *condition, *self._state, *rest], params)

    def remat(self) -> list[Any]:
        (body,) = self._bodies(self._added_avals())
        opened, consts = _without_constants(body)
        params = equations.with_bodies(self._eqn, [opened])
        return bind(self._eqn, [*consts, *self._operands, *self._state], params)

    def shard_map(self) -> list[Any]:
        """State is the same on all devices."""
        (body,) = self._bodies(self._added_avals())
        opened, consts = _without_constants(body)
        params = equations.with_bodies(self._eqn, [opened])
        whole = PartitionSpec()
        params["in_specs"] = (*[whole] * len(consts), *params["in_specs"], *[whole] * len(self._state))
        params["out_specs"] = (*params["out_specs"], *[whole] * len(self._made))
        return bind(self._eqn, [*consts, *self._operands, *self._state], params)

    def _added_avals(self) -> list[Any]:
        return [jax.typeof(value) for value in self._state]

    def _bodies(self, added: list[Any], is_first: list[bool] | None = None) -> list[Any]:
        """The bodies as jaxprs, each with arguments for the state of all of them, before its own or after them."""
        made = []
        is_first = [False] * len(added) if is_first is None else is_first
        first = [aval for aval, flag in zip(added, is_first, strict=True) if flag]
        last = [aval for aval, flag in zip(added, is_first, strict=True) if not flag]
        for body, function in zip(equations.bodies_of(self._eqn), self._functions, strict=True):
            inner, _ = equations.opened(body.jaxpr)
            numbers = equations.body_operands(self._eqn, body.parameter)
            pairs = zip((self._operands[number] for number in numbers), inner.invars, strict=True)
            # What another loop quantized is a tree of stacked arrays.
            avals = [
                jax.tree.map(_part, value) if isinstance(value, Quantized) else variable.aval
                for value, variable in pairs
            ]
            run = self._body(function, len(avals), is_first)
            with axes_of(self._eqn):
                jaxpr, results = jax.make_jaxpr(run, return_shape=True)(*first, *avals, *last)
            made.append(jaxpr)
            self._results = jax.tree.structure(results)
        return made

    def _body(self, function: ir.Operation, count: int, is_first: list[bool]) -> Callable[..., list[Any]]:
        """A body that takes the state of all bodies and returns what any of them returns."""
        name = ir.StringAttr(function.attributes["sym_name"]).value
        taken = [each for each in added_arguments(function) if each is not None]
        returned = result_states(function)

        def run(*arguments: Any) -> list[Any]:
            start = sum(is_first)
            own, first, last = arguments[start:][:count], iter(arguments[:start]), iter(arguments[start + count :])
            state = [next(first if flag else last) for flag in is_first]
            given = dict(zip(self._taken, jax.tree.unflatten(self._tree, state), strict=True))
            results = self._runner.run(name, [*own, *(given[each] for each in taken)])
            plain = [value for value, each in zip(results, returned, strict=True) if each is None]
            amaxes = {each: value for value, each in zip(results, returned, strict=True) if each is not None}
            if self._eqn.primitive.name == "while":
                return plain
            scales = [given[each.removesuffix(".amax") + ".scale"] for each in self._made]
            # A branch that did not run has no amax, which is 0.
            found = [amaxes.get(each, jnp.zeros_like(scale)) for each, scale in zip(self._made, scales, strict=True)]
            if self._eqn.primitive.name == "shard_map":
                found = [largest_over(amax, scale) for amax, scale in zip(found, scales, strict=True)]
            return [*plain, *found]

        return run


_CALLS: dict[str, Callable[[_BodyCall], list[Any]]] = {
    "scan": _BodyCall.scan,
    "cond": _BodyCall.cond,
    "while": _BodyCall.whilst,
    "remat2": _BodyCall.remat,
    "checkpoint": _BodyCall.remat,
    "shard_map": _BodyCall.shard_map,
}


def _over_trips(name: str, value: Any, length: int) -> Any:
    """What was added to a loop: as leaves with a dim for its trips, but for the whole of a stack."""
    if name == RNG:
        return random.split_words(value, jnp.arange(length))
    trips = jnp.arange(length, dtype=jnp.int32)
    if isinstance(value, Quantized):
        return Stacked(value, trips)
    if isinstance(value, Stacked):
        # The part of a stack is a stack for the trips of a loop in a loop.
        whole = jax.tree.map(lambda each: each.reshape(-1, *each.shape[2:]), value.whole)
        return Stacked(whole, value.number * length + trips)
    return value


def _wholes(value: Any) -> Any:
    """For each array of what was added to a loop, whether it is the whole of a stack."""
    if not isinstance(value, Stacked):
        return False
    return [jax.tree.map(lambda _: True, value.whole), False]


def _part(stacked: jax.Array) -> Any:
    """What one trip has of a stack."""
    return jax.typeof(stacked).update(shape=stacked.shape[1:])


def _zeros(aval: Any) -> jax.Array:
    return jnp.zeros(aval.shape, aval.dtype)


def _without_constants(closed: Any) -> tuple[Any, list[Any]]:
    """A jaxpr whose constants are its first arguments, and those constants."""
    jaxpr = closed.jaxpr
    if not jaxpr.constvars:
        return jaxpr, []
    return jex.Jaxpr((), [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, jaxpr.effects), closed.consts
