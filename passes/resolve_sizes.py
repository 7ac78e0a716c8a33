"""`scaled-resolve-sizes`."""

from collections.abc import Iterator, Mapping
from math import prod

from torch_mlir import ir

from steelyard.ir.functions import functions_of
from steelyard.ir.kernel_calls import KernelCall, callee_of
from steelyard.ir.native_steps import VIEWS, Size, result_sizes, view_numbers
from steelyard.ir.torch_ops import PYTHON, constant_int, defining_op, dim_of, info_of, int_constant, op_name, size_of
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.declared import declared_calls

_SIZE, _MULTIPLY = "torch.aten.size.int", f"{PYTHON}operator.mul"

_Dim = tuple[ir.Value, int]
"""A dim of a tensor."""
_Found = int | ir.Value | _Dim
"""A size: a number, a number that is known at run time, or the size of a dim."""


@register_pass
def resolve_sizes(module: ir.Operation) -> None:
    """Take sizes from where they are known first, rather than from what kernels made.

    Takes calls of declared kernels, views, and sizes of their results (`torch.aten.size.int`). Leaves a number in the
    place of each size that follows from what kernels and views are given: a constant, a number of the function's, the
    size of an argument, or a product of those. So torch need not wait for a kernel to tell it a size, and no tape ends
    there. A size that follows from nothing stays, such as that of what an op of torch's made.
    """
    calls = declared_calls(module)
    for function in functions_of(module):
        ops = [op.operation for op in function.regions[0].blocks[0].operations]
        for op in ops:
            own = _dim_of(op)
            if own is not None:
                _resolve(op, own, calls)


def _dim_of(op: ir.Operation) -> _Dim | None:
    """The dim that an op tells the size of; None if it does something else, or the dim is known only at run time."""
    if op_name(op) != _SIZE:
        return None
    info = info_of(op.operands[0])
    dim = None if info is None else dim_of(constant_int(op.operands[1]), len(info.shape))
    return None if dim is None else (op.operands[0], dim)


def _resolve(op: ir.Operation, own: _Dim, calls: Mapping[str, KernelCall]) -> None:
    """Put what a size follows from in its place."""
    found = _size(own, calls)
    if found == own:
        return
    with ir.InsertionPoint(op), op.location:
        op.result.replace_all_uses_with(_value_of(found))
    op.erase()


def _value_of(found: _Found) -> ir.Value:
    """The number that a size is, made at the current place."""
    if isinstance(found, int):
        return int_constant(found)
    if not isinstance(found, tuple):
        return found
    # Where its tensor is made, which need not live longer for it.
    with _behind(found[0]):
        return size_of(*found)


def _behind(value: ir.Value) -> ir.InsertionPoint:
    """The place from which on there is a value."""
    op = defining_op(value)
    if op is None:
        return ir.InsertionPoint.at_block_begin(ir.BlockArgument(value).owner)
    return ir.InsertionPoint.after(op)


def _size(own: _Dim, calls: Mapping[str, KernelCall]) -> _Found:
    """What the size of a dim follows from; the dim itself if from nothing."""
    value, dim = own
    info, op = info_of(value), defining_op(value)
    assert info is not None
    known = info.shape[dim]
    if known is not None:
        return known
    if op is None:
        return own
    call = calls.get(callee_of(op) or "")
    found = _made_size(op, ir.OpResult(value).result_number, dim, call) if call else _viewed_size(op, dim, calls)
    return own if found is None else _size(found, calls) if isinstance(found, tuple) else found


def _made_size(op: ir.Operation, number: int, dim: int, call: KernelCall) -> _Found | None:
    """A size of what a kernel makes, or writes."""
    if call.written is not None:
        return op.operands[call.written], dim
    # Tapes are the CPU's, and so are the sizes of their kernels.
    sizes = result_sizes(call) if call.device == "cpu" else None
    if sizes is None:
        return None
    size: Size = sizes[number][dim]
    match size.kind:
        case "constant":
            return size.value
        case "number":
            return op.operands[size.value]
        case "dim":
            return op.operands[size.value], size.detail
        case "rows" if size.detail == size.factor == 1:
            # More than one dim may be rows.
            info = info_of(op.operands[size.value])
            return (op.operands[size.value], 0) if info is not None and len(info.shape) == 2 else None
        case _:
            return None


