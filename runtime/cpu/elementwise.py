"""Elementwise programs on the CPU, in the arithmetic of `steelyard.reference.elementwise`."""

from collections.abc import Callable, Mapping, Sequence

import torch

from steelyard.formats.elementwise import OUT, Access, Compute, Load, Loop, Program, Store, read_by, values_read_by
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import DTYPES, check_tensor
from steelyard.runtime.cpu.tensor_reader import TENSORS
from steelyard.runtime.dtypes import DTYPES as NAMED_DTYPES

_ELEMENT_TYPES = {name: number for number, name in enumerate(_cpu.element_type_names())}
_OPERATIONS = {name: number for number, name in enumerate(_cpu.operation_names())}
_NUMBERS = {"f32": 0, "bf16": DTYPES[torch.bfloat16], "f16": DTYPES[torch.float16], "i1": 0}
"""What values are rounded to."""
_NAMES = {dtype: name for name, dtype in NAMED_DTYPES.items() if name not in ("i8", "i64")}
_NOWHERE = -1
_OFFSET = -1
"""The dim of a loop that a term has which is an offset."""

Strides = Sequence[int] | None


def elementwise(
    program: Program,
    inputs: Sequence[torch.Tensor],
    shape: Sequence[int],
    dtype: torch.dtype,
    sizes: Sequence[int] = (),
) -> torch.Tensor:
    """What a program stores into a new tensor of this shape and dtype; the program must store all of its elements.

    Inputs may have any strides. `sizes` are those that the program leaves to its calls.

    Constraints:
    - elementwise_c1: the program is spelled as `steelyard.formats.elementwise` says
    - elementwise_c2: its loops are within the tensors, and of types and numbers of steps that kernels have room for
    """
    tensors = {f"in{number}": tensor for number, tensor in enumerate(inputs)}
    for name, tensor in tensors.items():
        check_tensor(tensor, name)
    out = torch.empty(tuple(shape), dtype=dtype)
    tensors[OUT] = out
    dtypes = {name: _NAMES[tensor.dtype] for name, tensor in tensors.items()}
    program.check({name: tensor.shape for name, tensor in tensors.items()}, dtypes, len(sizes))
    count = len(inputs)
    run = bind_program(program, dtypes, dict.fromkeys(tensors), slice(count, count + len(sizes)))
    run(*inputs, *sizes, out)
    return out


def bind_program(
    program: Program, dtypes: Mapping[str, str], strides: Mapping[str, Strides], sizes: slice
) -> Callable[..., None]:
    """A function of the inputs, the sizes and the output of a program.

    A tensor whose strides are given is an address to the function. `sizes` are the positions of those.
    """
    names = list(dtypes)
    positions = {name: index for index, name in enumerate(names[:-1])}
    positions[OUT] = sizes.stop
    tensors = [(positions[name], None if strides[name] is None else list(strides[name] or ())) for name in names]
    loops = [_loop(loop, names, dtypes) for loop in program.loops]
    return _cpu.bound_elementwise(TENSORS, loops, tensors, sizes.start, sizes.stop)


def _loop(loop: Loop, names: Sequence[str], dtypes: Mapping[str, str]) -> tuple:
    """A loop, as the native module takes it."""
    sizes = [-1 - int(size[1:]) if isinstance(size, str) else size for size in loop.sizes]
    accesses = [_access(access, names, dtypes) for access in loop.accesses]
    return sizes, accesses, _steps(loop, dtypes), loop.numbers


def _access(access: Access, names: Sequence[str], dtypes: Mapping[str, str]) -> tuple:
    terms: list[tuple[int, int, int]] = []
    for dim, index in enumerate(access.indices):
        terms += [(dim, own, factor) for own, factor in index.terms]
        if index.offset:
            terms.append((dim, _OFFSET, index.offset))
    tensor = access.tensor
    return names.index(tensor), _ELEMENT_TYPES[dtypes[tensor]], tensor == OUT, terms


def _steps(loop: Loop, dtypes: Mapping[str, str]) -> list[tuple[int, ...]]:
    registers, _ = loop.registers()
    numbers = [repr(number) for number in loop.numbers]
    places = {
        id(step): place for place, step in enumerate(step for step in loop.steps if not isinstance(step, Compute))
    }
    stored = {one: places[id(step)] for step in loop.steps if isinstance(step, Store) for one in values_read_by(step)}
    made: list[tuple[int, ...]] = []
    for step in loop.steps:
        read = [registers[one] if isinstance(one, int) else numbers.index(repr(one)) for one in read_by(step)]
        read += [0] * (3 - len(read))
        match step:
            case Load(value):
                made.append((_OPERATIONS["load"], 0, registers[value], *read, places[id(step)]))
            case Store():
                made.append((_OPERATIONS["store"], 0, 0, *read, places[id(step)]))
            case Compute(value, operation):
                # A float32 value that is stored is computed where it goes.
                place = stored.get(value, _NOWHERE) if dtypes[OUT] == "f32" else _NOWHERE
                made.append((_OPERATIONS[operation], _NUMBERS[step.dtype], registers[value], *read, place))
    return made


def row_major(shape: Sequence[int | None]) -> list[int]:
    """The strides of a tensor of known sizes whose elements lie in order."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * (shape[dim + 1] or 0)
    return strides
