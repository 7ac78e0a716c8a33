"""How codes and scales are laid out in memory: blocks, nibbles, transposes, and the order that GPU GEMMs read."""

from dataclasses import replace

import numpy as np
import torch

from steelyard.errors import ConstraintError
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import round_up


def to_blocks(array: np.ndarray, block_shape: tuple[int, int]) -> np.ndarray:
    """(row blocks, rows, column blocks, columns), zero-padded to whole blocks."""
    rows, columns = block_shape
    padded = np.pad(array, ((0, -array.shape[0] % rows), (0, -array.shape[1] % columns)))
    return padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)


def from_blocks(blocks: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The inverse of `to_blocks`: an array of `shape`."""
    whole = blocks.reshape(blocks.shape[0] * blocks.shape[1], blocks.shape[2] * blocks.shape[3])
    return whole[: shape[0], : shape[1]]


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """Two 4-bit codes per byte along the last dim, the first in the low nibble; an odd last code is paired with 0."""
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return even[:, 0::2] | even[:, 1::2] << 4


def unpack_nibbles(packed: np.ndarray, columns: int) -> np.ndarray:
    """The 4-bit codes of `pack_nibbles`, one per byte."""
    pairs = np.stack((packed & 0xF, packed >> 4), axis=-1)
    return pairs.reshape(packed.shape[0], 2 * packed.shape[1])[:, :columns]


def transpose(copy: QuantizedCopy) -> QuantizedCopy:
    """The copy of the other usage, computed from the codes."""
    if not copy.scheme.is_transposable:
        raise ConstraintError(
            "transpose_scheme",
            "the other usage must follow from the codes: one scale for the tensor or square tiles, "
            f"got block {copy.scheme.block}; quantize it from the source",
        )
    codes, scales = _transpose_arrays(copy)
    return replace(copy, codes=_tensor(codes), scales=_tensor(scales), columnwise=not copy.columnwise)


def _transpose_arrays(copy: QuantizedCopy) -> tuple[np.ndarray, np.ndarray]:
    codes, scales = copy.codes.numpy(), copy.scales.numpy()
    family = copy.scheme.family
    if family == "tensor":
        return codes.T, scales
    if family == "block":
        return codes.T, scales.T
    rows, columns = copy.shape
    if family == "mx":
        if copy.columnwise:
            return codes, np.repeat(scales[:, ::32], 32, axis=0)[:rows]
        return codes, np.repeat(scales[::32], 32, axis=1)[:, :columns]
    unpacked = unpack_nibbles(codes, copy.stored_shape[1])
    return pack_nibbles(unpacked.T), np.repeat(scales[::16].T, 16, axis=0)[: copy.stored_shape[1]]


def swizzle(copy: QuantizedCopy) -> torch.Tensor:
    """The scales in the layout that GPU GEMMs read, padded with zeros; for MX and NVFP4, as bytes in that order."""
    scales = copy.scales.numpy()
    if not copy.scheme.has_blocks:
        raise ConstraintError(
            "swizzle_scheme",
            f"the gemm layout needs block scales, got block {copy.scheme.block}; use the scales as they are",
        )
    if copy.scheme.block == "1x128":
        return _tensor(np.pad(scales.T, ((0, 0), (0, -scales.shape[0] % 4))))
    if copy.scheme.block == "128x128":
        return _tensor(np.pad(scales, ((0, 0), (0, -scales.shape[1] % 4))))
    if copy.scheme.family == "mx" and copy.columnwise:
        scales = scales.T
    return _tensor(_swizzle_bytes(scales))


def _swizzle_bytes(scales: np.ndarray) -> np.ndarray:
    """Tiles of 128x4 scales, 512 bytes each: 32 rows of 16 bytes, each row four groups of four."""
    rows, columns = (round_up(size, multiple) for size, multiple in zip(scales.shape, (128, 4), strict=True))
    padded = np.pad(scales, ((0, rows - scales.shape[0]), (0, columns - scales.shape[1])))
    tiles = padded.reshape(rows // 128, 4, 32, columns // 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(rows, columns)


def _tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor that owns its memory."""
    return torch.from_numpy(np.array(array, order="C"))
