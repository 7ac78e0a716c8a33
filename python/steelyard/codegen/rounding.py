"""Stochastic rounding to E2M1: Philox4x32-10 bytes in shared memory, one per element of a tile."""

from dataclasses import dataclass

from steelyard.codegen.memory import Pointer
from steelyard.codegen.values import (
    Value,
    absolute,
    bitcast,
    compare_unsigned,
    convert,
    f32,
    floor,
    fused_multiply_add,
    i32,
    is_nan,
    minimum,
    select,
    signed_to,
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
    def load(cls, pointer: Pointer, copy: int) -> "RandomState":
        words = pointer.load_words(4)
        return cls((words[0], words[1]), (words[2], words[3]), copy)


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
    product = convert(word, "i64") * factor
    return convert(product >> 32, "i32"), convert(product, "i32")


@dataclass(frozen=True)
class RandomTile:
    """A byte for each element of a tile, at `memory`; rows are `side` + 4 bytes apart."""

    memory: Pointer
    side: int

    @staticmethod
    def bytes_of(side: int) -> int:
        return side * (side + 4)

    def byte(self, row: Value | int, column: Value | int) -> Pointer:
        return self.memory.at(row * (self.side + 4) + column)

    def fill_row_part(self, state: RandomState, row: Value, part: Value, first_index: Value) -> None:
        """Draw the bytes of a row that fall into one group: the `part`-th that the row touches.

        `first_index` is the linear index of the row's first element, as i64; groups begin at multiples of 16.
        """
        group = (first_index >> 4) + signed_to(part, "i64")
        words = philox(convert(group, "i32"), state)
        begin = part * _GROUP - convert(first_index & 15, "i32")
        for index in range(_GROUP):
            byte = convert(words[index // 4] >> (8 * (index % 4)), "i8")
            column = begin + index
            when(compare_unsigned(column, "<", self.side), lambda c=column, b=byte: self.byte(row, c).store(b))


def dither(value: Value, random_byte: Value) -> Value:
    """A value that the cast to E2M1 leaves as it is: rounded up with the probability of the distance."""
    magnitude = absolute(value)
    share = convert(convert(random_byte, "i32"), "f32") * (1 / 256)
    raised = fused_multiply_add(share, _by_size(magnitude, 0.5, 1.0, 2.0), magnitude)
    # Steps are powers of two: the product with the inverse is the quotient, without the code that divides.
    steps = floor(raised * _by_size(raised, 2.0, 1.0, 0.5))
    rounded = minimum(steps * _by_size(raised, 0.5, 1.0, 2.0), 6.0)
    sign = bitcast(value, "i32") & 0x80000000
    signed = bitcast(bitcast(rounded, "i32") | sign, "f32")
    return select(is_nan(value), value, signed)


def _by_size(magnitude: Value, below_two: float, below_four: float, above: float) -> Value:
    """What goes with the distance between the values of E2M1 around a magnitude."""
    return select(magnitude < 2.0, f32(below_two), select(magnitude < 4.0, f32(below_four), f32(above)))
