"""Device memory on the host: every access is checked against the allocations."""

import bisect

import numpy as np
from ptx_text import PtxError

FRESH = 0xCD
_GUARD = 256


class DeviceMemory:
    """Allocations by address. Fresh memory holds 0xCD; there is no memory between allocations."""

    def __init__(self):
        self._bases: list[int] = []
        self._arrays: list[np.ndarray] = []
        self._next = 0x7F00_0000_0000

    def allocate(self, size: int) -> int:
        """Address of `size` fresh bytes, aligned to 256."""
        base = self._next
        self._next = -(-(base + size + _GUARD) // 256) * 256
        self.register(base, np.full(size, FRESH, np.uint8))
        return base

    def register(self, base: int, array: np.ndarray) -> None:
        """Map the bytes of an array at an address."""
        position = bisect.bisect(self._bases, base)
        self._bases.insert(position, base)
        self._arrays.insert(position, array)

    def release(self, base: int) -> None:
        position = self._bases.index(base)
        del self._bases[position], self._arrays[position]

    def put(self, data: np.ndarray, offset: int = 0) -> int:
        """Address of a copy of an array, `offset` bytes into its allocation."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        address = self.allocate(raw.size + offset)
        self._arrays[bisect.bisect(self._bases, address) - 1][offset:] = raw
        return address + offset

    def view(self, address: int, size: int) -> np.ndarray:
        """The bytes at an address."""
        base, array = self._allocation(address, size)
        return array[address - base : address - base + size]

    def load(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """(lanes, size) bytes."""
        parts = np.empty((len(addresses), size), np.uint8)
        for lanes, items, places in self._by_allocation(addresses, size):
            parts[lanes] = items[places].view(np.uint8).reshape(-1, size)
        return parts

    def store(self, addresses: np.ndarray, data: np.ndarray) -> None:
        size = data.shape[1]
        given = np.ascontiguousarray(data).view(f"V{size}").reshape(-1)
        for lanes, items, places in self._by_allocation(addresses, size):
            items[places] = given[lanes]

    def raise_words(self, addresses: np.ndarray, values: np.ndarray) -> None:
        """Atomic maximum of unsigned words."""
        for lanes, items, places in self._by_allocation(addresses, 4):
            np.maximum.at(items.view(np.uint32), places, values[lanes])

    def _by_allocation(self, addresses: np.ndarray, size: int):
        """Per allocation: the lanes that access it, its memory as items of `size` bytes, and the item of each lane."""
        if (addresses & np.uint64(size - 1)).any():
            raise PtxError(f"access of {size} bytes at an address that is no multiple")
        first, last = int(addresses.min()), int(addresses.max())
        if bisect.bisect(self._bases, first) == bisect.bisect(self._bases, last):
            yield slice(None), *self._items(addresses, last, size)
            return
        positions = np.searchsorted(np.array(self._bases, np.uint64), addresses, side="right")
        for position in np.unique(positions):
            lanes = np.nonzero(positions == position)[0]
            yield lanes, *self._items(addresses[lanes], int(addresses[lanes].max()), size)

    def _items(self, addresses: np.ndarray, last: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """An allocation may begin between two multiples of the size; addresses are always multiples."""
        base, array = self._allocation(last, size)
        skipped = -base % size
        items = array[skipped : skipped + (array.size - skipped) // size * size].view(f"V{size}")
        return items, (addresses - np.uint64(base + skipped)).astype(np.int64) // size

    def _allocation(self, address: int, size: int) -> tuple[int, np.ndarray]:
        """The base address and the bytes of the allocation that holds these bytes."""
        position = bisect.bisect(self._bases, address) - 1
        if position < 0:
            raise PtxError(f"no memory at {address:#x}")
        base, array = self._bases[position], self._arrays[position]
        missing = address - base + size - array.size
        if missing > 0:
            raise PtxError(f"access {missing} bytes behind {array.size} bytes of memory")
        return base, array
