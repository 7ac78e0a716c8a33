"""Four over six: each NVFP4 block also tries the map of its amax to 4 and keeps the smaller error."""

from collections.abc import Callable
from dataclasses import dataclass

from steelyard.codegen.formats import decode_e4m3, decode_words, encode_e4m3, encode_words
from steelyard.codegen.scale_rules import nvfp4_encode_factor
from steelyard.codegen.values import Value, absolute, minimum, select
from steelyard.targets.architectures import Target

_ELEMENT = "f4E2M1FN"
_RANGE = 6.0 * 256.0


@dataclass(frozen=True)
class Candidate:
    """One way to quantize a block: its codes, its byte, and how far the values are off."""

    words: list[Value]
    byte: Value
    error: Value


def choose(
    values: list[Value],
    block_amax: Value,
    amax: Value,
    scales: tuple[Value, Value],
    measure: str,
    add_rows: Callable[[Value], Value],
    target: Target,
) -> tuple[list[Value], Value]:
    """Code words and byte of 16 values; `add_rows` sums the errors of the rows of a tile."""
    encode_scale, decode_scale = scales
    base = block_amax / 6.0 * encode_scale
    six, four = (
        _candidate(values, scale, amax, decode_scale, measure, add_rows, target) for scale in (base, base * 1.5)
    )
    keep_four = four.error < six.error
    words = [select(keep_four, chosen, other) for chosen, other in zip(four.words, six.words, strict=True)]
    return words, select(keep_four, four.byte, six.byte)


def _candidate(values, scale, amax, decode_scale, measure, add_rows, target) -> Candidate:
    byte = encode_e4m3(minimum(scale, 448.0))
    factor = nvfp4_encode_factor(byte, decode_scale)
    words = encode_words([value * factor for value in values], _ELEMENT, target)
    byte_value = decode_e4m3(byte)
    total = None
    for value, code in zip(values, decode_words(words, _ELEMENT, target), strict=True):
        difference = code * byte_value * amax / _RANGE - value
        error = absolute(difference) if measure == "mae" else difference * difference
        total = error if total is None else total + error
    assert total is not None
    return Candidate(words, byte, add_rows(total))
