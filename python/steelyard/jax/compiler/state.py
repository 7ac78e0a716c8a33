"""The state of a program: delayed scales, amax histories and random state, by name."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from torch_mlir import ir

from steelyard.errors import RecipeError
from steelyard.ir.attributes import RNG
from steelyard.ir.bodies import argument_states
from steelyard.jax import random
from steelyard.jax.compiler.values import shape_of

State = dict[str, jax.Array]


def initial_state(functions: Iterable[ir.Operation], key: Any) -> State:
    """The state that functions take, before the first step: scales of 1, empty histories, and a seed."""
    made: State = {}
    for function in functions:
        for name, argument in zip(argument_states(function), function.regions[0].blocks[0].arguments, strict=True):
            if name is None or name in made:
                continue
            if name == RNG:
                made[name] = random.pack_state(random.seed_words(jax.random.key(0) if key is None else key))
            else:
                fill = 1.0 if name.endswith(".scale") else 0.0
                made[name] = jnp.full(shape_of(argument.type), fill, jnp.float32)
    return made


def read_state(name: str, state: Mapping[str, jax.Array]) -> jax.Array:
    """One value of the state as programs take it."""
    if name not in state:
        raise RecipeError(
            f"state must hold {name!r}, got {sorted(state) or 'none'}; pass state=fast.init_state(...) with the "
            "arguments of the function, and hand on its gradient, which is the state of the next step"
        )
    return random.state_words(state[name]) if name == RNG else state[name]


def written_state(name: str, value: jax.Array) -> jax.Array:
    """One value of the state as users hold it."""
    return random.words_state(value) if name == RNG else value
