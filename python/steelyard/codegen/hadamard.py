"""The random Hadamard transform of 16 values in registers, as `steelyard.reference.hadamard` has it."""

from steelyard.codegen.formats import round_to_bf16
from steelyard.codegen.strips import Chunk
from steelyard.codegen.tile import narrow_words
from steelyard.codegen.values import Value, operation

GROUP = 16
_NEGATIVE = (3, 5, 6, 7, 8, 9, 10, 12, 14, 15)


def transform_line(values: list[Value], dtype: str) -> Chunk:
    """From values rounded to bf16, as those of that dtype are, to a chunk of bf16."""
    rounded = values if dtype == "bf16" else [round_to_bf16(value) for value in values]
    return Chunk(narrow_words(_butterflies(_signed(rounded)), "bf16"), "bf16")


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
