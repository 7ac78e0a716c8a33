"""Memory for large results that nobody holds when a call of a net ends: it is kept for the next call.

A net that is cut into blocks calls a function per block, and each returns tensors. A block that appends to a cache of
keys and values returns the whole cache. What the C library gives back to the system at the end of a call, and gets from
it in the next, costs a page fault for every 4 KiB: four times as long as all kernels of a decoding step.
"""

import functools
import threading
from collections.abc import Iterable, Sequence
from math import prod
from types import TracebackType
from typing import Any

import torch

LEAST = 2**20
"""Bytes of the smallest result that memory is kept for: below, the C library keeps its own."""
_STEPS = 16
"""Sizes of blocks between one power of two and the next, so that tensors that grow a little find theirs again."""


class _Block:
    """Memory of a result."""

    __slots__ = ("_address", "_storage", "nbytes")

    def __init__(self, nbytes: int):
        self._storage = torch.UntypedStorage(nbytes)
        self._address = self._storage.data_ptr()
        self.nbytes = nbytes

    def is_free(self) -> bool:
        """Whether no tensor has this memory any more."""
        return torch._C._storage_Use_Count(self._storage._cdata) == 1  # pyright: ignore[reportAttributeAccessIssue]

    def is_whole(self) -> bool:
        """Whether nobody gave the storage other memory, as `share_memory_` and `resize_` do."""
        return self._storage.data_ptr() == self._address and self._storage.nbytes() == self.nbytes

    def tensor(self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in this memory."""
        return torch.empty(0, dtype=dtype).set_(self._storage, 0, sizes, strides)


class _Call:
    """The blocks of one call."""

    def __init__(self, kept: Iterable[_Block]):
        self._kept = list(kept)
        self._used: list[_Block] = []

    def make(self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        """A tensor in memory of an earlier call, or of a result of this one that is gone, or in new memory."""
        nbytes = _rounded(nbytes)
        block = _taken(self._kept, nbytes) or _taken(self._used, nbytes) or _Block(nbytes)
        self._used.append(block)
        return block.tensor(sizes, strides, dtype)

    def left(self) -> list[_Block]:
        """The blocks that the call used and nobody holds; others belong to who holds them."""
        return [block for block in self._used if block.is_free() and block.is_whole()]


def _taken(blocks: list[_Block], nbytes: int) -> _Block | None:
    for i, block in enumerate(blocks):
        if block.nbytes == nbytes and block.is_free() and block.is_whole():
            return blocks.pop(i)
    return None


def _rounded(nbytes: int) -> int:
    step = max(1, 2 ** (nbytes.bit_length() - 1) // _STEPS)
    return -(-nbytes // step) * step


class _Current(threading.local):
    call: _Call | None = None


_current = _Current()


class ResultMemory:
    """What the calls of a net leave to the next ones. Calls may overlap: each takes what is there."""

    def __init__(self):
        self._kept: list[list[_Block]] = []

    def call(self) -> "_Lent":
        """The context of a call."""
        return _Lent(self._kept)

    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(block.nbytes for blocks in list(self._kept) for block in blocks)


class _Lent:
    __slots__ = ("_call", "_kept", "_outer")

    def __init__(self, kept: list[list[_Block]]):
        self._kept = kept

    def __enter__(self) -> None:
        try:
            blocks = self._kept.pop()
        except IndexError:
            blocks = []
        self._call = _Call(blocks)
        self._outer, _current.call = _current.call, self._call

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        _current.call = self._outer
        left = [] if error is not None else self._call.left()
        if left:
            self._kept.append(left)


def result_maker(dtype: torch.dtype, sizes: Sequence[int] | None) -> Any:
    """What makes the tensors of a result, given sizes and strides; `sizes` are None where they are not known before."""
    if sizes is not None and prod(sizes) * dtype.itemsize < LEAST:
        return functools.partial(torch.empty_strided, dtype=dtype)
    return functools.partial(_make, dtype=dtype)


def _make(sizes: Sequence[int], strides: Sequence[int], *, dtype: torch.dtype) -> torch.Tensor:
    call = _current.call
    nbytes = 0 if call is None else prod(sizes) * dtype.itemsize
    if call is None or nbytes < LEAST:
        return torch.empty_strided(sizes, strides, dtype=dtype)
    return call.make(sizes, strides, dtype, nbytes)
