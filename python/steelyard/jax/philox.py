"""Philox4x32-10 in jnp: the generator behind stochastic rounding."""

import jax
import jax.numpy as jnp
import numpy as np

_MULTIPLIERS = (np.uint32(0xD2511F53), np.uint32(0xCD9E8D57))
_KEY_STEPS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))


def _multiply_wide(a: jax.Array, b: np.uint32) -> tuple[jax.Array, jax.Array]:
    """High and low word of a product of 32-bit words."""
    mask = np.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> 16, a & mask, b >> np.uint32(16), b & mask
    lowest = a_low * b_low
    first = a_high * b_low + (lowest >> 16)
    second = a_low * b_high + (first & mask)
    return a_high * b_high + (first >> 16) + (second >> 16), a * b


def _rounds(words: list[jax.Array], keys: list[jax.Array]) -> list[jax.Array]:
    for _ in range(10):
        high_0, low_0 = _multiply_wide(words[0], _MULTIPLIERS[0])
        high_1, low_1 = _multiply_wide(words[2], _MULTIPLIERS[1])
        words = [high_1 ^ words[1] ^ keys[0], low_1, high_0 ^ words[3] ^ keys[1], low_0]
        keys = [key + step for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return words


def rounding_bytes(shape: tuple[int, int], columnwise: bool, rng: jax.Array) -> jax.Array:
    """One random byte per element of a logical (M, N) matrix; `rng`: seed and offset, low words first."""
    elements = shape[0] * shape[1]
    groups = jnp.arange(-(-elements // 16), dtype=jnp.uint32)
    copy = jnp.full_like(groups, int(columnwise))
    counter = [groups, copy, jnp.full_like(groups, rng[2]), jnp.full_like(groups, rng[3])]
    words = jnp.stack(_rounds(counter, [rng[0], rng[1]]), axis=-1)
    shifts = jnp.arange(0, 32, 8, dtype=jnp.uint32)
    stream = (words[..., None] >> shifts & np.uint32(0xFF)).astype(jnp.uint8).reshape(-1)
    return stream[:elements].reshape(shape)
