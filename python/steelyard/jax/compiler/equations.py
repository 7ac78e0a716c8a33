"""What the compiler knows of JAX's primitives: which have bodies, what their arguments are, and what products cost."""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""Calls that are replaced by what they call: the function was differentiated before."""
WITH_BODIES = ("scan", "while", "cond", "remat2", "checkpoint", "shard_map")
"""Primitives whose jaxprs are looked into. Those of a scatter or a reduction are no part of the program."""
CHECKPOINTS = ("remat2", "checkpoint")
CUSTOM = ("custom_jvp_call", "custom_vjp_call")
DOT, RAGGED_DOT, CONVOLUTION = "dot_general", "ragged_dot_general", "conv_general_dilated"


class Body(NamedTuple):
    """A jaxpr among the parameters of an equation."""

    parameter: str
    place: int | None
    """Which of several it is, in a tuple."""
    jaxpr: Any


def inlined_body(eqn: Any) -> Any:
    """The jaxpr that an equation is replaced by; None if it stays. A checkpoint without a backward is a call, too."""
    name = eqn.primitive.name
    if name in CHECKPOINTS and not eqn.params["differentiated"]:
        return eqn.params["jaxpr"]
    return eqn.params[INLINED[name]] if name in INLINED else None


def bodies_of(eqn: Any) -> list[Body]:
    """The bodies of an equation that the compiler looks into."""
    if eqn.primitive.name not in WITH_BODIES and eqn.primitive.name not in INLINED:
        return []
    return list(_jaxprs(eqn))


def _jaxprs(eqn: Any) -> Iterator[Body]:
    for name, value in eqn.params.items():
        several = isinstance(value, tuple | list)
        for place, each in enumerate(value) if several else [(None, value)]:
            if isinstance(each, jex.Jaxpr | jex.ClosedJaxpr):
                yield Body(name, place, each)


def with_bodies(eqn: Any, jaxprs: list[Any]) -> dict[str, Any]:
    """The parameters of an equation with other bodies."""
    params = dict(eqn.params)
    for body, jaxpr in zip(bodies_of(eqn), jaxprs, strict=True):
        if body.place is None:
            params[body.parameter] = jaxpr
        else:
            old = params[body.parameter]
            params[body.parameter] = tuple(jaxpr if i == body.place else each for i, each in enumerate(old))
    return params


def opened(jaxpr: Any) -> tuple[Any, list[Any]]:
    """A jaxpr and the constants that are bound to it."""
    return (jaxpr.jaxpr, list(jaxpr.consts)) if isinstance(jaxpr, jex.ClosedJaxpr) else (jaxpr, [])


def carried(eqn: Any, parameter: str) -> dict[int, int]:
    """For each argument of a body that the body's result is handed to in the next trip: the number of that result."""
    if eqn.primitive.name == "scan":
        first = eqn.params["num_consts"]
        return {first + i: i for i in range(eqn.params["num_carry"])}
    if eqn.primitive.name == "while" and parameter == "body_jaxpr":
        first = eqn.params["body_nconsts"]
        return {first + i: i for i in range(len(eqn.outvars))}
    return {}


def body_operands(eqn: Any, parameter: str) -> list[int]:
    """For each argument of a body, the operand of the equation that it is, or a part of, in the first trip."""
    count = len(eqn.invars)
    if eqn.primitive.name == "while":
        first, own = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carry = list(range(first + own, count))
        return [*range(first), *carry] if parameter == "cond_jaxpr" else [*range(first, first + own), *carry]
    if eqn.primitive.name == "cond":
        return list(range(1, count))
    return list(range(count))


def promoted(eqn: Any) -> list[Any]:
    """A product whose operands are floats of two dtypes, after the casts of JAX's promotion; any other alone."""
    if eqn.primitive.name not in (DOT, RAGGED_DOT):
        return [eqn]
    dtypes = [atom.aval.dtype for atom in eqn.invars[:2]]
    if dtypes[0] == dtypes[1] or not all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
        return [eqn]
    wide = jnp.promote_types(*dtypes)
    number = next(i for i, dtype in enumerate(dtypes) if dtype != wide)
    atom = eqn.invars[number]
    (cast,) = jax.make_jaxpr(lambda value: lax.convert_element_type(value, wide))(atom.aval).eqns
    cast = cast.replace(invars=[atom], source_info=eqn.source_info)
    invars = [*eqn.invars[:number], cast.outvars[0], *eqn.invars[number + 1 :]]
    return [cast, eqn.replace(invars=invars)]


def flops_of_equation(eqn: Any) -> int:
    """Two for each multiplication and addition of an equation's matrix products."""
    name = eqn.primitive.name
    if name == DOT:
        (reduced, _), _ = eqn.params["dimension_numbers"]
        return 2 * eqn.outvars[0].aval.size * prod(eqn.invars[0].aval.shape[dim] for dim in reduced)
    if name == RAGGED_DOT:
        (reduced, _), _ = eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
        out, lhs = eqn.outvars[0].aval, eqn.invars[0].aval
        is_stack = len(out.shape) > len(lhs.shape)
        # Where the groups are reduced over, each row of lhs belongs to one of them.
        each = out.size // out.shape[0] if is_stack else out.size
        return 2 * each * prod(lhs.shape[dim] for dim in reduced)
    if name == CONVOLUTION:
        kernel = eqn.invars[1].aval
        features = kernel.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
        return 2 * eqn.outvars[0].aval.size * kernel.size // max(features, 1)
    if name in WITH_BODIES or name in INLINED:
        return 0
    # What is not looked into, such as a kernel of the user's, is one op with all its products.
    return sum(flops_of_equation(inner) for body in _jaxprs(eqn) for inner in opened(body.jaxpr)[0].eqns)


def trips_of_equation(eqn: Any) -> int | None:
    """How often an equation runs its body, where what is added to it is stacked."""
    return eqn.params["length"] if eqn.primitive.name == "scan" else None
