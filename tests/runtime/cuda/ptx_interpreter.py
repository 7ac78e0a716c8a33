"""A strict interpreter of the PTX that LLVM emits for our kernels: all threads of a launch at once, in NumPy.

Unknown opcodes and modifiers raise, memory is checked byte by byte, warp operations need whole warps. Threads that
diverge are merged again by running those behind first. Not modelled: time, caches, weak ordering of global memory.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import shared_memory
from device_memory import FRESH, DeviceMemory
from ptx_instructions import EXCHANGES, WARP, WIDTHS, decode
from ptx_text import Entry, Instruction, PtxError, parse
from shared_memory import SharedMemory


@dataclass
class Traffic:
    """What warps issued, and how their accesses coalesced: 32-byte sectors of global memory, conflicts in shared."""

    requested: Counter = field(default_factory=Counter)
    sectors: Counter = field(default_factory=Counter)
    conflicts: dict[str, int] = field(default_factory=dict)
    """Opcode of shared accesses -> the most words that one bank had to serve at once."""
    wavefronts: Counter = field(default_factory=Counter)
    """Opcode of shared accesses -> how often all banks together were busy with them."""
    issued: Counter = field(default_factory=Counter)
    """What `counted_name` calls an instruction -> warps that executed it, whichever of their lanes did."""


def run(
    text: str, arguments: list[int], blocks: int, memory: DeviceMemory, shared_bytes: int = 0, measured: bool = False
) -> Traffic:
    """Launch the one entry of a PTX text on `blocks` blocks; measuring accesses doubles the time."""
    header, entries = parse(text)
    (entry,) = entries.values()
    launch = Launch(entry, header.get("shared", ""), arguments, blocks, memory, shared_bytes)
    launch.measured = measured
    return launch.run()


def counted_name(instruction: Instruction) -> str:
    """An opcode, with braces if an operand is several registers: `mov.b32 {}` puts halves together."""
    joins = any(operand.startswith("{") for operand in instruction.operands)
    return f"{instruction.opcode} {{}}" if joins else instruction.opcode


class Lanes:
    """Threads that run together: as a mask over the launch, by number, and with their block and thread indices."""

    def __init__(self, launch: "Launch", mask: np.ndarray):
        self.mask, self._launch = mask, launch
        self.numbers = np.flatnonzero(mask)
        self.are_all = self.numbers.size == mask.size

    def where(self, condition: np.ndarray) -> "Lanes":
        """The lanes for which a condition, given for the whole launch, holds."""
        return Lanes(self._launch, self.mask & condition)

    @cached_property
    def block(self) -> np.ndarray:
        return self._launch.block[self.numbers]

    @cached_property
    def thread(self) -> np.ndarray:
        return self._launch.thread[self.numbers]


class Launch:
    """The state of a launch: registers of all lanes, and where each thread is."""

    def __init__(self, entry: Entry, shared_symbol: str, arguments, blocks: int, memory: DeviceMemory, shared_bytes):
        if len(arguments) != len(entry.parameters):
            raise PtxError(f"{entry.name} takes {len(entry.parameters)} arguments, got {len(arguments)}")
        if entry.threads % WARP or entry.threads == 0:
            raise PtxError(f"{entry.name} must say how many whole warps it has")
        self.entry, self.memory, self.shared_symbol = entry, memory, shared_symbol
        self.lanes = blocks * entry.threads
        self.parameters = dict(zip([name for name, _ in entry.parameters], arguments, strict=True))
        self.shared = SharedMemory(blocks, shared_bytes)
        self.block = np.repeat(np.arange(blocks), entry.threads)
        self.thread = np.tile(np.arange(entry.threads), blocks)
        self.registers: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.traffic = Traffic()
        self.measured = False
        self.ready: dict[int, np.ndarray] = {0: np.ones(self.lanes, bool)}
        self.waiting: dict[int, np.ndarray] = {}
        self.parked: dict[int, np.ndarray] = {}

    def run(self) -> Traffic:
        while self.ready or self.waiting or self.parked:
            if not self.ready:
                self._release()
            counter = min(self.ready)
            self._run_from(counter, self.ready.pop(counter))
        return self.traffic

    def _run_from(self, counter: int, mask: np.ndarray) -> None:
        """Run straight on until the threads branch, wait, end, or meet others."""
        lanes, steps = Lanes(self, mask), self.entry.steps
        while True:
            if counter not in steps and self._turn(counter, lanes):
                self._count(self.entry.code[counter], lanes)
                return None
            instruction = self.entry.code[counter]
            if instruction.opcode in EXCHANGES:
                lanes = Lanes(self, self._gather_warps(counter, lanes.mask))
                if not lanes.numbers.size:
                    return None
            self._count(instruction, lanes)
            try:
                steps[counter](self, lanes)
            except PtxError as error:
                raise PtxError(f"line {instruction.line}, {instruction.opcode}: {error}") from None
            counter += 1
            if counter in self.ready:
                return self._add(self.ready, counter, lanes.mask)

    def _count(self, instruction: Instruction, lanes: Lanes) -> None:
        if not self.measured:
            return
        self.traffic.issued[counted_name(instruction)] += int(lanes.mask.reshape(-1, WARP).any(axis=1).sum())

    def _turn(self, counter: int, lanes: Lanes) -> bool:
        """Whether these threads branch, wait or end here; otherwise the instruction here is decoded."""
        if counter >= len(self.entry.code):
            raise PtxError(f"{self.entry.name} runs past its end")
        instruction = self.entry.code[counter]
        if instruction.opcode in ("bra", "bra.uni"):
            self._branch(instruction, counter, lanes.mask)
        elif instruction.opcode == "ret":
            if instruction.guard:
                raise PtxError(f"line {instruction.line}: a guarded ret is not known")
        elif instruction.opcode == "bar.sync":
            if instruction.operands != ("0",) or instruction.guard:
                raise PtxError(f"line {instruction.line}: only an unguarded bar.sync 0 is known")
            self._add(self.waiting, counter + 1, lanes.mask)
        else:
            self.entry.steps[counter] = decode(instruction, self.entry)
            return False
        return True

    def _gather_warps(self, counter: int, mask: np.ndarray) -> np.ndarray:
        """The lanes whose whole warp is here; the others wait for theirs."""
        present = mask | self.parked.pop(counter, False)
        whole = np.repeat(present.reshape(-1, WARP).all(axis=1), WARP)
        self._add(self.parked, counter, present & ~whole)
        return present & whole

    def _branch(self, instruction: Instruction, counter: int, mask: np.ndarray) -> None:
        target = self.entry.labels[instruction.operands[0]]
        taken = mask & self.guard(instruction)
        if instruction.opcode == "bra.uni" and instruction.guard:
            raise PtxError(f"line {instruction.line}: a guarded bra.uni is not known")
        self._add(self.ready, target, taken)
        self._add(self.ready, counter + 1, mask & ~taken)

    @staticmethod
    def _add(group: dict[int, np.ndarray], counter: int, mask: np.ndarray) -> None:
        if mask.any():
            group[counter] = group[counter] | mask if counter in group else mask

    def _release(self) -> None:
        """Release the blocks whose threads all wait at the same barrier."""
        if not self.waiting:
            raise PtxError("some lanes of a warp wait for others that never come")
        released = False
        for counter, mask in list(self.waiting.items()):
            whole = mask.reshape(-1, self.entry.threads).all(axis=1)
            if not whole.any():
                continue
            self.shared.pass_barrier(np.nonzero(whole)[0])
            lanes = np.repeat(whole, self.entry.threads)
            self._add(self.ready, counter, mask & lanes)
            left = mask & ~lanes
            del self.waiting[counter]
            self._add(self.waiting, counter, left)
            released = True
        if not released:
            raise PtxError("threads of a block wait for each other in different places, or some have ended")

    def guard(self, instruction: Instruction) -> np.ndarray:
        """The lanes for which an instruction's predicate is true."""
        if instruction.guard is None:
            return np.ones(self.lanes, bool)
        value = self.registers.get(instruction.guard)
        if value is None:
            raise PtxError(f"{instruction.guard} is read before it is written")
        return ~value if instruction.negated else value

    def read(self, operand: str, lanes: Lanes) -> np.ndarray:
        """The values of an operand in these lanes; do not write to the result."""
        value = self.registers.get(operand)
        if value is None:
            value = self._constant(operand)
        return value if lanes.are_all else value[lanes.numbers]

    def _constant(self, operand: str) -> np.ndarray:
        if operand not in self.constants:
            self.constants[operand] = self._make_constant(operand)
        return self.constants[operand]

    def _make_constant(self, operand: str) -> np.ndarray:
        special = {"%tid.x": self.thread, "%ctaid.x": self.block, "%laneid": self.thread % WARP}
        if operand in special:
            return special[operand].astype(np.uint32)
        if operand == self.shared_symbol:
            return np.full(self.lanes, shared_memory.BASE, np.uint64)
        if re.match(r"0f[0-9A-Fa-f]{8}$", operand):
            return np.full(self.lanes, int(operand[2:], 16), np.uint32)
        if re.match(r"0d[0-9A-Fa-f]{16}$", operand):
            return np.full(self.lanes, int(operand[2:], 16), np.uint64)
        if re.match(r"-?(0x[0-9a-fA-F]+|\d+)U?$", operand):
            return np.full(self.lanes, int(operand.rstrip("U"), 0) % 2**64, np.uint64)
        raise PtxError(f"{operand} is read before it is written, or not known")

    def write(self, register: str, value: np.ndarray, lanes: Lanes) -> None:
        """Set a register of these lanes; arrays are never written to twice, so that registers may share them."""
        wanted = WIDTHS[self.entry.width(register)]
        if value.dtype != wanted:
            raise PtxError(f"{register} is {np.dtype(wanted)}, the result {value.dtype}")
        if not lanes.are_all:
            before = self.registers.get(register)
            whole = self._unknown(wanted) if before is None else before.copy()
            whole[lanes.numbers] = value
            value = whole
        self.registers[register] = value

    def _unknown(self, dtype) -> np.ndarray:
        """The content of an unwritten register: values that no result may show."""
        if dtype is bool:
            return np.ones(self.lanes, bool)
        return np.full(self.lanes * np.dtype(dtype).itemsize, FRESH, np.uint8).view(dtype)

    def measure(self, kind: str, space: str, lanes: Lanes, addresses: np.ndarray, size: int) -> None:
        if not self.measured:
            return
        access, warps = f"{kind}.{space}.{size}", lanes.numbers // WARP
        if space == "global":
            sectors = np.unique(np.stack((warps, (addresses // 32).astype(np.int64))), axis=1)
            self.traffic.sectors[access] += 32 * sectors.shape[1]
            self.traffic.requested[access] += size * len(addresses)
            return
        # Wide accesses are served in parts of a warp, 128 bytes at a time.
        lanes_at_once = WARP if size <= 4 else 128 // size
        word = (addresses.astype(np.int64) - shared_memory.BASE) // 4
        words = np.unique(np.stack((lanes.numbers // lanes_at_once, word % 32, word)), axis=1)
        banks, per_bank = np.unique(words[:2], axis=1, return_counts=True)
        self.traffic.conflicts[access] = max(self.traffic.conflicts.get(access, 1), int(per_bank.max()))
        _, firsts = np.unique(banks[0], return_index=True)
        self.traffic.wavefronts[access] += int(np.maximum.reduceat(per_bank, firsts).sum())
