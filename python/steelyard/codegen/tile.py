"""A square tile of a matrix in shared memory, in the dtype of the matrix; outside of the matrix it is zero.

Rows begin at multiples of 16 bytes, and each lies four banks behind the one before: eight lanes that read a vector of
16 bytes each, of neighbouring rows, hit different banks. A gap after every 16 rows moves the next 16 by half of the
banks, so that half a warp may read 16 words of a row while the other half reads those of the row 16 further.
"""

from dataclasses import dataclass

from steelyard.codegen.memory import Pointer
from steelyard.codegen.values import Value, bitcast, constant, convert, round_pair

ITEM_BYTES = {"f32": 4, "bf16": 2, "f16": 2}
GROUP = 16
_GAP = 64
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class Tile:
    """`side` rows and columns of `dtype` at `memory`."""

    memory: Pointer
    side: int
    dtype: str

    @staticmethod
    def bytes_of(side: int, dtype: str) -> int:
        return side * _pitch(side, dtype) + side // GROUP * _GAP

    def element(self, row: Value, column: Value) -> Pointer:
        offset = row * _pitch(self.side, self.dtype) + (row >> 4) * _GAP + column * ITEM_BYTES[self.dtype]
        return self.memory.at(offset)

    def rows_further(self, rows: int) -> int:
        """Bytes from an element to the one `rows` below; whole groups, unless both are in one group."""
        return rows * _pitch(self.side, self.dtype) + rows // GROUP * _GAP

    def read_row(self, row: Value, column: Value, count: int) -> list[Value]:
        """The words of neighbouring values of a row; the column is a multiple of a vector."""
        begin = self.element(row, column)
        vectors = range(0, count * ITEM_BYTES[self.dtype], _VECTOR_BYTES)
        return [word for offset in vectors for word in begin.at(offset).load_words(4)]

    def read_column_pair(self, row: Value, column: Value) -> list[Value]:
        """The words of 16 rows of two columns: one word per row, or of float32 two; row and column begin a group."""
        begin, words = self.element(row, column), 2 * ITEM_BYTES[self.dtype] // 4
        rows = [begin.at(index * _pitch(self.side, self.dtype)) for index in range(GROUP)]
        return [word for pointer in rows for word in pointer.load_words(words)]


def _pitch(side: int, dtype: str) -> int:
    return side * ITEM_BYTES[dtype] + _VECTOR_BYTES


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
    if dtype == "f32":
        return [narrow(value, dtype) for value in values]
    return [round_pair(low, high, dtype) for low, high in zip(values[::2], values[1::2], strict=True)]


def zero_word() -> Value:
    return constant(0, "i32")
