"""A strict interpreter of the PTX that LLVM emits for our kernels: all threads of a launch at once, in NumPy.

Unknown opcodes and modifiers raise, memory is checked byte by byte, warp operations need whole warps. Threads that part
are brought together again by running those behind first. Not modelled: time, caches, weak ordering of global memory.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import shared_memory
from device_memory import DeviceMemory
from ptx_arithmetic import ARITHMETIC, COMPARISONS, PREDICATES
from ptx_text import Entry, Instruction, PtxError, parse
from shared_memory import SharedMemory

_WIDTHS = {"b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "pred": bool}
_ACCESS = re.compile(r"(ld|st)\.(global|shared|param)(?:\.v(2|4))?\.b(8|16|32|64)$")
_SELECT = {
    "selp.b16": np.uint16,
    "selp.b32": np.uint32,
    "selp.b64": np.uint64,
    "selp.f32": np.uint32,
    "selp.f64": np.uint64,
}
_EXCHANGES = ("shfl.sync.bfly.b32", "shfl.sync.idx.b32", "redux.sync.max.u32")
_WARP = 32


@dataclass
class Traffic:
    """How accesses of warps fell together: 32-byte sectors of global memory, and conflicts of shared banks."""

    requested: Counter = field(default_factory=Counter)
    sectors: Counter = field(default_factory=Counter)
    conflicts: dict[str, int] = field(default_factory=dict)
    """Opcode of shared accesses -> the most words that one bank had to serve at once."""

    @property
    def worst_conflict(self) -> int:
        return max(self.conflicts.values(), default=1)


def run(
    text: str, arguments: list[int], blocks: int, memory: DeviceMemory, shared_bytes: int = 0, measured: bool = False
) -> Traffic:
    """Launch the one entry of a PTX text on `blocks` blocks; accesses are measured on demand, which takes as long."""
    header, entries = parse(text)
    (entry,) = entries.values()
    launch = Launch(entry, header.get("shared", ""), arguments, blocks, memory, shared_bytes)
    launch.measured = measured
    return launch.run()


class Launch:
    """The state of a launch: registers of all lanes, and where each thread is."""

    def __init__(self, entry: Entry, shared_symbol: str, arguments, blocks: int, memory: DeviceMemory, shared_bytes):
        if len(arguments) != len(entry.parameters):
            raise PtxError(f"{entry.name} takes {len(entry.parameters)} arguments, got {len(arguments)}")
        if entry.threads % _WARP or entry.threads == 0:
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
        """Straight on until the threads branch, wait, end, or meet others."""
        while True:
            if counter >= len(self.entry.code):
                raise PtxError(f"{self.entry.name} runs past its end")
            instruction = self.entry.code[counter]
            if instruction.opcode in ("bra", "bra.uni"):
                return self._branch(instruction, counter, mask)
            if instruction.opcode == "ret":
                if instruction.guard:
                    raise PtxError(f"line {instruction.line}: a guarded ret is not known")
                return None
            if instruction.opcode in _EXCHANGES:
                mask = self._gather_warps(counter, mask)
                if not mask.any():
                    return None
            counter += 1
            if instruction.opcode == "bar.sync":
                if instruction.operands != ("0",) or instruction.guard:
                    raise PtxError(f"line {instruction.line}: only an unguarded bar.sync 0 is known")
                self._add(self.waiting, counter, mask)
                return None
            self._execute(instruction, mask)
            if counter in self.ready:
                return self._add(self.ready, counter, mask)

    def _gather_warps(self, counter: int, mask: np.ndarray) -> np.ndarray:
        """The lanes whose whole warp is here; the others wait for theirs."""
        present = mask | self.parked.pop(counter, False)
        whole = np.repeat(present.reshape(-1, _WARP).all(axis=1), _WARP)
        self._add(self.parked, counter, present & ~whole)
        return present & whole

    def _branch(self, instruction: Instruction, counter: int, mask: np.ndarray) -> None:
        target = self.entry.labels[instruction.operands[0]]
        taken = mask & self._guard(instruction)
        if instruction.opcode == "bra.uni" and instruction.guard:
            raise PtxError(f"line {instruction.line}: a guarded bra.uni is not known")
        self._add(self.ready, target, taken)
        self._add(self.ready, counter + 1, mask & ~taken)

    @staticmethod
    def _add(group: dict[int, np.ndarray], counter: int, mask: np.ndarray) -> None:
        if mask.any():
            group[counter] = group[counter] | mask if counter in group else mask

    def _release(self) -> None:
        """Let the blocks go on whose threads all wait at the same barrier."""
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

    def _guard(self, instruction: Instruction) -> np.ndarray:
        if instruction.guard is None:
            return np.ones(self.lanes, bool)
        value = self._read(instruction.guard)
        return ~value if instruction.negated else value

    def _execute(self, instruction: Instruction, mask: np.ndarray) -> None:
        if instruction.guard is not None:
            mask = mask & self._guard(instruction)
        try:
            self._dispatch(instruction, mask)
        except PtxError as error:
            raise PtxError(f"line {instruction.line}, {instruction.opcode}: {error}") from None

    def _dispatch(self, instruction: Instruction, mask: np.ndarray) -> None:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode in ("mov.b32", "mov.b64") and any(operand.startswith("{") for operand in operands):
            self._move_parts(operands, mask)
        elif opcode in ARITHMETIC:
            self._compute(ARITHMETIC[opcode], operands, mask)
        elif opcode in COMPARISONS or opcode in PREDICATES:
            table = COMPARISONS if opcode in COMPARISONS else PREDICATES
            self._write(operands[0], table[opcode](*(self._read(operand) for operand in operands[1:])), mask)
        elif opcode in _SELECT:
            chosen, otherwise, predicate = (self._read(operand) for operand in operands[1:])
            self._write(operands[0], np.where(predicate, chosen, otherwise).astype(_SELECT[opcode]), mask)
        elif found := _ACCESS.match(opcode):
            self._access(*found.groups(), operands, mask)
        elif opcode == "atom.global.max.u32" or opcode == "red.global.max.u32":
            address, value = operands[-2:]
            lanes = np.nonzero(mask)[0]
            if lanes.size:
                self.memory.raise_words(self._address(address)[lanes], self._read(value)[lanes].astype(np.uint32))
        elif opcode in _EXCHANGES:
            self._exchange(opcode, operands, mask)
        else:
            raise PtxError("this opcode is not known")

    def _compute(self, function, operands: tuple[str, ...], mask: np.ndarray) -> None:
        sources = [self._read(operand) for operand in operands[1:]]
        if not mask.all():
            # Lanes that are elsewhere must not trip over what they hold.
            lanes = np.nonzero(mask)[0]
            if not lanes.size:
                return
            part = function(*(source[lanes] for source in sources))
            result = np.zeros(self.lanes, part.dtype)
            result[lanes] = part
        else:
            result = function(*sources)
        self._write(operands[0], result, mask)

    def _move_parts(self, operands: tuple[str, ...], mask: np.ndarray) -> None:
        """A register taken apart into narrower ones, or put together from them."""
        target, source = operands
        if target.startswith("{"):
            parts = _members(target)
            value = self._read(source).astype(np.uint64)
            width = 64 // len(parts) if self.entry.width(source) == "b64" else 32 // len(parts)
            for index, part in enumerate(parts):
                piece = (value >> np.uint64(width * index)) & np.uint64((1 << width) - 1)
                if part != "_":
                    self._write(part, piece.astype(_WIDTHS[f"b{width}"]), mask)
            return
        parts = _members(source)
        total = {"b32": 32, "b64": 64}[self.entry.width(target)]
        width = total // len(parts)
        value = np.zeros(self.lanes, np.uint64)
        for index, part in enumerate(parts):
            value |= self._read(part).astype(_WIDTHS[f"b{width}"]).astype(np.uint64) << np.uint64(width * index)
        self._write(target, value.astype(_WIDTHS[f"b{total}"]), mask)

    def _access(self, kind, space, vector, width, operands, mask) -> None:
        size, count = int(width) // 8, int(vector or 1)
        if space == "param":
            name = operands[1].strip("[]")
            value = np.full(self.lanes, self.parameters[name] & ((1 << int(width)) - 1), _WIDTHS[f"b{width}"])
            return self._write(operands[0], value, mask)
        lanes = np.nonzero(mask)[0]
        if not lanes.size:
            return None
        addresses = self._address(operands[0] if kind == "st" else operands[1])[lanes]
        if self.measured:
            self._measure(f"{kind}.{space}.{size * count}", lanes, addresses, size * count)
        registers = _members(operands[1] if kind == "st" else operands[0])
        if len(registers) != count:
            raise PtxError(f"{count} registers are needed, got {len(registers)}")
        if kind == "st":
            columns = [self._read(register)[lanes].astype(_WIDTHS[f"b{width}"]) for register in registers]
            data = np.stack(columns, axis=1).view(np.uint8).reshape(len(lanes), size * count)
            return self._store(space, lanes, addresses, data)
        data = self._load(space, lanes, addresses, size * count)
        values = np.ascontiguousarray(data).view(_WIDTHS[f"b{width}"]).reshape(len(lanes), count)
        for index, register in enumerate(registers):
            # A narrow load into a wide register fills the rest with zeros.
            whole = np.zeros(self.lanes, max(values.dtype, _WIDTHS[self.entry.width(register)], key=_size))
            whole[lanes] = values[:, index]
            self._write(register, whole, mask)
        return None

    def _load(self, space, lanes, addresses, size):
        if space == "global":
            return self.memory.load(addresses, size)
        return self.shared.load(self.block[lanes], self.thread[lanes], addresses, size)

    def _store(self, space, lanes, addresses, data) -> None:
        if space == "global":
            return self.memory.store(addresses, data)
        return self.shared.store(self.block[lanes], self.thread[lanes], addresses, data)

    def _exchange(self, opcode: str, operands: tuple[str, ...], mask: np.ndarray) -> None:
        """Between the lanes of whole warps."""
        if np.any(self._read(operands[-1])[mask].astype(np.uint32) != 0xFFFFFFFF):
            raise PtxError("the mask must name all lanes")
        value = self._read(operands[1]).astype(np.uint32).reshape(-1, _WARP)
        if opcode == "redux.sync.max.u32":
            result = np.repeat(value.max(axis=1), _WARP)
        else:
            if np.any(self._read(operands[3])[mask] != 31):
                raise PtxError("only shuffles of whole warps are known")
            other = self._read(operands[2]).astype(np.int64).reshape(-1, _WARP)
            lane = np.arange(_WARP)
            source = lane ^ other if "bfly" in opcode else other
            if np.any((source < 0) | (source >= _WARP)):
                raise PtxError("a shuffle from a lane that does not exist")
            result = np.take_along_axis(value, source, axis=1).reshape(-1)
        self._write(operands[0], result, mask)

    def _measure(self, access: str, lanes: np.ndarray, addresses: np.ndarray, size: int) -> None:
        warps = lanes // _WARP
        if "global" in access:
            sectors = np.unique(np.stack((warps, (addresses // 32).astype(np.int64))), axis=1)
            self.traffic.sectors[access] += 32 * sectors.shape[1]
            self.traffic.requested[access] += size * len(lanes)
            return
        # Wide accesses are served in parts of a warp, 128 bytes at a time.
        lanes_at_once = _WARP if size <= 4 else 128 // size
        word = (addresses.astype(np.int64) - shared_memory.BASE) // 4
        words = np.unique(np.stack((lanes // lanes_at_once, word % 32, word)), axis=1)
        _, per_bank = np.unique(words[:2], axis=1, return_counts=True)
        self.traffic.conflicts[access] = max(self.traffic.conflicts.get(access, 1), int(per_bank.max()))

    def _address(self, operand: str) -> np.ndarray:
        found = re.match(r"\[(%?\w+)(?:\+(-?\d+))?\]$", operand)
        if not found:
            raise PtxError(f"address {operand} is not known")
        return self._read(found.group(1)).astype(np.uint64) + np.uint64(int(found.group(2) or 0) % 2**64)

    def _read(self, operand: str) -> np.ndarray:
        if operand in self.registers:
            return self.registers[operand]
        if operand not in self.constants:
            self.constants[operand] = self._constant(operand)
        return self.constants[operand]

    def _constant(self, operand: str) -> np.ndarray:
        special = {"%tid.x": self.thread, "%ctaid.x": self.block, "%laneid": self.thread % _WARP}
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

    def _write(self, register: str, value: np.ndarray, mask: np.ndarray) -> None:
        wanted = _WIDTHS[self.entry.width(register)]
        if value.dtype != wanted:
            raise PtxError(f"{register} is {np.dtype(wanted)}, the result {value.dtype}")
        if not mask.all():
            before = self.registers.get(register)
            value = np.where(mask, value, value if before is None else before)
        self.registers[register] = value


def _members(operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{}").split(",")]


def _size(dtype) -> int:
    return np.dtype(dtype).itemsize
