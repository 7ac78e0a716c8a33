"""Dequantize: the values of a copy as a logical row-major matrix."""

from dataclasses import dataclass

import numpy as np

from steelyard.codegen import hadamard
from steelyard.codegen.copies import CHUNK, Copy
from steelyard.codegen.formats import decode_e4m3, decode_e8m0, decode_words
from steelyard.codegen.kernel import Parameter, Scope, TileKernel
from steelyard.codegen.memory import Pointer, barrier
from steelyard.codegen.scale_rules import nvfp4_range
from steelyard.codegen.sizes import Size
from steelyard.codegen.sources import tiles_of
from steelyard.codegen.tile import ITEM_BYTES, narrow, narrow_words
from steelyard.codegen.values import (
    Value,
    constant,
    convert,
    i32,
    loop,
    minimum_signed,
    select,
    signed_to,
    when,
)

_SIDE = 64
_PITCH = 4 * (_SIDE + 1)


@dataclass(frozen=True)
class DequantizeKernel(TileKernel):
    """Decodes runs of 16 along the stored rows; a transposed copy is turned in shared memory.

    `inner`: without the scales that all values of a tensor or of a row share, which products apply to their sums.
    """

    copy: Copy
    dtype: str
    inner: bool = False

    @property
    def name(self) -> str:
        inner = "_inner" if self.inner else ""
        return f"dequantize{inner}_{self.copy.name}_{self.dtype}{'' if self.copy.aligned else '_any'}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        names = ["codes"]
        names += ["scales"] if self.reads_scales else []
        names += ["amax"] if self.reads_amax else []
        sizes = (Parameter("rows", "i32"), Parameter("columns", "i32"))
        return (*(Parameter(name) for name in names), Parameter("out"), *sizes)

    @property
    def reads_scales(self) -> bool:
        return self.copy.scheme.has_blocks or not self.inner

    @property
    def reads_amax(self) -> bool:
        return self.copy.scheme.second_level != "none" and not self.inner

    @property
    def side(self) -> int:
        return _SIDE

    @property
    def shared_rows(self) -> dict[str, int]:
        own = {name.partition("_")[2]: rows for name, rows in self.copy.shared_rows.items()}
        names = [parameter.name for parameter in self.parameters]
        return {name: rows for name, rows in own.items() if name in names} | {"out": 1}

    def blocks(self, rows: Size, columns: Size) -> Size:
        return tiles_of(rows, columns, _SIDE)

    def body(self, scope: Scope) -> None:
        work = _TileOfCopy(self, scope)
        per_line = _SIDE // CHUNK
        turned = scope.shared.allocate(_SIDE * _PITCH) if self.copy.is_transposed else None

        def decode(index: Value) -> None:
            line, along = index // per_line, index % per_line * CHUNK
            values = work.decode(line, along)
            if turned is None:
                work.store_run(line, along, values)
                return
            for position, value in enumerate(values):
                turned.at((along + position) * _PITCH + line * 4).store(value)

        loop(scope.thread, _SIDE * per_line, self.threads, decode)
        if turned is None:
            return
        barrier()

        def store(index: Value) -> None:
            row, column = index // per_line, index % per_line * CHUNK
            values = [turned.at(row * _PITCH + (column + offset) * 4).load("f32") for offset in range(CHUNK)]
            work.store_run(row, column, values)

        loop(scope.thread, _SIDE * per_line, self.threads, store)


