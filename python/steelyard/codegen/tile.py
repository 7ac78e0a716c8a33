"""A square tile of a matrix in shared memory, in the dtype of the matrix; outside of the matrix it is zero.

A row's pitch is an odd number of 32-bit words: neighbouring lanes that read neighbouring rows hit different banks, and
so do those that read neighbouring columns.
"""

from dataclasses import dataclass

from steelyard.codegen.memory import Pointer
from steelyard.codegen.values import Value, bitcast, constant, convert

ITEM_BYTES = {"f32": 4, "bf16": 2, "f16": 2}


@dataclass(frozen=True)
class Tile:
    """`side` rows and columns of `dtype` at `memory`."""

    memory: Pointer
    side: int
    dtype: str

    @staticmethod
    def bytes_of(side: int, dtype: str) -> int:
        return side * (side * ITEM_BYTES[dtype] + 4)

    def element(self, row: Value | int, column: Value | int) -> Pointer:
        return self.memory.at(row * (self.side * ITEM_BYTES[self.dtype] + 4) + column * ITEM_BYTES[self.dtype])

    def read(self, across: Value, along: Value, count: int, *, columnwise: bool) -> list[Value]:
        """Neighbouring values of the line `across`, a row or a column, from `along` on."""
        return self.read_column(along, across, count) if columnwise else self.read_row(across, along, count)

    def read_row(self, row: Value, column: Value, count: int) -> list[Value]:
        """Neighbouring values of a row, as float32; the column is even."""
        if self.dtype == "f32":
            return [self.element(row, column + index).load("f32") for index in range(count)]
        words = [self.element(row, column + index).load("i32") for index in range(0, count, 2)]
        return [value for word in words for value in widen_word(word, self.dtype)]

    def read_column(self, row: Value, column: Value, count: int) -> list[Value]:
        """Neighbouring values of a column, as float32."""
        if self.dtype == "f32":
            return [self.element(row + index, column).load("f32") for index in range(count)]
        halves = [self.element(row + index, column).load("i16") for index in range(count)]
        return [widen(half, self.dtype) for half in halves]


def widen(half: Value, dtype: str) -> Value:
    """The float32 value of a bf16 or f16, given as i16."""
    if dtype == "f16":
        return convert(bitcast(half, "f16"), "f32")
    return bitcast(convert(half, "i32") << 16, "f32")


def widen_word(word: Value, dtype: str) -> list[Value]:
    """The float32 values in a word: one f32, or two of a narrower dtype, the first in the lower half."""
    if dtype == "f32":
        return [bitcast(word, "f32")]
    if dtype == "f16":
        return [widen(convert(half, "i16"), dtype) for half in (word, word >> 16)]
    return [bitcast(word << 16, "f32"), bitcast(word & 0xFFFF0000, "f32")]


def narrow(value: Value, dtype: str) -> Value:
    """The bits of a float32 value rounded to a dtype, as i32 or i16."""
    if dtype == "f32":
        return bitcast(value, "i32")
    return bitcast(convert(value, dtype), "i16")


def narrow_words(values: list[Value], dtype: str) -> list[Value]:
    """Values rounded to a dtype and packed into words."""
    bits = [narrow(value, dtype) for value in values]
    if dtype == "f32":
        return bits
    wide = [convert(half, "i32") for half in bits]
    return [low | (high << 16) for low, high in zip(wide[::2], wide[1::2], strict=True)]


def zero_word() -> Value:
    return constant(0, "i32")
