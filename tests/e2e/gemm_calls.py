"""What a GEMM of a compiled program is called with, read from addresses and tensors."""

import ctypes
import math
from dataclasses import replace

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import part_shapes
from steelyard.runtime import _cpu, cpu
from steelyard.runtime.dtypes import DTYPES


def read_call(kernel, values):
    """A GEMM call as (a, b, options, result), copied from the addresses and tensors it was given."""
    given = list(zip(kernel.operands, values, strict=False))
    sizes = [value for name, value in given if name == "size"]
    named = dict(given)
    kind = kernel.config["kind"]
    a = read_copy(kernel, named, sizes, "lhs", kind == "wgrad")
    b = read_copy(kernel, named, sizes, "rhs", kind != "fprop")
    options = {name: named[name].detach().clone() for name in ("bias", "residual", "accumulator") if name in named}
    if "residual" in options:
        options["residual"] = options["residual"].reshape(-1, options["residual"].shape[-1])
    options["epilogue"] = kernel.config["epilogue"]
    result = values[len(kernel.operands)]
    return a, b, options, result.detach().clone().reshape(-1, result.shape[-1])


def read_copy(kernel, named, sizes, operand, columnwise):
    scheme, shape = kernel.config[operand], kernel.config[f"{operand}_shape"]
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
    data = read_memory(address, (_cpu.packed_size(*stored, False),), torch.uint8)
    return cpu.unpack(cpu.PackedWeight(data, scheme, shape, columnwise))


def read_memory(address, shape, dtype):
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(bytearray(buffer), dtype=dtype).reshape(shape)