class _TileOfCopy:
    """One tile of a copy: `line` and `along` count rows and columns of the stored array from the tile's begin."""

    def __init__(self, kernel: DequantizeKernel, scope: Scope):
        self.kernel, self.copy, self.scope = kernel, kernel.copy, scope
        rows, columns = scope["rows"], scope["columns"]
        tiles = (columns + (_SIDE - 1)) // _SIDE
        self.row, self.column = scope.block // tiles * i32(_SIDE), scope.block % tiles * i32(_SIDE)
        turned = self.copy.is_transposed
        self.lines, self.length = (columns, rows) if turned else (rows, columns)
        self.first_line, self.first_along = (self.column, self.row) if turned else (self.row, self.column)
        if self.copy.scheme.rht:
            self.length = (self.length + (CHUNK - 1)) // CHUNK * CHUNK

    def decode(self, line: Value, along: Value) -> list[Value]:
        """16 values of a line; outside of the stored array those of its last line and run."""
        own_line = minimum_signed(self.first_line + line, self.lines - 1)
        begin = self.first_along + along
        begin = select(begin < self.length, begin, 0)
        values = decode_words(self._read_words(own_line, begin), self.copy.scheme.element, self.scope.target)
        if self.kernel.reads_scales:
            values = [code * scale for code, scale in zip(values, self._scales(own_line, begin), strict=True)]
        if self.kernel.reads_amax and not self.copy.scheme.is_static:
            amax = self._amax(own_line)
            factor = float(np.float32(1 / nvfp4_range(self.copy.scheme)))
            values = [value * amax * factor for value in values]
        return hadamard.inverse(values) if self.copy.scheme.rht else values

    def _read_words(self, line: Value, begin: Value) -> list[Value]:
        row_bytes = (self.length + 1) >> 1 if self.copy.is_fp4 else self.length
        count = self.copy.codes_bytes(CHUNK)
        first = begin >> 1 if self.copy.is_fp4 else begin
        row = self.scope.pointer("codes").at(signed_to(line, "i64") * signed_to(row_bytes, "i64"))
        if self.copy.aligned:
            return row.at(signed_to(first, "i64")).load_words(count // 4)
        codes = [_byte(row, minimum_signed(first + index, row_bytes - 1)) for index in range(count)]
        return [_joined(codes[index : index + 4]) for index in range(0, count, 4)]

    def _scales(self, line: Value, begin: Value) -> list[Value]:
        """The scale of each of 16 neighbours."""
        family, pointer = self.copy.scheme.family, self.scope.pointer("scales")
        if family == "tensor":
            return [pointer.load("f32")] * CHUNK
        if family == "row":
            return [pointer.at(signed_to(line, "i64") * 4).load("f32")] * CHUNK
        if family == "mx" and self.copy.columnwise:
            row = pointer.at(signed_to(line // 32, "i64") * signed_to(self.length, "i64"))
            columns = [minimum_signed(begin + index, self.length - 1) for index in range(CHUNK)]
            return [decode_e8m0(_byte(row, column)) for column in columns]
        width = self.copy.width
        per_line = signed_to((self.length + (width - 1)) // width, "i64")
        own_line = line // 128 if self.copy.scheme.block == "128x128" else line
        index = signed_to(own_line, "i64") * per_line + signed_to(begin // width, "i64")
        if family == "block":
            return [pointer.at(index * 4).load("f32")] * CHUNK
        byte = pointer.at(index).load("i8")
        is_e4m3 = self.copy.scheme.scale == "f8E4M3FN"
        return [self._with_given_level(decode_e4m3(byte)) if is_e4m3 else decode_e8m0(convert(byte, "i32"))] * CHUNK

    def _with_given_level(self, scale: Value) -> Value:
        """A block scale under a second level that is given, rounded before a code is multiplied by it."""
        scheme = self.copy.scheme
        if not (self.kernel.reads_amax and scheme.is_static):
            return scale
        level = self.scope.pointer("amax").load("f32")
        return scale / level if scheme.source == "divisor" else scale * level

    def _amax(self, line: Value) -> Value:
        offset = signed_to(line, "i64") * 4 if self.copy.scheme.second_level == "row" else 0
        return self.scope.pointer("amax").at(offset).load("f32")

    def store_run(self, row: Value, column: Value, values: list[Value]) -> None:
        """16 neighbours of a row of the tile, as far as the matrix has them."""
        own_row, own_column = self.row + row, self.column + column
        rows, columns = self.scope["rows"], self.scope["columns"]
        item = ITEM_BYTES[self.kernel.dtype]
        index = signed_to(own_row, "i64") * signed_to(columns, "i64") + signed_to(own_column, "i64")
        out = self.scope.pointer("out").at(index * item)
        inside = own_row < rows
        if self.copy.aligned:
            words = narrow_words(values, self.kernel.dtype)
            when(inside & (own_column < columns), lambda: _store_vectors(out, words))
            return
        for position, value in enumerate(values):
            bits = narrow(value, self.kernel.dtype)
            when(inside & (own_column + position < columns), lambda p=position, b=bits: out.at(p * item).store(b))


def _byte(row: Pointer, column: Value) -> Value:
    return convert(row.at(signed_to(column, "i64")).load("i8"), "i32")


def _joined(codes: list[Value]) -> Value:
    word = constant(0, "i32")
    for index, code in enumerate(codes):
        word = word | (code << (8 * index))
    return word


def _store_vectors(out: Pointer, words: list[Value]) -> None:
    for index in range(0, len(words), 4):
        out.at(4 * index).store_words(words[index : index + 4])
