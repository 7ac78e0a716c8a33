"""Four over six: each NVFP4 block also tries the map of its amax to 4 and keeps the smaller error."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from steelyard.codegen.formats import decode_e4m3, decode_words, encode_e4m3, encode_words
from steelyard.codegen.scale_rules import nvfp4_encode_factor
from steelyard.codegen.values import Value, absolute, minimum, select
from steelyard.targets.architectures import Target

_ELEMENT = "f4E2M1FN"
_RANGE = 6.0 * 256.0


@dataclass(frozen=True)
class Line:
    """16 values, the amax of their block and of the tensor or row, and its encode and decode scale."""

    values: list[Value]
    block_amax: Value
    amax: Value
    scales: tuple[Value, Value]


@dataclass(frozen=True)
class Candidate:
    """One way to quantize a block: its codes, its byte, and how far the values are off."""

    words: list[Value]
    byte: Value
    error: Value


def choose(
    lines: list[Line], measure: str, add_lines: Callable[[list[Value]], list[Value]], target: Target
) -> tuple[list[list[Value]], list[Value]]:
    """Code words and byte of each line; `add_lines` sums the errors of the lines of a tile."""
    sixes, fours = (_candidates(lines, stretch, measure, add_lines, target) for stretch in (1.0, 1.5))
    words, scale_bytes = [], []
    for six, four in zip(sixes, fours, strict=True):
        keep_four = four.error < six.error
        words.append([select(keep_four, chosen, other) for chosen, other in zip(four.words, six.words, strict=True)])
        scale_bytes.append(select(keep_four, four.byte, six.byte))
    return words, scale_bytes


def _candidates(lines: list[Line], stretch: float, measure: str, add_lines, target: Target) -> list[Candidate]:
    found = [_candidate(line, stretch, measure, target) for line in lines]
    errors = add_lines([candidate.error for candidate in found])
    return [replace(candidate, error=error) for candidate, error in zip(found, errors, strict=True)]


def _candidate(line: Line, stretch: float, measure: str, target: Target) -> Candidate:
    encode_scale, decode_scale = line.scales
    scale = line.block_amax / 6.0 * encode_scale
    byte = encode_e4m3(minimum(scale if stretch == 1.0 else scale * stretch, 448.0))
    factor = nvfp4_encode_factor(byte, decode_scale)
    words = encode_words([value * factor for value in line.values], _ELEMENT, target)
    byte_value = decode_e4m3(byte)
    total = None
    for value, code in zip(line.values, decode_words(words, _ELEMENT, target), strict=True):
        difference = code * byte_value * line.amax / _RANGE - value
        error = absolute(difference) if measure == "mae" else difference * difference
        total = error if total is None else total + error
    assert total is not None
    return Candidate(words, byte, total)
