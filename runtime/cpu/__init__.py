"""The CPU kernels."""

from steelyard.runtime import _cpu

instruction_sets = _cpu.instruction_sets
