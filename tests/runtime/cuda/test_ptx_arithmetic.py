"""Each instruction that the interpreter knows, against exact arithmetic."""

import numpy as np
import pytest
from ptx_arithmetic import COMPUTING
from scalar_definitions import DEFINITIONS, WIDTHS, packed

_F32 = [packed(v) for v in (0.0, 1.0, 1.5, 2.5, 0.25, 5.0, 448.0, 464.0, 480.0, 57344.0, 61440.0, 3.4e38, 1e-45, 1e-40)]
_F32 += [0x7F800000, 0x7FC00000, 0x7F800001, 0x00800000, 0x007FFFFF, 0x3F800001, 0x00400000, 0x00400001, 0x7F7FFFFF]
_EDGES = {
    8: [0, 1, 7, 0x78, 0x7E, 0x7F, 0x80, 0xFF],
    16: [0, 1, 0x7F, 0x80, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7F80, 0x7F81, 0x7FFF, 0x8000, 0xFFFF, 0x7E7F, 0x3F80],
    32: _F32 + [bits | 0x80000000 for bits in _F32],
    64: [0, 1, 1 << 52, 0x3FF << 52, 0x7FF << 52, 0x7FF8 << 48, 0x47EFFFFFF0000000, 0x36A0000000000000, (1 << 64) - 1],
}
_COUNT = 160


def draw(kind: str, generator: np.random.Generator) -> list[int]:
    """Edge cases, then random bits; for floats also random numbers of similar magnitude."""
    if kind == "amount":
        return generator.integers(0, 70, _COUNT).tolist()
    if kind == "pred":
        return generator.integers(0, 2, _COUNT).tolist()
    if kind == "position":
        return generator.integers(0, 40, _COUNT).tolist()
    if kind == "selector":
        return [sum(int(n) << 4 * i for i, n in enumerate(generator.integers(0, 8, 4))) for _ in range(_COUNT)]
    if kind == "f32x2":
        return [high << 32 | low for high, low in zip(draw("f32", generator), draw("f32", generator), strict=True)]
    if kind == "positive":
        return [bits & 0x7FFFFFFF for bits in draw("f32", generator)]
    width = WIDTHS.get(kind) or int("".join(filter(str.isdigit, kind)))
    drawn = _EDGES[width] + generator.integers(0, (1 << width) - 1, _COUNT, np.uint64, endpoint=True).tolist()
    if kind == "f32":
        drawn[-60:] = generator.normal(0, 4, 60).astype(np.float32).view(np.uint32).tolist()
    if kind == "f64":
        drawn[-60:] = generator.normal(0, 4, 60).view(np.uint64).tolist()
    drawn = generator.permutation(np.array(drawn, np.uint64))[:_COUNT].tolist()
    return [bits or 1 for bits in drawn] if kind.startswith("nonzero") else drawn


def register(kind: str, values: list[int]) -> np.ndarray:
    if kind == "pred":
        return np.array(values, bool)
    names = {"amount": 32, "position": 32, "selector": 32, "positive": 32, "f32x2": 64}
    width = names.get(kind) or WIDTHS.get(kind) or int("".join(filter(str.isdigit, kind)))
    return np.array(values, {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[width])


@pytest.mark.parametrize("opcode", sorted(COMPUTING))
def test_instruction(opcode):
    kinds, definition = DEFINITIONS[opcode]
    generator = np.random.default_rng(sorted(COMPUTING).index(opcode))
    operands = [draw(kind, generator) for kind in kinds]
    found = COMPUTING[opcode](*map(register, kinds, operands))
    expected = [definition(*numbers) for numbers in zip(*operands, strict=True)]
    wrong = [
        (list(map(hex, numbers)), hex(int(f)), hex(int(e)))
        for numbers, f, e in zip(zip(*operands, strict=True), found, expected, strict=True)
        if int(f) != int(e)
    ]
    assert not wrong, f"{opcode} of {wrong[0][0]} gave {wrong[0][1]}, must be {wrong[0][2]}; {len(wrong)} wrong"


def test_nothing_is_defined_that_is_not_known():
    assert set(DEFINITIONS) == set(COMPUTING)


@pytest.mark.parametrize("opcode", ["div.u32", "rem.u32", "div.u64", "rem.u64"])
def test_division_by_zero_is_refused(opcode):
    with pytest.raises(ZeroDivisionError):
        COMPUTING[opcode](np.array([1], np.uint64), np.array([0], np.uint64))
