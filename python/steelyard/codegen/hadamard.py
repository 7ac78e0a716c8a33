"""The random Hadamard transform of 16 values in registers, as `steelyard.reference.hadamard` has it."""

from steelyard.codegen.formats import round_to_bf16
from steelyard.codegen.strips import Chunk
from steelyard.codegen.tile import narrow_words
from steelyard.codegen.values import Value, operation, split_pair, vector_of

GROUP = 16
_NEGATIVE = (3, 5, 6, 7, 8, 9, 10, 12, 14, 15)


def transform_lines(lines: list[list[Value]], dtype: str) -> list[Chunk]:
    """From lines of values rounded to bf16, as those of that dtype are, to chunks of bf16.

    Two lines are transformed together, as pairs: some targets add two pairs at once.
    """
    rounded = lines if dtype == "bf16" else [[round_to_bf16(value) for value in line] for line in lines]
    if len(lines) == 2:
        mixed = _butterflies(_signed([vector_of(list(pair)) for pair in zip(*rounded, strict=True)]))
        lines = [list(line) for line in zip(*map(split_pair, mixed), strict=True)]
    else:
        lines = [_butterflies(_signed(line)) for line in rounded]
    return [Chunk(narrow_words(line, "bf16"), "bf16") for line in lines]


def inverse(values: list[Value]) -> list[Value]:
    """Undo the transform; the matrix is orthogonal."""
    return _signed(_butterflies(values))


def _signed(values: list[Value]) -> list[Value]:
    return [_negated(value) if index in _NEGATIVE else value for index, value in enumerate(values)]


def _negated(value: Value) -> Value:
    return operation("arith.negf", [value], value.type)


def _butterflies(values: list[Value]) -> list[Value]:
    for stride in (1, 2, 4, 8):
        mixed = list(values)
        for low in range(GROUP):
            if low & stride == 0:
                mixed[low] = values[low] + values[low + stride]
                mixed[low + stride] = values[low] - values[low + stride]
        values = mixed
    return [value * 0.25 for value in values]
