"""What a thread takes of a tile: 16 neighbouring values of a row, or of each of two neighbouring columns, at a time.

Values of 16 bits stay in pairs as long as possible: the largest magnitudes of both halves of a word are found at once.
"""

from dataclasses import dataclass

from steelyard.codegen.formats import CANONICAL_NAN
from steelyard.codegen.tile import GROUP, Tile, widen_word
from steelyard.codegen.values import (
    Value,
    bitcast,
    compare_unsigned,
    constant,
    larger_magnitudes,
    maximum_unsigned,
    select,
)

CHUNK = GROUP
HALF_WARP = 16


@dataclass(frozen=True)
class Chunk:
    """16 values of each of `lines` lines. Words hold neighbours along one line, or one value of each of two."""

    words: list[Value]
    dtype: str
    lines: int = 1

    def values(self) -> list[list[Value]]:
        """The values of each line, as float32."""
        values = [value for word in self.words for value in widen_word(word, self.dtype)]
        return [values[line :: self.lines] for line in range(self.lines)]

    def peaks(self) -> list[Value]:
        """Largest magnitudes, as words that `join_peaks` joins and `line_amaxes` reads."""
        if self.dtype != "f32":
            return [_largest(self.words, self.dtype)]
        magnitudes = [word & 0x7FFFFFFF for word in self.words]
        return [_largest(magnitudes[line :: self.lines], self.dtype) for line in range(self.lines)]

    def amaxes(self) -> list[Value]:
        """The amax of each line, as the bits of a float32."""
        return line_amaxes(self.peaks(), self.dtype, self.lines)


def no_peaks(dtype: str, lines: int) -> list[Value]:
    """The peaks of nothing."""
    return [constant(0, "i32") for _ in range(lines if dtype == "f32" else 1)]


def join_peaks(left: list[Value], right: list[Value], dtype: str) -> list[Value]:
    return [_largest([a, b], dtype) for a, b in zip(left, right, strict=True)]


def line_amaxes(peaks: list[Value], dtype: str, lines: int) -> list[Value]:
    """The amax of each line as bits: integers order NaN above all numbers, and it is made one NaN."""
    if dtype != "f32":
        (peak,) = peaks
        halves = [bitcast(value, "i32") for value in widen_word(peak & 0x7FFF7FFF, dtype)]
        peaks = halves if lines == 2 else [maximum_unsigned(*halves)]
    return [_one_nan(peak) for peak in peaks]


def _one_nan(bits: Value) -> Value:
    return select(compare_unsigned(bits, ">", 0x7F800000), constant(CANONICAL_NAN, "i32"), bits)


def _largest(words: list[Value], dtype: str) -> Value:
    largest = words[0]
    for word in words[1:]:
        is_wide = dtype == "f32"
        largest = maximum_unsigned(largest, word) if is_wide else larger_magnitudes(largest, word, dtype)
    return largest


@dataclass(frozen=True)
class Strip:
    """Where a thread's values lie: `lines` lines from `across` on, each from `along` on, in `chunks` that begin `step`
    elements apart. Of columns, neighbouring chunks are the business of lanes half a warp apart."""

    across: Value
    along: Value
    lines: int
    chunks: int
    step: int

    def read(self, tile: Tile, chunk: Value | int) -> Chunk:
        along = self.along + chunk * self.step
        if self.lines == 1:
            return Chunk(tile.read_row(self.across, along, CHUNK), tile.dtype)
        return Chunk(tile.read_column_pair(along, self.across), tile.dtype, 2)


def row_strip(index: Value, side: int, width: int) -> Strip:
    """Neighbouring threads take neighbouring rows: the rows of a block are then lanes of one warp."""
    return Strip(index % side, index // side * width, 1, width // CHUNK, CHUNK)


def column_strip(index: Value, side: int, chunks: int = 1) -> Strip:
    """Half a warp takes 32 neighbouring columns, the other half the chunks between its own."""
    pairs = side // 2 // HALF_WARP
    group = index >> 5
    pair = group % pairs * HALF_WARP + index % HALF_WARP
    first = group // pairs * (2 * chunks) + (index >> 4) % 2
    return Strip(pair * 2, first * CHUNK, 2, chunks, 2 * CHUNK)


def strip_count(side: int, lines: int, chunks: int) -> int:
    """How many strips a tile has."""
    return side // lines * (side // CHUNK) // chunks
