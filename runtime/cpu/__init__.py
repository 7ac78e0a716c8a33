"""The CPU kernels: the functions of `steelyard.reference`, native, with the same bytes."""

from steelyard import knobs
from steelyard.errors import TargetError, shown
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.attention import attention
from steelyard.runtime.cpu.attention_backward import attention_backward
from steelyard.runtime.cpu.decoding import dequantize, swizzle, transpose
from steelyard.runtime.cpu.delayed import update_scale
from steelyard.runtime.cpu.elementwise import elementwise
from steelyard.runtime.cpu.gemm import qgemm
from steelyard.runtime.cpu.packing import PackedWeight, pack, unpack
from steelyard.runtime.cpu.producers import produce, quantize_produced
from steelyard.runtime.cpu.quantization import amax, empty_copy, quantize, quantize_into
from steelyard.runtime.cpu.saturation import count_saturated

__all__ = [
    "PackedWeight",
    "amax",
    "attention",
    "attention_backward",
    "count_saturated",
    "dequantize",
    "elementwise",
    "empty_copy",
    "instruction_sets",
    "isa",
    "pack",
    "produce",
    "qgemm",
    "quantize",
    "quantize_into",
    "quantize_produced",
    "set_isa",
    "swizzle",
    "transpose",
    "unpack",
    "update_scale",
]


def instruction_sets() -> list[str]:
    """Names of the instruction sets that kernels may use on this machine, the widest last."""
    return _cpu.instruction_sets()


def isa() -> str:
    """The name of the instruction set in use."""
    return _cpu.isa()


def set_isa(name: str | None) -> None:
    """Use the kernels of this instruction set, one of `instruction_sets()`; None means the widest."""
    if not isinstance(name, str | None):
        raise TargetError(f"the instruction set must be a name or None, got {shown(name)}")
    try:
        _cpu.set_isa(name or "")
    except ValueError as error:
        raise TargetError(str(error)) from None


set_isa(knobs.isa())
