"""The memory that the kernels of a program share, laid out when it is compiled."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch


@dataclass(frozen=True)
class Place:
    """Where a value lies."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] = ()
    """The dims from the outermost in memory to the innermost; empty where they are in order."""


class Arena:
    """One block of memory; `tensors` and `addresses` have one entry per place, `address` is where it begins."""

    __slots__ = ("_memory", "address", "addresses", "tensors")

    def __init__(self, size: int, places: Sequence[Place], device: torch.device | None = None):
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.address = self._memory.data_ptr()
        self.tensors = [_view(self._memory, place) for place in places]
        self.addresses = [self.address + place.offset for place in places]


class Arenas:
    """Blocks that are not in use: a call takes one, or makes it, and gives it back. So calls may overlap."""

    def __init__(self, size: int, places: Sequence[Place], tapes: Sequence[Any] = ()):
        self._size = size
        self._places = places
        self._tapes = tapes
        """Native tapes, which keep memory for what has a size that is known only at run time."""
        self._free: list[Arena] = []
        self.give = self._free.append
        """Lets others use a block; one that a failed call never gives back just dies."""

    def make(self, device: torch.device) -> Arena:
        """A block of a device's memory for one call: torch's allocator keeps it for the next call on the same stream,
        and knows when another stream, or a CUDA graph, may not have it."""
        return Arena(self._size, self._places, device)

    def take(self) -> Arena:
        """A block that is not in use."""
        try:
            return self._free.pop()
        except IndexError:
            return Arena(self._size, self._places)

    def nbytes(self) -> int:
        """Bytes that are kept, those of tapes too."""
        return self._size * len(self._free) + sum(tape.nbytes() for tape in self._tapes)


def _view(memory: torch.Tensor, place: Place) -> torch.Tensor:
    size = prod(place.shape) * place.dtype.itemsize
    return in_order(memory[place.offset : place.offset + size].view(place.dtype), place.shape, place.order)


def empty_in_order(shape: tuple[int, ...], order: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
    """New memory for a tensor whose dims have an order in it."""
    return in_order(torch.empty(prod(shape), dtype=dtype), shape, order)


def in_order(flat: torch.Tensor, shape: tuple[int, ...], order: tuple[int, ...]) -> torch.Tensor:
    """A tensor of a shape whose dims have an order in memory."""
    if not order:
        return flat.view(shape)
    return flat.view([shape[dim] for dim in order]).permute([order.index(dim) for dim in range(len(shape))])
