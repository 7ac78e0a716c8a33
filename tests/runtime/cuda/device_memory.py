"""Device memory on the host: every access is checked against what was allocated."""

import bisect

import numpy as np
from ptx_text import PtxError

FRESH = 0xCD
_GUARD = 256


class DeviceMemory:
    """Allocations by address. Fresh memory holds 0xCD; nothing lies between allocations."""

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
        """Make the bytes of an array memory at an address."""
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
        array, offsets = self._locate(np.array([address], np.uint64), size)
        return array[int(offsets[0]) : int(offsets[0]) + size]

    def load(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """(lanes, size) bytes."""
        parts = np.empty((len(addresses), size), np.uint8)
        for lanes, array, offsets in self._by_allocation(addresses, size):
            parts[lanes] = array[offsets[:, None] + np.arange(size)]
        return parts

    def store(self, addresses: np.ndarray, data: np.ndarray) -> None:
        size = data.shape[1]
        for lanes, array, offsets in self._by_allocation(addresses, size):
            array[offsets[:, None] + np.arange(size)] = data[lanes]

    def raise_words(self, addresses: np.ndarray, values: np.ndarray) -> None:
        """Atomic maximum of unsigned words."""
        for lanes, array, offsets in self._by_allocation(addresses, 4):
            begin = int(offsets[0]) % 4
            words = array[begin : begin + (array.size - begin) // 4 * 4].view(np.uint32)
            np.maximum.at(words, (offsets - begin) // 4, values[lanes])

    def _by_allocation(self, addresses: np.ndarray, size: int):
        if np.any(addresses % np.uint64(size)):
            raise PtxError(f"access of {size} bytes at an address that is no multiple")
        positions = np.searchsorted(np.array(self._bases, np.uint64), addresses, side="right") - 1
        for position in np.unique(positions):
            lanes = np.nonzero(positions == position)[0]
            yield lanes, *self._locate(addresses[lanes], size)

    def _locate(self, addresses: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        position = bisect.bisect(self._bases, int(addresses[0])) - 1
        if position < 0:
            raise PtxError(f"no memory at {int(addresses[0]):#x}")
        offsets = addresses.astype(np.int64) - self._bases[position]
        array = self._arrays[position]
        if int(offsets.max()) + size > array.size:
            raise PtxError(f"access {int(offsets.max()) + size - array.size} bytes behind {array.size} bytes of memory")
        return array, offsets