def _viewed_size(op: ir.Operation, dim: int, calls: Mapping[str, KernelCall]) -> _Found | None:
    """A size of a view."""
    view, info = VIEWS.get(op_name(op)), info_of(op.operands[0]) if list(op.operands) else None
    if view is None or info is None:
        return None
    source, rank = op.operands[0], len(info.shape)
    if view == "same":
        return source, dim
    if view == "reshape":
        return _reshaped_size(op, dim, calls)
    numbers = view_numbers(op)
    if view == "expand":
        number = numbers[dim]
        return (source, dim - len(numbers) + rank) if number == -1 else number
    if not rank and view != "unsqueeze":
        return None
    constants = [number for number in numbers if isinstance(number, int)]
    if view == "permute":
        return source, constants[dim] % rank
    if view == "transpose":
        first, second = (number % rank for number in constants)
        return source, {first: second, second: first}.get(dim, dim)
    if not isinstance(numbers[0], int):
        return None
    at = numbers[0] % (rank + 1 if view == "unsqueeze" else rank)
    if view == "slice":
        return None if dim == at else (source, dim)
    if view == "unsqueeze":
        return source, dim - (dim > at)
    if view == "select":
        return source, dim + (dim >= at)
    # Squeezed: the dim is left out if its size is 1.
    return (source, dim + (dim >= at)) if info.shape[at] == 1 else None


def _reshaped_size(op: ir.Operation, dim: int, calls: Mapping[str, KernelCall]) -> _Found | None:
    """A size that a reshape is told; of -1, what the others leave of the elements."""
    numbers = view_numbers(op)
    if numbers[dim] != -1:
        return numbers[dim]
    source = op.operands[0]
    info = info_of(source)
    assert info is not None
    elements = [_size((source, i), calls) for i in range(len(info.shape))]
    left = _quotient(elements, [number for number in numbers if number != -1])
    if left is None:
        factors = [factor for size in elements for factor in _factors(size, calls)]
        given = [factor for number in numbers if number != -1 for factor in _factors(number, calls)]
        left = _quotient(factors, given)
    if left is None:
        return None
    if len(left) == 1:
        return left[0]
    with ir.InsertionPoint(op), op.location:
        made, *others = map(_value_of, left)
        for other in others:
            made = _product(made, other)
    return made


def _quotient(elements: list[_Found], others: list[_Found]) -> list[_Found] | None:
    """What is left of a product of sizes that is divided by others; None if it cannot be divided."""
    left: list[_Found] = [size for size in elements if not isinstance(size, int)]
    for other in others:
        if isinstance(other, int):
            continue
        if other not in left:
            return None
        left.remove(other)
    count = prod(size for size in elements if isinstance(size, int))
    divisor = prod(size for size in others if isinstance(size, int))
    if divisor == 0 or count % divisor:
        return None
    return [*left, count // divisor] if count != divisor or not left else left


def _factors(size: _Found, calls: Mapping[str, KernelCall]) -> Iterator[_Found]:
    """The sizes that a size is the product of."""
    op = defining_op(size) if isinstance(size, ir.Value) else None
    if op is None:
        yield size
    elif op_name(op) == _MULTIPLY:
        for operand in op.operands:
            known = constant_int(operand)
            yield from _factors(operand, calls) if known is None else [known]
    elif (own := _dim_of(op)) is not None:
        yield _size(own, calls)
    else:
        yield size


def _product(left: ir.Value, right: ir.Value) -> ir.Value:
    name = {"name": ir.StringAttr.get(_MULTIPLY)}
    return ir.Operation.create("torch.operator", [ir.Type.parse("!torch.int")], [left, right], name).result
