"""The random Hadamard transform: groups of 16 values times a fixed sign and a 16x16 Hadamard matrix, over 4."""

import numpy as np

GROUP = 16
SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], np.float32)


def round_to_bf16(x: np.ndarray) -> np.ndarray:
    """Float32 values rounded to bfloat16, nearest even."""
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32))


def transform(x: np.ndarray) -> np.ndarray:
    """The transform along the last dim (zero-padded to 16), from bf16-rounded values to bf16-rounded values."""
    padded = np.pad(round_to_bf16(x), ((0, 0), (0, -x.shape[1] % GROUP)))
    groups = padded.reshape(padded.shape[0], padded.shape[1] // GROUP, GROUP)
    return round_to_bf16(_butterflies(groups * SIGNS)).reshape(padded.shape)


def inverse(x: np.ndarray) -> np.ndarray:
    """Undo the transform in float32; the matrix is orthogonal, so the same butterflies, then the signs."""
    groups = x.reshape(x.shape[0], x.shape[1] // GROUP, GROUP)
    return (_butterflies(groups) * SIGNS).reshape(x.shape)


def _butterflies(groups: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        for stride in (1, 2, 4, 8):
            pairs = groups.reshape(*groups.shape[:2], GROUP // (2 * stride), 2, stride)
            low, high = pairs[..., 0, :], pairs[..., 1, :]
            groups = np.stack((low + high, low - high), axis=-2).reshape(groups.shape)
        return groups * np.float32(0.25)
