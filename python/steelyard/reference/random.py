"""Philox4x32-10: the counter-based generator behind stochastic rounding."""

import numpy as np

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)


def philox4x32(counter: tuple, key: tuple[int, int]) -> list[np.ndarray]:
    """Four 32-bit words (as uint64 arrays) after ten rounds; counter words may be arrays, which broadcast."""
    words = [np.asarray(word, np.uint64) for word in counter]
    keys = list(key)
    for _ in range(10):
        product_0, product_1 = (words[i] * np.uint64(m) for i, m in zip((0, 2), _MULTIPLIERS, strict=True))
        words = [
            product_1 >> np.uint64(32) ^ words[1] ^ np.uint64(keys[0]),
            product_1 & _LOW,
            product_0 >> np.uint64(32) ^ words[3] ^ np.uint64(keys[1]),
            product_0 & _LOW,
        ]
        keys = [(k + step) & 0xFFFFFFFF for k, step in zip(keys, _KEY_STEPS, strict=True)]
    return words


def rounding_bytes(shape: tuple[int, int], columnwise: bool, rng: tuple[int, int]) -> np.ndarray:
    """One random byte per element of a logical (M, N) matrix, independent of how the matrix is stored."""
    seed, offset = (int(word) & 0xFFFFFFFFFFFFFFFF for word in rng)
    groups = -(-(shape[0] * shape[1]) // 16)
    counter = (np.arange(groups, dtype=np.uint64), int(columnwise), offset & 0xFFFFFFFF, offset >> 32)
    words = np.broadcast_arrays(*philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32)))
    stream = np.stack(words, axis=-1).astype("<u4").view(np.uint8).reshape(-1)
    return stream[: shape[0] * shape[1]].reshape(shape)
