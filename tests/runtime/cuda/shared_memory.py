"""Shared memory of all blocks of a launch, watched: reads of what nobody wrote and races between barriers raise."""

import numpy as np
from device_memory import FRESH
from ptx_text import PtxError

BASE = 0x400
_NOBODY, _SEVERAL = -1, -2


class SharedMemory:
    """`size` bytes a block. Between two barriers a byte that one thread writes is no other thread's to touch."""

    def __init__(self, blocks: int, size: int):
        self._bytes = np.full((blocks, size), FRESH, np.uint8)
        self._writer = np.full((blocks, size), _NOBODY, np.int32)
        self._reader = np.full((blocks, size), _NOBODY, np.int32)
        self._is_written = np.zeros((blocks, size), bool)
        self._size = size

    def pass_barrier(self, blocks: np.ndarray) -> None:
        """Nothing before the barrier concerns what comes after."""
        self._writer[blocks] = _NOBODY
        self._reader[blocks] = _NOBODY

    def load(self, blocks: np.ndarray, threads: np.ndarray, addresses: np.ndarray, size: int) -> np.ndarray:
        where = self._locate(blocks, addresses, size)
        if not self._is_written[where].all():
            raise PtxError("shared memory is read that was never written")
        self._refuse_others(self._writer[where], threads, "read what another thread writes")
        known = self._reader[where]
        mine = threads[:, None]
        # Lanes that read a byte together leave their mark one after the other: marks that differ mean several.
        self._reader[where] = np.where((known == _NOBODY) | (known == mine), mine, _SEVERAL)
        self._reader[where] = np.where(self._reader[where] == mine, mine, _SEVERAL)
        return self._bytes[where]

    def store(self, blocks: np.ndarray, threads: np.ndarray, addresses: np.ndarray, data: np.ndarray) -> None:
        where = self._locate(blocks, addresses, data.shape[1])
        self._refuse_others(self._writer[where], threads, "write what another thread writes")
        self._refuse_others(self._reader[where], threads, "write what another thread reads")
        self._bytes[where] = data
        self._is_written[where] = True
        self._writer[where] = threads[:, None]
        self._refuse_others(self._writer[where], threads, "write what another lane writes")

    def _locate(self, blocks, addresses, size) -> tuple[np.ndarray, np.ndarray]:
        offsets = addresses.astype(np.int64) - BASE
        if offsets.size and (offsets.min() < 0 or offsets.max() + size > self._size):
            raise PtxError(
                f"access outside of {self._size} bytes of shared memory, at {offsets.min()}..{offsets.max()}"
            )
        if np.any(offsets % size):
            raise PtxError(f"shared access of {size} bytes at an address that is no multiple")
        return blocks[:, None], offsets[:, None] + np.arange(size)

    @staticmethod
    def _refuse_others(owners: np.ndarray, threads: np.ndarray, deed: str) -> None:
        if np.any((owners != _NOBODY) & (owners != threads[:, None])):
            raise PtxError(f"race in shared memory: threads {deed} with no barrier between")
