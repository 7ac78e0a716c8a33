"""What lies where in a GGUF file.

Only its header is parsed, within its own size: the package `gguf` reads headers, too, but believes every count in them.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from steelyard.checkpoints.catalog import printable
from steelyard.errors import CheckpointError, shown
from steelyard.files import failure

MAGIC, VERSIONS = b"GGUF", (2, 3)
MXFP4, NVFP4 = "MXFP4", "NVFP4"
_PLAIN = {0: ("F32", 4), 1: ("F16", 2), 30: ("BF16", 2)}
"""Types of plain tensors, as safetensors spells them, and their bytes."""
_BLOCKS = {39: (MXFP4, 32, 17), 40: (NVFP4, 64, 36)}
"""Types of quantized tensors: elements of a block and its bytes."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LARGEST_HEADER = 512 * 2**20
"""Bytes: vocabularies have a few dozen megabytes."""
_LONGEST_ARRAY = 64
"""Longer ones, which are vocabularies, are skipped."""
_MOST_DIMS, _DEEPEST = 4, 4
_SMALLEST_TENSOR, _SMALLEST_FIELD = 32, 13
"""Bytes in a header."""


@dataclass(frozen=True)
class Found:
    """A tensor as the header of a file describes it."""

    name: str
    kind: str
    """The dtype as safetensors spells it, or the name of a quantized type."""
    shape: tuple[int, ...]
    """Elements, the rows of a matrix first."""
    offset: int
    size: int


class _Header:
    """Reads numbers and strings, and never beyond the end."""

    def __init__(self, file: BinaryIO, name: str, size: int):
        self.file, self.name, self.rest = file, name, min(size, _LARGEST_HEADER)

    def bytes(self, count: int) -> bytes:
        if count > self.rest:
            raise CheckpointError(f"the header of {self.name} must end within the file, and does not; fetch it again")
        self.rest -= count
        data = self.file.read(count)
        if len(data) != count:
            raise CheckpointError(f"{self.name} ends within its header; fetch it again")
        return data

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code)))[0]

    def count(self, smallest: int) -> int:
        """How many follow, each of at least so many bytes."""
        found = self.number("Q")
        if found * smallest > self.rest:
            raise CheckpointError(f"{self.name} must have room for the {found} entries it announces; fetch it again")
        return found

    def string(self) -> str:
        return self.bytes(self.count(1)).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """A value of a type; None for a long array."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth > _DEEPEST:
            raise CheckpointError(f"{self.name} must have values of known types, got type {kind}; fetch it again")
        return self._array(depth)

    def _array(self, depth: int) -> Any:
        kind = self.number("I")
        size = struct.calcsize("<" + _SCALARS[kind]) if kind in _SCALARS else 8
        count = self.count(size)
        if kind in _SCALARS and count > _LONGEST_ARRAY:
            self.bytes(count * size)
            return None
        values = [self.value(kind, depth + 1) for _ in range(count)]
        return values if count <= _LONGEST_ARRAY else None


def read_header(file: Path) -> tuple[dict[str, Any], list[Found]]:
    """The fields of a GGUF file and its tensors."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            header = _Header(opened, file.name, size)
            return _read(header, opened, size)
    except OSError as error:
        raise failure(f"cannot read '{file}'", error) from error


def _read(header: _Header, opened: BinaryIO, size: int) -> tuple[dict[str, Any], list[Found]]:
    if header.bytes(4) != MAGIC:
        raise CheckpointError(f"{header.name} must be a GGUF file, and begins otherwise; fetch it again")
    version = header.number("I")
    if version not in VERSIONS:
        raise CheckpointError(f"{header.name} must be GGUF of version 2 or 3, little-endian, got version {version}")
    tensors, count = header.count(_SMALLEST_TENSOR), header.count(_SMALLEST_FIELD)
    fields: dict[str, Any] = {}
    for _ in range(count):
        name = header.string()
        fields[name] = header.value(header.number("I"))
    described = [_describe(header) for _ in range(tensors)]
    start = _aligned(header, opened.tell(), fields.get("general.alignment", 32))
    found = [_placed(header.name, each, start, size) for each in described]
    if len({each.name for each in found}) < len(found):
        raise CheckpointError(f"{header.name} must have one tensor of each name, and has two of one; fetch it again")
    return fields, found


def _aligned(header: _Header, place: int, alignment: Any) -> int:
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
        raise CheckpointError(f"alignment of {header.name} must be a power of two, got {shown(alignment)}")
    return -(-place // alignment) * alignment


def _describe(header: _Header) -> tuple[str, list[int], int, int]:
    name = printable(header.string())
    dims = header.number("I")
    if not 1 <= dims <= _MOST_DIMS:
        raise CheckpointError(f"{name} in {header.name} must have 1 to {_MOST_DIMS} dims, got {dims}; fetch it again")
    return name, [header.number("Q") for _ in range(dims)], header.number("I"), header.number("Q")


def _placed(file: str, described: tuple[str, list[int], int, int], start: int, size: int) -> Found:
    name, dims, code, offset = described
    shape = tuple(reversed(dims))
    if code in _PLAIN:
        (kind, width), elements = _PLAIN[code], 1
    elif code in _BLOCKS:
        kind, elements, width = _BLOCKS[code]
    else:
        raise CheckpointError(
            f"{name} in {file} must be MXFP4, NVFP4 or plain, got {_type_name(code)}, which Steelyard does not run; "
            "convert the model's plain weights, or its NVFP4 or MXFP4 checkpoint, to GGUF of these types"
        )
    if shape[-1] % elements or 0 in shape:
        raise CheckpointError(f"rows of {name} in {file} must be whole blocks of {elements}, got {list(shape)}")
    length = math.prod(shape) // elements * width
    if start + offset + length > size:
        raise CheckpointError(f"{name} in {file} must lie within the file, and ends beyond it; fetch it again")
    return Found(name, kind, shape, start + offset, length)


def _type_name(code: int) -> str:
    """What the package `gguf` calls a type, if it is installed."""
    try:
        from gguf import GGMLQuantizationType

        return GGMLQuantizationType(code).name
    except (ImportError, ValueError):
        return f"type {code}"
