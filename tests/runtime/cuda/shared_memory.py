"""Checked shared memory of all blocks of a launch: reads of unwritten bytes and races between barriers raise."""

import numpy as np
from device_memory import FRESH
from ptx_text import PtxError

BASE = 0x400
_WIDEST = 16
_NOBODY, _SEVERAL = -1, -2


class SharedMemory:
    """`size` bytes per block. Between two barriers, no other thread may access a byte that one thread writes.

    Accesses are at multiples of their size: each array is viewed as rows of that many bytes, one row per access.
    """

    def __init__(self, blocks: int, size: int):
        self._size, self._pitch = size, -(-size // _WIDEST) * _WIDEST
        self._bytes = np.full(blocks * self._pitch, FRESH, np.uint8)
        self._writer = np.full(blocks * self._pitch, _NOBODY, np.int16)
        self._reader = np.full(blocks * self._pitch, _NOBODY, np.int16)
        self._is_written = np.zeros(blocks * self._pitch, bool)

    def pass_barrier(self, blocks: np.ndarray) -> None:
        """Forget the accesses before the barrier."""
        self._writer.reshape(-1, self._pitch)[blocks] = _NOBODY
        self._reader.reshape(-1, self._pitch)[blocks] = _NOBODY

    def load(self, blocks: np.ndarray, threads: np.ndarray, addresses: np.ndarray, size: int) -> np.ndarray:
        where = self._locate(blocks, addresses, size)
        mine = threads[:, None].astype(np.int16)
        if not _rows(self._is_written, where, size).all():
            raise PtxError("shared memory is read that was never written")
        self._refuse_others(_rows(self._writer, where, size), mine, "read what another thread writes")
        readers = self._reader.reshape(-1, size)
        known = readers[where]
        readers[where] = np.where((known == _NOBODY) | (known == mine), mine, _SEVERAL)
        # If several lanes read a byte, only the last is recorded: the others see that another thread reads it.
        lane, byte = np.nonzero(readers[where] != mine)
        readers[where[lane], byte] = _SEVERAL
        return _rows(self._bytes, where, size)

    def store(self, blocks: np.ndarray, threads: np.ndarray, addresses: np.ndarray, data: np.ndarray) -> None:
        size = data.shape[1]
        where = self._locate(blocks, addresses, size)
        mine = threads[:, None].astype(np.int16)
        self._refuse_others(_rows(self._writer, where, size), mine, "write what another thread writes")
        self._refuse_others(_rows(self._reader, where, size), mine, "write what another thread reads")
        self._bytes.reshape(-1, size)[where] = data
        self._is_written.reshape(-1, size)[where] = True
        self._writer.reshape(-1, size)[where] = mine
        self._refuse_others(_rows(self._writer, where, size), mine, "write what another lane writes")

    def _locate(self, blocks: np.ndarray, addresses: np.ndarray, size: int) -> np.ndarray:
        """Which rows of `size` bytes are accessed."""
        offsets = addresses.astype(np.int64) - BASE
        if offsets.size and (offsets.min() < 0 or offsets.max() + size > self._size):
            raise PtxError(
                f"access outside of {self._size} bytes of shared memory, at {offsets.min()}..{offsets.max()}"
            )
        if (offsets & (size - 1)).any():
            raise PtxError(f"shared access of {size} bytes at an address that is no multiple")
        return (blocks * self._pitch + offsets) // size

    @staticmethod
    def _refuse_others(owners: np.ndarray, mine: np.ndarray, deed: str) -> None:
        if ((owners != _NOBODY) & (owners != mine)).any():
            raise PtxError(f"race in shared memory: threads {deed} with no barrier between")


def _rows(array: np.ndarray, where: np.ndarray, size: int) -> np.ndarray:
    return array.reshape(-1, size)[where]
