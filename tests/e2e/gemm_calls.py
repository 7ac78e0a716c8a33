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


def read_groups(call, values):
    """The operands of each product of experts: copies, or rows of a plain left operand."""
    named = dict(zip([slot.name for slot in call.operands], values, strict=False))
    ends = named["ends"].tolist()
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if call.lhs is None:
        plain = named["lhs"].detach().clone()
        left = [plain[end - count : end] for count, end in zip(counts, ends, strict=True)]
    else:
        left = read_group_copies(call.lhs, call.lhs_shape, named, counts, "lhs", call.kind == "wgrad")
    right = read_group_copies(call.rhs, call.rhs_shape, named, counts, "rhs", call.kind != "fprop")
    return left, right


def read_group_copies(scheme, shape, named, counts, operand, columnwise):
    """The copies of all groups, whose parts lie one after the other."""
    matrices = [shape[1:]] * len(counts) if len(shape) == 3 else [(count, shape[1]) for count in counts]
    addresses = {name.partition(".")[2]: value for name, value in named.items() if name.startswith(f"{operand}.")}
    copies = []
    for matrix in matrices:
        own = {f"{operand}.{part}": address for part, address in addresses.items()}
        copies.append(read_copy(scheme, matrix, own, (), operand, columnwise))
        for part, (sizes, dtype) in part_shapes(scheme, matrix, columnwise).items():
            size = math.prod(sizes) * DTYPES[dtype].itemsize
            addresses[part] += -(-size // 64) * 64 if part == "packed" else size
    return copies


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
