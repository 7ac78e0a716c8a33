"""PTX instructions decoded into steps: `step(launch, lanes)` executes one for some lanes.

Opcode, modifiers and operands are decoded once; a step, which runs many times, only reads, computes and writes.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from ptx_arithmetic import COMPUTING
from ptx_text import Entry, Instruction, PtxError

WARP = 32
WIDTHS = {"b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "pred": bool}
EXCHANGES = ("shfl.sync.bfly.b32", "shfl.sync.idx.b32", "redux.sync.max.u32")
ACCESSES = {
    f"{kind}.{space}{'' if count == 1 else f'.v{count}'}.b{width}": (kind, space, count, width)
    for kind in ("ld", "st")
    for space in ("global", "shared")
    for count in (1, 2, 4)
    for width in (8, 16, 32, 64)
    if count * width <= 128
}
PARAMETERS = {f"ld.param.b{width}": width for width in (32, 64)}
_ADDRESS = re.compile(r"\[(%?\w+)(?:\+(-?\d+))?\]$")
ATOMICS = ("atom.global.max.u32", "red.global.max.u32")

Step = Callable[[Any, Any], None]


def decode(instruction: Instruction, entry: Entry) -> Step:
    """What an instruction does, its guard included."""
    try:
        step = _decode_unguarded(instruction, entry)
    except PtxError as error:
        raise PtxError(f"line {instruction.line}, {instruction.opcode}: {error}") from None
    if instruction.guard is None:
        return step
    if instruction.opcode in EXCHANGES:
        raise PtxError("a guard is not known here")

    def guarded(launch, lanes) -> None:
        chosen = lanes.where(launch.guard(instruction))
        if chosen.numbers.size:
            step(launch, chosen)

    return guarded


def _decode_unguarded(instruction: Instruction, entry: Entry) -> Step:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode in ("mov.b32", "mov.b64") and any(operand.startswith("{") for operand in operands):
        return (_decode_parting if operands[0].startswith("{") else _decode_joining)(operands, entry)
    if opcode in COMPUTING:
        return partial(_compute, COMPUTING[opcode], operands[0], operands[1:])
    if opcode in PARAMETERS:
        return partial(_load_parameter, operands[0], operands[1].strip("[]"), PARAMETERS[opcode])
    if opcode in ACCESSES:
        return _decode_access(*ACCESSES[opcode], operands, entry)
    if opcode in ATOMICS:
        return partial(_raise_words, decode_address(operands[-2]), operands[-1])
    if opcode in EXCHANGES:
        return partial(_exchange, opcode, operands)
    raise PtxError("this opcode is not known")


def _compute(function, target: str, sources: tuple[str, ...], launch, lanes) -> None:
    """Only these lanes compute: the values of other lanes must not raise an error."""
    launch.write(target, function(*[launch.read(source, lanes) for source in sources]), lanes)


def _decode_parting(operands: tuple[str, ...], entry: Entry) -> Step:
    """A register split into narrower ones."""
    parts, source = _members(operands[0]), operands[1]
    width = (64 if entry.width(source) == "b64" else 32) // len(parts)

    def step(launch, lanes) -> None:
        value = launch.read(source, lanes).astype(np.uint64)
        for index, part in enumerate(parts):
            piece = (value >> np.uint64(width * index)) & np.uint64((1 << width) - 1)
            if part != "_":
                launch.write(part, piece.astype(WIDTHS[f"b{width}"]), lanes)

    return step


def _decode_joining(operands: tuple[str, ...], entry: Entry) -> Step:
    """A register put together from narrower ones."""
    target, parts = operands[0], _members(operands[1])
    total = {"b32": 32, "b64": 64}[entry.width(target)]
    width = total // len(parts)

    def step(launch, lanes) -> None:
        value = np.zeros(lanes.numbers.size, np.uint64)
        for index, part in enumerate(parts):
            piece = launch.read(part, lanes).astype(WIDTHS[f"b{width}"]).astype(np.uint64)
            value |= piece << np.uint64(width * index)
        launch.write(target, value.astype(WIDTHS[f"b{total}"]), lanes)

    return step


def _decode_access(kind: str, space: str, count: int, width: int, operands: tuple[str, ...], entry: Entry) -> Step:
    dtype = WIDTHS[f"b{width}"]
    registers = _members(operands[1] if kind == "st" else operands[0])
    if len(registers) != count:
        raise PtxError(f"{count} registers are needed, got {len(registers)}")
    address, size = decode_address(operands[0] if kind == "st" else operands[1]), count * width // 8
    if kind == "st":
        return partial(_store, space, address, registers, dtype, size)
    # A narrow load into a wide register fills the rest with zeros.
    whole = [
        max(dtype, WIDTHS[entry.width(register)], key=lambda kind: np.dtype(kind).itemsize) for register in registers
    ]
    return partial(_load, space, address, registers, dtype, whole, size)


def _load_parameter(target: str, name: str, width: int, launch, lanes) -> None:
    value = launch.parameters[name] & ((1 << width) - 1)
    launch.write(target, np.full(lanes.numbers.size, value, WIDTHS[f"b{width}"]), lanes)


def _store(space: str, address, registers: list[str], dtype, size: int, launch, lanes) -> None:
    addresses = address(launch, lanes)
    launch.measure("st", space, lanes, addresses, size)
    columns = [launch.read(register, lanes).astype(dtype, copy=False) for register in registers]
    data = np.stack(columns, axis=1).view(np.uint8) if len(columns) > 1 else columns[0][:, None].view(np.uint8)
    if space == "global":
        launch.memory.store(addresses, data)
    else:
        launch.shared.store(lanes.block, lanes.thread, addresses, data)


def _load(space: str, address, registers: list[str], dtype, whole: list, size: int, launch, lanes) -> None:
    addresses = address(launch, lanes)
    launch.measure("ld", space, lanes, addresses, size)
    if space == "global":
        data = launch.memory.load(addresses, size)
    else:
        data = launch.shared.load(lanes.block, lanes.thread, addresses, size)
    values = np.ascontiguousarray(data).view(dtype)
    for index, register in enumerate(registers):
        launch.write(register, values[:, index].astype(whole[index]), lanes)


def _raise_words(address, value: str, launch, lanes) -> None:
    launch.memory.raise_words(address(launch, lanes), launch.read(value, lanes).astype(np.uint32))


def _exchange(opcode: str, operands: tuple[str, ...], launch, lanes) -> None:
    """Exchange values between the lanes of whole warps."""
    if np.any(launch.read(operands[-1], lanes).astype(np.uint32) != 0xFFFFFFFF):
        raise PtxError("the mask must name all lanes")
    value = launch.read(operands[1], lanes).astype(np.uint32).reshape(-1, WARP)
    if opcode == "redux.sync.max.u32":
        return launch.write(operands[0], np.repeat(value.max(axis=1), WARP), lanes)
    if np.any(launch.read(operands[3], lanes) != 31):
        raise PtxError("only shuffles of whole warps are known")
    other = launch.read(operands[2], lanes).astype(np.int64).reshape(-1, WARP)
    source = np.arange(WARP) ^ other if "bfly" in opcode else other
    if np.any((source < 0) | (source >= WARP)):
        raise PtxError("a shuffle from a lane that does not exist")
    return launch.write(operands[0], np.take_along_axis(value, source, axis=1).reshape(-1), lanes)


def decode_address(operand: str):
    found = _ADDRESS.match(operand)
    if not found:
        raise PtxError(f"address {operand} is not known")
    base, offset = found[1], np.uint64(int(found[2] or 0) % 2**64)
    return lambda launch, lanes: launch.read(base, lanes).astype(np.uint64) + offset


def _members(operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{}").split(",")]
