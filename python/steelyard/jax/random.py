"""From PRNG keys to the seed and offset of stochastic rounding."""

from typing import Any

import jax
import jax.numpy as jnp

from steelyard.errors import RecipeError
from steelyard.jax.arguments import is_array


def seed_words(key: Any) -> jax.Array:
    """Two words, the low one first, drawn with a key."""
    dtype = key.dtype if is_array(key) else None
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (typed and key.shape == ()) and not (dtype == jnp.uint32 and key.shape == (2,)):
        found = type(key).__name__ if dtype is None else f"{dtype} of shape {tuple(key.shape)}"
        raise RecipeError(f"key must be one key of jax.random.key, got {found}")
    return jax.random.bits(key, (2,), jnp.uint32)


def random_words(key: Any) -> jax.Array:
    """Seed and offset 0 as four words."""
    return jnp.concatenate([seed_words(key), jnp.zeros((2,), jnp.uint32)])


def pack_state(seed: jax.Array) -> jax.Array:
    """Seed and a count of 0 as float32: four 16-bit quarters of the seed, which float32 holds exactly, and the count.

    The state of a quantizer set is returned as its gradient, and only floats have gradients.
    """
    quarters = jnp.stack([seed[0] & 0xFFFF, seed[0] >> 16, seed[1] & 0xFFFF, seed[1] >> 16])
    return jnp.concatenate([quarters.astype(jnp.float32), jnp.zeros((1,), jnp.float32)])


def state_words(state: jax.Array) -> jax.Array:
    """The four words of a state: seed, then the count as offset."""
    words = state.astype(jnp.uint32)
    return jnp.stack([words[0] | words[1] << 16, words[2] | words[3] << 16, words[4], jnp.zeros_like(words[4])])


def next_state(state: jax.Array) -> jax.Array:
    """The state for the next backward. The count wraps to 0 at 2^24, the limit of float32."""
    count = state[4] + 1
    return state.at[4].set(jnp.where(count < 2.0**24, count, 0.0))


def words_state(words: jax.Array) -> jax.Array:
    """The state that has these four words."""
    return pack_state(words[:2]).at[4].set(words[2].astype(jnp.float32))


def next_words(words: jax.Array) -> jax.Array:
    """The four words of the next backward: the offset's low word counts, as `next_state` does."""
    count = words[2] + jnp.uint32(1)
    return words.at[2].set(jnp.where(count < 2**24, count, jnp.uint32(0)))


def split_words(words: jax.Array, number: Any) -> jax.Array:
    """Words for one of several draws of a step, which differ in the high word of their offset; rows if `number` has
    several."""
    number = jnp.asarray(number, jnp.uint32)
    # Numbers of draws within draws must not meet: a multiplicative hash keeps them apart.
    high = (words[3] + number + 1) * jnp.uint32(0x9E3779B1)
    low = jnp.broadcast_to(words[:3], (*number.shape, 3))
    return jnp.concatenate([low, high[..., None]], axis=-1)
