"""One quantized copy of a matrix: its parts, and what tracing knows about them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from steelyard.formats.parts import amax_shape, codes_shape, is_stored_transposed, scales_shape, stored_shape
from steelyard.formats.schemes import Scheme
from steelyard.jax.formats import codes_dtype, scales_dtype


class Parts(NamedTuple):
    """The arrays of a copy, with the same leading batch dims."""

    codes: jax.Array
    scales: jax.Array
    amax: jax.Array | None = None


@dataclass(frozen=True)
class CopySpec:
    """How a copy of an (M, N) matrix is stored."""

    scheme: Scheme
    columnwise: bool
    shape: tuple[int, int]

    @property
    def stored(self) -> tuple[int, int]:
        return stored_shape(self.scheme, self.shape, self.columnwise)

    @property
    def is_stored_transposed(self) -> bool:
        return is_stored_transposed(self.scheme, self.columnwise)

    @property
    def outer(self) -> int:
        """The size of the dim that a GEMM keeps."""
        return self.shape[1 if self.columnwise else 0]

    @property
    def reduced(self) -> int:
        """The size of the dim that a GEMM reduces over."""
        return self.shape[0 if self.columnwise else 1]

    def part_types(self) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and dtype of each part; the amax only if the scheme keeps one."""
        types = [
            (codes_shape(self.scheme, self.stored), codes_dtype(self.scheme)),
            (scales_shape(self.scheme, self.stored, self.columnwise), scales_dtype(self.scheme)),
        ]
        amax = amax_shape(self.scheme, self.stored)
        return types if amax is None else [*types, (amax, jax.numpy.float32)]


def pair_of(flat, row: Scheme | None, col: Scheme | None) -> tuple[Parts | None, Parts | None]:
    """Parts of the rowwise and the columnwise copy, from a flat list."""
    rest = list(flat)
    pair = []
    for scheme in (row, col):
        if scheme is None:
            pair.append(None)
            continue
        amax = 1 if scheme.family in ("tensor", "nvfp4") else 0
        pair.append(Parts(*rest[: 2 + amax]))
        rest = rest[2 + amax :]
    return pair[0], pair[1]


def flat_parts(parts: Parts) -> list[jax.Array]:
    return [part for part in parts if part is not None]
