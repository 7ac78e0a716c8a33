"""Small functions with parameters, and the same by hand with `steelyard.jax.dense`."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import steelyard.jax as sj

WIDTH = 64


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def mlp_parameters():
    return {
        "up": {"kernel": normal(1, WIDTH, 96) / 8, "bias": normal(2, 96) / 8},
        "down": {"kernel": normal(3, 96, WIDTH) / 8, "bias": jnp.zeros(WIDTH)},
    }


def mlp(parameters, x):
    hidden = jnp.tanh(x @ parameters["up"]["kernel"] + parameters["up"]["bias"])
    return hidden @ parameters["down"]["kernel"] + parameters["down"]["bias"]


def mlp_by_hand(parameters, x, sets):
    up, down = parameters["up"], parameters["down"]
    hidden = jnp.tanh(sj.dense(x, up["kernel"], None, sets["up"]) + up["bias"])
    return sj.dense(hidden, down["kernel"], None, sets["down"]) + down["bias"]


def stack_parameters(layers=3):
    return {"layers": {"kernel": normal(4, layers, WIDTH, WIDTH) / 8}}


def stack(parameters, x):
    """Layers in a loop, as in MaxText."""
    return lax.scan(lambda x, kernel: (jnp.tanh(x @ kernel), None), x, parameters["layers"]["kernel"])[0]


def nested_parameters():
    return {"layers": {"kernel": stack_parameters(4)["layers"]["kernel"].reshape(2, 2, WIDTH, WIDTH)}}


def nested(parameters, x):
    """Loops in a loop, whose layers are those of `stack`."""
    layers = lambda x, kernels: (stack({"layers": {"kernel": kernels}}, x), None)  # noqa: E731
    return lax.scan(layers, x, parameters["layers"]["kernel"])[0]


def stack_by_hand(parameters, x, sets):
    for kernel, quantizers in zip(parameters["layers"]["kernel"], sets, strict=True):
        x = jnp.tanh(sj.dense(x, kernel, None, quantizers))
    return x


def loss_of(fn):
    return lambda *args, **kwargs: jnp.mean(fn(*args, **kwargs) ** 2)


def assert_same(found, expected):
    """The same arrays, bit for bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def difference(found, expected) -> float:
    """The largest difference of two trees, relative to the largest value of each array."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in pairs)
