"""Trains a small flax network in float32 and in each recipe, and prints how the losses fall.

python examples/train_jax.py [--steps 200]
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen
from flax.training.train_state import OVERWRITE_WITH_GRADIENT, TrainState

import steelyard.jax as sj

RECIPES = (None, "fp8-delayed", "fp8-current", "fp8-block", "mxfp8", "nvfp4")


class Network(linen.Module):
    """Two hidden layers between a first and a last one; nothing in it knows about recipes."""

    width: int = 128

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.gelu(linen.Dense(self.width, name="first")(x))
        for i in range(2):
            x = x + linen.gelu(linen.Dense(self.width, name=f"hidden_{i}")(x))
        return linen.Dense(1, name="last")(x)


def batch(key: jax.Array, size: int = 256) -> tuple[jax.Array, jax.Array]:
    """Points in the plane, and the values to learn."""
    x = jax.random.uniform(key, (size, 2), minval=-2.0, maxval=2.0)
    return x, jnp.sin(3 * x[:, :1]) * jnp.cos(2 * x[:, 1:])


def start(recipe: str | None, steps: int) -> TrainState:
    """The network compiled by a recipe, with its parameters; its state is where flax overwrites it with gradients."""
    network = Network()
    x, _ = batch(jax.random.key(1))
    variables = network.init(jax.random.key(0), x)
    apply: Callable[..., jax.Array] = network.apply
    if recipe is not None:
        fast = sj.compile(network.apply, recipe, overrides={"last": None})
        state = fast.init_state(variables, x)
        variables = {**variables, OVERWRITE_WITH_GRADIENT: state}

        def apply(variables: dict[str, Any], x: jax.Array) -> jax.Array:
            return fast({"params": variables["params"]}, x, state=variables[OVERWRITE_WITH_GRADIENT])

    schedule = optax.cosine_decay_schedule(3e-3, steps)
    return TrainState.create(apply_fn=apply, params=variables, tx=optax.adam(schedule))


@jax.jit
def step(state: TrainState, key: jax.Array) -> tuple[TrainState, jax.Array]:
    """One update; the recipe's state comes back with the gradients."""
    x, y = batch(key)
    loss, gradients = jax.value_and_grad(lambda variables: jnp.mean((state.apply_fn(variables, x) - y) ** 2))(
        state.params
    )
    return state.apply_gradients(grads=gradients), loss


def train(recipe: str | None, steps: int) -> list[float]:
    """The losses of a training run, with the same data for every recipe."""
    state = start(recipe, steps)
    losses = []
    for key in jax.random.split(jax.random.key(2), steps):
        state, loss = step(state, key)
        losses.append(float(loss))
    return losses


def main() -> None:
    """Print the first and the last losses of each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    print(f"{'recipe':<12} {'first loss':>10} {'last loss':>10}")
    for recipe in RECIPES:
        losses = train(recipe, steps)
        tail = losses[-max(1, math.ceil(steps / 10)) :]
        print(f"{recipe or 'float32':<12} {losses[0]:>10.4f} {sum(tail) / len(tail):>10.4f}")


if __name__ == "__main__":
    main()
