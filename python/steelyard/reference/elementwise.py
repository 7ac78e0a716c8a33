"""Elementwise programs, one step after the other on whole tensors.

Steps that are exact up to one rounding are computed in float32, as kernels do; the others in float64, and rounded.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from steelyard.formats.elementwise import OUT, Access, Compute, Load, Loop, Program, Store

ROUNDED_ONCE = frozenset(
    [
        "cast",
        "neg",
        "abs",
        "sqrt",
        "reciprocal",
        "relu",
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "where",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_not",
    ]
)
"""Kernels give the same bits."""
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i1": torch.bool}


def elementwise(
    program: Program,
    inputs: Sequence[torch.Tensor],
    shape: Sequence[int],
    dtype: torch.dtype,
    sizes: Sequence[int] = (),
) -> torch.Tensor:
    """What a program stores into a tensor of this shape and dtype; elements that it never stores are zero."""
    tensors = {f"in{number}": tensor for number, tensor in enumerate(inputs)}
    tensors[OUT] = torch.zeros(tuple(shape), dtype=dtype)
    for loop in program.loops:
        _run(loop, tensors, sizes)
    return tensors[OUT]


def _run(loop: Loop, tensors: dict[str, torch.Tensor], sizes: Sequence[int]) -> None:
    box = [sizes[int(size[1:])] if isinstance(size, str) else size for size in loop.sizes]
    if len(loop.steps) == 2 and isinstance(loop.steps[0], Load) and isinstance(loop.steps[1], Store):
        # A copy keeps every bit, of any type.
        read, written = (_elements(step.access, box) for step in loop.steps if not isinstance(step, Compute))
        tensors[OUT][written] = tensors[loop.steps[0].access.tensor][read]
        return
    values: dict[int, torch.Tensor] = {}
    for step in loop.steps:
        match step:
            case Load(value, access):
                values[value] = tensors[access.tensor][_elements(access, box)].to(torch.float32)
            case Store(value, access):
                stored = values[value] if isinstance(value, int) else torch.tensor(value)
                out = tensors[OUT]
                out[_elements(access, box)] = (stored != 0 if out.dtype is torch.bool else stored).to(out.dtype)
            case Compute():
                values[step.value] = _computed(step, values)


def _elements(access: Access, box: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Where each element of a box is in a tensor."""
    places = []
    for index in access.indices:
        place = torch.full(tuple(box), index.offset)
        for dim, factor in index.terms:
            shape = [1] * len(box)
            shape[dim] = box[dim]
            place = place + factor * torch.arange(box[dim]).view(shape)
        places.append(place)
    return tuple(places)


def _computed(step: Compute, values: dict[int, torch.Tensor]) -> torch.Tensor:
    inputs = [values[one] if isinstance(one, int) else torch.tensor(one) for one in step.operands]
    made = compute(step.operation, inputs).to(torch.float32)
    return made if step.dtype == "i1" else made.to(_DTYPES[step.dtype]).to(torch.float32)


def compute(operation: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """What one step makes of float32 tensors: in float32 where it rounds once, otherwise in float64."""
    if operation in ROUNDED_ONCE:
        return _exact(operation, *inputs)
    return _function(operation, *(one.to(torch.float64) for one in inputs))


def _exact(operation: str, *inputs: torch.Tensor) -> torch.Tensor:
    match operation:
        case "cast":
            return inputs[0]
        case "sqrt":
            # Rounded as IEEE 754 says, which torch's need not be.
            with np.errstate(invalid="ignore"):
                return torch.from_numpy(np.sqrt(inputs[0].numpy()))
        case "where":
            return torch.where(inputs[0] != 0, inputs[1], inputs[2])
        case _:
            return getattr(torch, operation)(*inputs)


def _function(operation: str, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    match operation:
        case "silu":
            return functional.silu(x)
        case "gelu":
            return x * _normal(x)
        case "gelu_tanh":
            return x * torch.sigmoid(_gelu_argument(x))
        case _ if y is None:
            return getattr(torch, operation)(x)
        case "tanh_backward":
            return x * (1 - y * y)
        case "sigmoid_backward":
            return x * (1 - y) * y
        case "silu_backward":
            s = torch.sigmoid(y)
            return x * (s + y * s * torch.sigmoid(-y))
        case "gelu_backward":
            return x * (_normal(y) + y * torch.exp(-y * y / 2) / math.sqrt(2 * math.pi))
        case _:
            s, other = torch.sigmoid(_gelu_argument(y)), torch.sigmoid(-_gelu_argument(y))
            return x * (s + y * s * other * 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * y * y))


def _normal(x: torch.Tensor) -> torch.Tensor:
    """The normal distribution, lower tail included: 1 + erf would lose it."""
    return torch.special.erfc(-x / math.sqrt(2)) / 2


def _gelu_argument(x: torch.Tensor) -> torch.Tensor:
    """What gelu with tanh is x times the sigmoid of."""
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
