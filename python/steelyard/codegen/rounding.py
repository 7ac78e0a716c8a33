"""Stochastic rounding to E2M1: Philox4x32-10 bytes in shared memory, one per element of a tile."""

from dataclasses import dataclass

from steelyard.codegen.memory import Pointer
from steelyard.codegen.values import (
    Value,
    absolute,
    bitcast,
    compare_unsigned,
    constant,
    convert,
    either,
    fused_multiply_add,
    i32,
    loop,
    maximum_unsigned,
    minimum_number,
    repeat,
    select,
    signed_to,
    split_words,
    when,
)

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_GROUP = 16


@dataclass(frozen=True)
class RandomState:
    """Seed and offset, 64 bits each, and which copy they are for."""

    seed: tuple[Value, Value]
    offset: tuple[Value, Value]
    copy: int

    @classmethod
    def load(cls, pointer: Pointer, copy: int, group: Value | None = None) -> "RandomState":
        """Of a tensor in groups, each draws its bits 2^32 behind those of the group before."""
        words = pointer.load_words(4)
        high = words[3] if group is None else words[3] + group
        return cls((words[0], words[1]), (words[2], high), copy)


def philox(group: Value, state: RandomState) -> list[Value]:
    """The four words of one group of 16 elements."""
    words = [group, i32(state.copy), *state.offset]
    keys = list(state.seed)
    for _ in range(10):
        high_0, low_0 = _multiply(words[0], _MULTIPLIERS[0])
        high_1, low_1 = _multiply(words[2], _MULTIPLIERS[1])
        words = [high_1 ^ words[1] ^ keys[0], low_1, high_0 ^ words[3] ^ keys[1], low_0]
        keys = [key + step for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return words


def _multiply(word: Value, factor: int) -> tuple[Value, Value]:
    low, high = split_words(convert(word, "i64") * factor)
    return high, low


@dataclass(frozen=True)
class RandomTile:
    """A byte for each element of a tile, at `memory`; rows are `side` + 16 bytes apart."""

    memory: Pointer
    side: int

    @staticmethod
    def bytes_of(side: int) -> int:
        return side * (side + _GROUP)

    def _at(self, row: Value, column: Value) -> Pointer:
        return self.memory.at(row * (self.side + _GROUP) + column)

    def read_row(self, row: Value, column: Value) -> list[Value]:
        """The bytes of 16 elements of a row, as i32; the column is a multiple of 16."""
        return [(word >> (8 * place)) & 0xFF for word in self._at(row, column).load_words(4) for place in range(4)]

    def read_column_pair(self, row: Value, column: Value) -> list[list[Value]]:
        """The bytes of 16 rows of two columns, as i32."""
        begin = self._at(row, column)
        pairs = [convert(begin.at(index * (self.side + _GROUP)).load("i16"), "i32") for index in range(_GROUP)]
        return [[pair & 0xFF for pair in pairs], [pair >> 8 for pair in pairs]]

    def fill(
        self,
        state: RandomState,
        begin: tuple[Value, Value],
        columns: Value,
        thread: Value,
        threads: int,
        *,
        in_groups: bool,
    ) -> None:
        """Draw the bytes of the tile that begins at a row and a column of a matrix with so many columns.

        All threads take part, each with whole groups. `in_groups`: rows are known to consist of them.
        """
        first_row, first_column = (signed_to(place, "i64") for place in begin)
        start = first_row * signed_to(columns, "i64") + first_column
        per_row = self.side // _GROUP

        def fill_groups(step: Value) -> None:
            index = step * threads + thread
            row, part = index // per_row, index % per_row
            group = self._group(start, row, columns) + convert(part, "i64")
            self._at(row, part * _GROUP).store_words(philox(convert(group, "i32"), state))

        def fill_parts(index: Value) -> None:
            row, part = index // (per_row + 1), index % (per_row + 1)
            self._fill_part(state, row, part, start + convert(row, "i64") * convert(columns, "i64"))

        def fill_whole() -> None:
            repeat(self.side * per_row // threads, fill_groups)

        if in_groups:
            fill_whole()
            return
        whole = (columns % _GROUP).equals(0)
        either(whole, fill_whole, lambda: loop(thread, self.side * (per_row + 1), threads, fill_parts))

    @staticmethod
    def _group(start: Value, row: Value, columns: Value) -> Value:
        return (start >> 4) + convert(row, "i64") * convert(columns // _GROUP, "i64")

    def _fill_part(self, state: RandomState, row: Value, part: Value, first_index: Value) -> None:
        """Draw the bytes of a row that fall into one group: the `part`-th that the row touches.

        `first_index` is the linear index of the row's first element, as i64; groups begin at multiples of 16.
        """
        group = (first_index >> 4) + convert(part, "i64")
        words = philox(convert(group, "i32"), state)
        begin = part * _GROUP - convert(first_index & 15, "i32")
        for index in range(_GROUP):
            byte = convert(words[index // 4] >> (8 * (index % 4)), "i8")
            column = begin + index
            when(compare_unsigned(column, "<", self.side), lambda c=column, b=byte: self._at(row, c).store(b))


def dither(value: Value, random_byte: Value) -> Value:
    """A value that the cast to E2M1 leaves as it is: rounded up with the probability of the distance.

    The byte is an i32. The value is what arithmetic made, so that its NaN is positive; it becomes 6, as all above 6 do.
    """
    magnitude = minimum_number(absolute(value), 6.0)
    # Steps are half of the power of two below, and at least 0.5.
    power = bitcast(maximum_unsigned(bitcast(magnitude, "i32") & 0x7F800000, 0x3F800000), "f32")
    share = convert(random_byte, "f32") * (1 / 512)
    raised = fused_multiply_add(share, power, magnitude)
    # One bit of the mantissa is left of numbers from 1 on, none of smaller ones: what is below 0.5 is cast to 0.
    kept = select(raised < 1.0, constant(0x7F800000, "i32"), constant(0x7FC00000, "i32"))
    sign = bitcast(value, "i32") & 0x80000000
    return bitcast((bitcast(raised, "i32") & kept) | sign, "f32")
