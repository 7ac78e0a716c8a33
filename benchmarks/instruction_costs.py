"""What a PTX instruction costs a multiprocessor: which of its units work for it, and how often.

A unit is a row of the table of arithmetic throughput in NVIDIA's CUDA C++ Best Practices Guide. An instruction that
ptxas makes several of is counted as these; their number is the growth of the code that ptxas 13.0 makes for one more.
Where ptxas joins instructions (three-input logic and maxima, a shift and an or), each is counted: the costs are not too
low there.
"""

import re
from collections import Counter
from collections.abc import Mapping

FP32, FP32_PAIR, FP64, INTEGER, MULTIPLY = "fp32", "fp32 pair", "fp64", "integer", "multiply"
NARROW, CONVERT, SPECIAL, EXCHANGE, OTHER = "narrow", "convert", "special", "exchange", "other"
UNITS = (FP32, FP32_PAIR, FP64, INTEGER, MULTIPLY, NARROW, CONVERT, SPECIAL, EXCHANGE, OTHER)

# The first pattern that matches an opcode says what it costs.
_COSTS: tuple[tuple[str, dict[str, int]], ...] = (
    (r"mov\.b32 \{", {INTEGER: 1}),  # halves are put together, or taken apart
    # Parameters are operands from constant memory, moves and the words of 64 bits a renaming of registers.
    (r"(neg|abs)\.f32", {}),  # a property of the operand that reads it
    (r"ld\.param|mov\.|ret|cvt\.u64\.u(8|16|32)|cvt\.u\d+\.u64|cvt\.u8\.", {}),
    (r"(ld|st)\.(global|shared)|(atom|red)\.|bra|bar\.", {OTHER: 1}),
    (r"shfl\.", {EXCHANGE: 1}),
    (r"redux\.", {EXCHANGE: 2}),  # half the rate of a shuffle
    (r"div\.rn\.f32", {SPECIAL: 1, FP32: 7, INTEGER: 1, OTHER: 4}),
    (r"rcp\.rn\.f32", {SPECIAL: 1, FP32: 3, INTEGER: 3, OTHER: 5}),
    (r"sqrt\.rn\.f32", {SPECIAL: 1, FP32: 5, INTEGER: 3, OTHER: 5}),
    (r"(div|rcp|sqrt)\.rn\.f64", {SPECIAL: 1, FP64: 12, INTEGER: 4, OTHER: 4}),
    (r"(div|rem)\.u32", {SPECIAL: 1, CONVERT: 2, MULTIPLY: 5, INTEGER: 10}),
    (r"(div|rem)\.u64", {SPECIAL: 2, CONVERT: 4, MULTIPLY: 20, INTEGER: 40}),
    (r"(mul|mad)\.lo\.s64", {MULTIPLY: 4}),
    (r"(mul|mad)\.(lo|wide|hi)\.", {MULTIPLY: 1}),
    (r"cvt\.(rn|rp)\.(satfinite\.|bf16|f16\.|f16x2\.f32)", {NARROW: 1}),
    (r"cvt\.f32\.bf16", {INTEGER: 1}),
    (r"cvt\.(rn\.)?f(32|64)\.|cvt\.rmi|cvt\.rn\.f16x2", {CONVERT: 1}),
    (r"(max|min)\..*f(16|32)|(max|min)\..*bf16", {INTEGER: 1}),
    (r"(add|sub|mul)\.rn\.f32x2", {FP32_PAIR: 1}),
    (r"(add|sub|mul|fma|neg|abs)\.(rn\.)?f64", {FP64: 1}),
    (r"(add|sub|mul|fma|neg|abs)\.(rn\.)?b?f(16|32)", {FP32: 1}),
    (r"\w+\.(\w+\.)?[bus]64", {INTEGER: 2}),
    (r"(add|sub|neg|and|or|xor|not|shl|shr|setp|selp|min|max|cvt|bfe|prmt|copysign)\.", {INTEGER: 1}),
)


def cost_of(opcode: str) -> Mapping[str, int]:
    """Unit -> instructions for it."""
    for pattern, cost in _COSTS:
        if re.match(pattern, opcode):
            return cost
    raise ValueError(f"the cost of {opcode} is not known")


def costs_of(issued: Mapping[str, float]) -> Counter[str]:
    """Unit -> instructions for it, of opcodes with how often they were executed."""
    total: Counter[str] = Counter()
    for opcode, times in issued.items():
        for unit, count in cost_of(opcode).items():
            total[unit] += count * times
    return total
