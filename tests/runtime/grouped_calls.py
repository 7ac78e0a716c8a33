"""The kernels on tensors in groups, as programs call them."""

from dataclasses import replace

import torch

from steelyard.dialect import make_context
from steelyard.dialect.types import TensorInfo
from steelyard.formats.gemms import OPERAND_USAGES
from steelyard.formats.parts import grouped_part_shapes
from steelyard.ir.kernel_calls import GroupedGemmCall, GroupedPackCall, GroupedQuantizeCall, Slot
from steelyard.reference.grouped import stored_parts
from steelyard.runtime.cpu.bound import bind

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int32: "si32", torch.int64: "si64"}
_NAMES[torch.uint8] = "ui8"
CONTEXT = make_context()


def slot(name, tensor):
    return Slot(name, TensorInfo("torch", tuple(tensor.shape), _NAMES[tensor.dtype]).type())


def copy_slots(prefix, scheme, shape, columnwise, groups):
    parts = grouped_part_shapes(scheme, shape, columnwise, groups) if scheme else {}
    dtypes = {"i8": "ui8"}
    return [
        Slot(f"{prefix}.{part}", TensorInfo("torch", sizes, dtypes.get(dtype, dtype)).type())
        for part, (sizes, dtype) in parts.items()
    ]


def run(call, operands):
    """The results of a call."""
    call.check()
    kernel, allocate = bind(call, None)
    results = allocate(*operands)
    for result in results:
        if result.dtype == torch.uint8:
            result.fill_(0xAA)
    values = [*operands, *results]
    kernel(*(value.data_ptr() if i in call.part_positions else value for i, value in enumerate(values)))
    return {made.name: value for made, value in zip(call.results, results, strict=True)}


def quantize(x, ends, row, col, *, groups, scale=None, rng=None):
    """The parts of both copies, by name."""
    given = {"source": x, "ends": ends, "scale": scale, "rng": None if rng is None else torch.tensor(rng)}
    operands = {name: value for name, value in given.items() if value is not None}
    shape = tuple(x.shape)
    with CONTEXT:
        call = GroupedQuantizeCall(
            operands=tuple(slot(*named) for named in operands.items()),
            results=tuple(copy_slots("row", row, shape, False, groups) + copy_slots("col", col, shape, True, groups)),
            row=row,
            col=col,
            role="grad_output",
            groups=groups,
        )
        return run(call, list(operands.values()))


def scales_for(groups, *schemes):
    """A delayed scale of each group, a static one of all, and none for schemes that take none."""
    sources = {scheme.source for scheme in schemes if scheme is not None}
    if sources == {"current"}:
        return None
    return torch.arange(1, groups + 1) * 0.75 if sources == {"delayed"} else torch.tensor(3.0)


def pack(parts, row, shape):
    """A packed stack of weights."""
    with CONTEXT:
        packed = replace(row, layout="packed")
        call = GroupedPackCall(
            operands=tuple(slot(*named) for named in parts.items()),
            results=tuple(copy_slots("row", packed, shape, False, shape[0])),
            row=row,
            shape=shape,
            groups=shape[0],
        )
        return packed, run(call, list(parts.values()))


def gemm(kind, lhs, rhs, ends, *, out):
    """The product; each operand is a scheme, a shape and its parts."""
    operands = {
        f"{name}.{part.partition('.')[2]}": value
        for name, (_, _, parts), usage in zip(("lhs", "rhs"), (lhs, rhs), OPERAND_USAGES[kind], strict=True)
        for part, value in parts.items()
        if part.startswith(usage[:3])
    } | {"ends": ends}
    with CONTEXT:
        call = GroupedGemmCall(
            operands=tuple(slot(*named) for named in operands.items()),
            results=(slot("result", out),),
            kind=kind,
            groups=ends.shape[0],
            lhs=lhs[0],
            lhs_shape=lhs[1],
            rhs=rhs[0],
            rhs_shape=rhs[1],
        )
        return run(call, list(operands.values()))["result"]


def assert_parts(found, prefix, copies):
    """Parts begin with those of all groups; the rest of their room is anything."""
    for part, wanted in stored_parts(copies).items():
        made = found[f"{prefix}.{part}"]
        assert made.dtype == wanted.dtype
        assert made.numel() >= wanted.numel()
        assert torch.equal(made[: wanted.numel()].view(torch.uint8), wanted.view(torch.uint8)), part
