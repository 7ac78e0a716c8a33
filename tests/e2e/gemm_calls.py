"""The arguments of a compiled program's GEMM, read from addresses and tensors."""

import ctypes
import math
from dataclasses import replace

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import part_shapes
from steelyard.formats.scheme_bits import scheme_bits
from steelyard.runtime import _cpu, cpu
from steelyard.runtime.dtypes import DTYPES


def read_call(call, values):
    """A GEMM call as (a, b, options, result), copied from the addresses and tensors it was given."""
    given = list(zip([slot.name for slot in call.operands], values, strict=False))
    sizes = [value for name, value in given if name == "size"]
    named = dict(given)
    if call.lhs is None:
        a = named["lhs"].detach().clone().reshape(-1, named["lhs"].shape[-1])
    else:
        a = read_copy(call.lhs, call.lhs_shape, named, sizes, "lhs", call.kind == "wgrad")
    b = read_copy(call.rhs, call.rhs_shape, named, sizes, "rhs", call.kind != "fprop")
    options = {name: named[name].detach().clone() for name in ("bias", "residual") if name in named}
    if "residual" in options:
        options["residual"] = options["residual"].reshape(-1, options["residual"].shape[-1])
    options["epilogue"] = call.epilogue
    result = values[len(call.operands)]
    return a, b, options, result.detach().clone().reshape(-1, result.shape[-1])


def read_copy(scheme, shape, named, sizes, operand, columnwise):
    if scheme.layout == "packed":
        return read_packed(named[f"{operand}.packed"], replace(scheme, layout="compact"), shape, columnwise)
    unknown = math.prod(sizes) if None in shape[:-1] else 1
    matrix = math.prod(size for size in shape[:-1] if size is not None) * unknown, shape[-1]
    parts = {
        name: read_memory(named[f"{operand}.{name}"], sizes, DTYPES[dtype])
        for name, (sizes, dtype) in part_shapes(scheme, matrix, columnwise).items()
    }
    return QuantizedCopy(parts["codes"], parts["scales"], parts.get("amax"), scheme, matrix, columnwise)


def read_packed(address, scheme, shape, columnwise):
    stored = shape[::-1] if columnwise else shape
    data = read_memory(address, (_cpu.packed_size(scheme_bits(scheme), *stored),), torch.uint8)
    return cpu.unpack(cpu.PackedWeight(data, scheme, shape, columnwise))


def read_memory(address, shape, dtype):
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(bytearray(buffer), dtype=dtype).reshape(shape)
