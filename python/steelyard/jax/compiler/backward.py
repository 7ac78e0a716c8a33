"""Which equations of a jaxpr are a backward's, and so which of the three products of its layer a dot is.

In a joint function, what depends on a tangent is a gradient. If jax.grad was called inside of the function there are no
tangents, but JAX names the equations that it makes for a backward, and what depends on them.
"""

from typing import Any

import jax.extend.core as jex

from steelyard.jax.compiler import equations
from steelyard.jax.compiler.marks import Mark, is_transposed
from steelyard.jax.internals import NameStack


def gradient_results(jaxpr: Any, gradients: list[bool], by_name: bool) -> list[bool]:
    """Which results of a jaxpr are gradients, if these arguments are."""
    inner, _ = equations.opened(jaxpr)
    known = {variable for variable, flag in zip(inner.invars, gradients, strict=True) if flag}
    for eqn in inner.eqns:
        known.update(gradient_variables(eqn, known, eqn.source_info.name_stack if by_name else None))
    return [not isinstance(atom, jex.Literal) and atom in known for atom in inner.outvars]


def gradient_variables(eqn: Any, known: set[Any], names: NameStack | None) -> list[Any]:
    """The results of an equation that are gradients: those of a body by what it computes, all others by operands.

    `names` is the name stack of the equation if that counts, too.
    """
    operands = [not isinstance(atom, jex.Literal) and atom in known for atom in eqn.invars]
    if not equations.bodies_of(eqn):
        return list(eqn.outvars) if any(operands) or (names is not None and is_transposed(names)) else []
    flags = [False] * len(eqn.outvars)
    for body in equations.bodies_of(eqn):
        if body.parameter != "cond_jaxpr":
            by_name = names is not None
            made = gradient_results(body.jaxpr, body_gradients(eqn, body, operands, by_name), by_name)
            flags = [one or other for one, other in zip(flags, made, strict=True)]
    return [variable for variable, flag in zip(eqn.outvars, flags, strict=True) if flag]


def body_gradients(eqn: Any, body: equations.Body, operands: list[bool], by_name: bool) -> list[bool]:
    """Which arguments of a body are gradients in any trip."""
    flags = [operands[i] for i in equations.body_operands(eqn, body.parameter)]
    handed_on = equations.carried(eqn, body.parameter)
    while handed_on:
        made = gradient_results(body.jaxpr, flags, by_name)
        new = [flag or (i in handed_on and made[handed_on[i]]) for i, flag in enumerate(flags)]
        if new == flags:
            break
        flags = new
    return flags


def kind_of_ragged_dot(eqn: Any, gradients: list[bool]) -> tuple[str, bool] | None:
    """The same of a product of experts: rows [S, K] times [E, K, N], or what JAX makes of that for its gradients."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (reduced, batch), ragged = numbers.dot_dimension_numbers, tuple(numbers.lhs_ragged_dimensions)
    left, right = (tuple(dims) for dims in reduced)
    if any(batch) or ragged != (0,) or eqn.params["group_offset"] is not None or len(eqn.invars) != 3:
        return None
    if tuple(numbers.rhs_group_dimensions) != (0,):
        is_wgrad = (left, right) == ((0,), (0,)) and sum(gradients[:2]) == 1
        return ("wgrad", gradients[1]) if is_wgrad else None
    if (left, right) == ((1,), (1,)) and not any(gradients):
        return "fprop", False
    return ("dgrad", False) if (left, right) == ((1,), (2,)) and gradients[0] else None


def kind_of_dot(eqn: Any, mark: Mark, gradients: list[bool]) -> tuple[str, bool] | None:
    """The kind of a marked dot, and whether its operands are in the other order; None where it is none of the three.

    JAX makes dgrad and wgrad of a dot by reducing its result's gradient over the weight's dims or over the others.
    """
    if not any(gradients):
        return "fprop", mark.weight_is_left
    if all(gradients):
        return None
    number = gradients.index(True)
    reduced, batch = (pair[number] for pair in eqn.params["dimension_numbers"])
    if batch:
        return None
    rank = len(eqn.invars[number].aval.shape)
    of_weight = range(mark.weight_dims) if mark.weight_is_left else range(rank - mark.weight_dims, rank)
    if set(reduced) == set(of_weight):
        return "dgrad", number == 1
    if set(reduced) == set(range(rank)) - set(of_weight):
        return "wgrad", number == 1
    return None
