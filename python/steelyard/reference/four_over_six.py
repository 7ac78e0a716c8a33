"""Four over six: each NVFP4 block also tries to map its amax to 4 instead of 6 and keeps the smaller error."""

from collections.abc import Callable

import numpy as np

from steelyard.reference.casts import E2M1, E4M3, decode, encode
from steelyard.reference.scales import FOUR_OVER_SIX_E4M3_MAX, nvfp4_encode_factor


def choose(blocks, block_amax, amax, encode_scale, decode_scale, error: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes and E4M3 bytes of `blocks` (row blocks, rows, column blocks, columns); other arguments broadcast."""
    measure = {"mae": np.abs, "mse": np.square}[error]
    with np.errstate(over="ignore", invalid="ignore"):
        base = block_amax / np.float32(6) * encode_scale
        codes_6, bytes_6, error_6 = _candidate(blocks, base, amax, decode_scale, measure)
        codes_4, bytes_4, error_4 = _candidate(blocks, base * np.float32(1.5), amax, decode_scale, measure)
    keep_4 = error_4 < error_6
    return np.where(keep_4, codes_4, codes_6), np.where(keep_4, bytes_4, bytes_6)


def _candidate(blocks, scale, amax, decode_scale, measure: Callable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scale_bytes = encode(np.minimum(scale, E4M3.max), E4M3)
    codes = encode(blocks * nvfp4_encode_factor(scale_bytes, decode_scale), E2M1)
    decoded = decode(codes, E2M1) * decode(scale_bytes, E4M3) * amax / np.float32(6 * FOUR_OVER_SIX_E4M3_MAX)
    return codes, scale_bytes, _block_sum(measure(decoded - blocks))


def _block_sum(errors: np.ndarray) -> np.ndarray:
    """Float32 sums in a fixed order: one by one along a row, then the rows of a tile as a tree."""
    total = errors[..., 0]
    for column in range(1, errors.shape[-1]):
        total = total + errors[..., column]
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[..., None]
