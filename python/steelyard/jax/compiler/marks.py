"""Marks that say whose product a dot is, in the name stacks of a jaxpr.

JAX hands the name stack of an equation down to all that it derives from it. So a dot that is marked before the function
is differentiated gives its mark to the products of its backward, in the bodies of loops and checkpointed regions too.
"""

from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex

from steelyard.ir.view_ops import VIEW_LIKE
from steelyard.jax.compiler import equations
from steelyard.jax.compiler.parameters import Parameter
from steelyard.jax.internals import NameStack, Scope, Transform, with_scope

_MARK = "scaled:"
_SEPARATOR = ":"
_RECOMPUTED = "rematted_computation"


@dataclass(frozen=True)
class Mark:
    """The layer of a dot of the forward, and what its weight is there."""

    layer: str
    weight_is_left: bool
    weight_dims: int
    """How many dims of the result are the weight's: the first ones if it is on the left, the last ones otherwise."""

    def __str__(self) -> str:
        side = "left" if self.weight_is_left else "right"
        return _MARK + _SEPARATOR.join((side, str(self.weight_dims), self.layer))


def mark_of(stack: NameStack) -> Mark | None:
    """The innermost mark in a name stack."""
    for scope in reversed(stack.stack):
        if isinstance(scope, Scope) and scope.name.startswith(_MARK):
            side, dims, layer = scope.name.removeprefix(_MARK).split(_SEPARATOR, 2)
            return Mark(layer, side == "left", int(dims))
    return None


def scopes_of(stack: NameStack) -> str:
    """A name stack as text, without marks."""
    kept = [each for each in stack.stack if not (isinstance(each, Scope) and each.name.startswith(_MARK))]
    return str(NameStack(tuple(kept)))


def is_transposed(stack: NameStack) -> bool:
    """Whether jax.grad made an equation for a backward, and not to compute the forward again there."""
    names = [each.name for each in stack.stack]
    has_transpose = any(isinstance(each, Transform) and each.name == "transpose" for each in stack.stack)
    return has_transpose and _RECOMPUTED not in names


def mark_layers(jaxpr: Any, parameters: list[Parameter | None], stack: NameStack | None = None) -> Any:
    """A jaxpr whose dots of the forward with one parameter are marked; `parameters` says which its arguments are.

    Operands of two dtypes become one.
    """
    stack = NameStack() if stack is None else stack
    inner, _ = equations.opened(jaxpr)
    known: dict[Any, Parameter | None] = dict(zip(inner.invars, parameters, strict=True))
    eqns = [_marked(each, known, stack) for eqn in inner.eqns for each in equations.promoted(eqn)]
    marked = inner.replace(eqns=eqns)
    return jaxpr.replace(jaxpr=marked) if isinstance(jaxpr, jex.ClosedJaxpr) else marked


def _marked(eqn: Any, known: dict[Any, Parameter | None], stack: NameStack) -> Any:
    operands = [None if isinstance(atom, jex.Literal) else known.get(atom) for atom in eqn.invars]
    own = stack + eqn.source_info.name_stack
    name = eqn.primitive.name
    if is_view(eqn) and operands[0] is not None:
        known.update(dict.fromkeys(eqn.outvars, operands[0]))
    if name in (equations.DOT, equations.RAGGED_DOT) and not is_transposed(own):
        mark = _mark(eqn, operands)
        return eqn if mark is None else with_scope(eqn, str(mark))
    # What these call is replaced when they are differentiated.
    if name in equations.CUSTOM or not any(operands):
        return eqn
    bodies = []
    for body in equations.bodies_of(eqn):
        handed_on = equations.carried(eqn, body.parameter)
        given = [operands[i] for i in equations.body_operands(eqn, body.parameter)]
        given = [None if place in handed_on else each for place, each in enumerate(given)]
        bodies.append(mark_layers(body.jaxpr, given, own))
    return eqn.replace(params=equations.with_bodies(eqn, bodies)) if bodies else eqn


def _mark(eqn: Any, operands: list[Parameter | None]) -> Mark | None:
    left, right = operands[:2]
    # Of two parameters the second is the weight: a position embedding times a projection.
    parameter, number = (right, 1) if right is not None else (left, 0)
    if parameter is None:
        return None
    if eqn.primitive.name == equations.RAGGED_DOT:
        return Mark(parameter.name, number == 0, 1)
    reduced, batch = (pair[number] for pair in eqn.params["dimension_numbers"])
    return Mark(parameter.layer, number == 0, len(eqn.invars[number].aval.shape) - len(reduced) - len(batch))


VIEWS = {"reshape", "squeeze", "expand_dims", "transpose", "convert_element_type"}
"""Primitives that are imported as ops of stablehlo."""


def is_view(eqn: Any) -> bool:
    """Whether the result of an equation is its first operand, or a part of it, in another shape, order or dtype."""
    name = eqn.primitive.name
    if name == "optimization_barrier" and len(eqn.invars) > 1:
        return False
    others = eqn.invars[1:]
    return (name in VIEWS or f"jax.{name}" in VIEW_LIKE) and all(isinstance(atom, jex.Literal) for atom in others)
