"""Where the elements of views are: an element of a view by its indices -> that of its source by its own."""

from collections.abc import Sequence
from math import prod

from torch_mlir import ir

from steelyard.dialect.types import Shape
from steelyard.formats.elementwise import Index, Size
from steelyard.ir.torch_ops import constant_int, constant_ints, defining_op, dim_of, info_of, op_name
from steelyard.ir.view_ops import RESHAPES, STATIC_CAST

Place = tuple[Index, ...]
"""The index of an element in each dim of a tensor."""
_ZERO = Index()
_SAME = ("torch.aten.detach", "torch.aten.alias", STATIC_CAST)
_PARTS = ("torch.aten.split.Tensor", "torch.aten.split_with_sizes", "torch.aten.chunk", "torch.aten.unbind.int")
_LAST = 2**62
"""The end of a slice is at most this where it has none."""


class NotFusedError(Exception):
    """Something is no part of an elementwise program: a reason of ours, never an error of the user's."""


class RefineError(Exception):
    """A dim of a loop must be two, the second of this size."""

    def __init__(self, dim: int, inner: int):
        self.dim, self.inner = dim, inner


def is_view(op: ir.Operation) -> bool:
    """Whether an op only shows elements of its operand in other places."""
    return op_name(op) in _VIEWS or (op.name == "torch.prim.ListUnpack" and _parted(op) is not None)


def view_source(value: ir.Value) -> ir.Value | None:
    """What a value is a view of; None where no view made it."""
    op = defining_op(value)
    if op is None or not is_view(op):
        return None
    parted = _parted(op) if op.name == "torch.prim.ListUnpack" else None
    return op.operands[0] if parted is None else parted.operands[0]


def base_of(value: ir.Value) -> ir.Value:
    """What a value is a view of, and of nothing in turn."""
    while (source := view_source(value)) is not None:
        value = source
    return value


def place_in_source(value: ir.Value, place: Place, sizes: Sequence[Size]) -> Place:
    """The place, in a view's source, of the element at a place of the view; `sizes` are those of the loop.

    Raises `NotFusedError` where it is no sum of dims, and `RefineError` where a dim of the loop is in the way.
    """
    op, source = defining_op(value), view_source(value)
    assert op is not None
    assert source is not None
    shape, own = _shape(source), _shape(value)
    if op.name == "torch.prim.ListUnpack":
        return _in_part(op, ir.OpResult(value).result_number, place, shape)
    name = op_name(op)
    if name in RESHAPES:
        return _in_reshaped(shape, own, place, sizes)
    return _VIEWS[name](op, shape, own, place)


def _shape(value: ir.Value) -> Shape:
    info = info_of(value)
    if info is None:
        raise NotFusedError
    return info.shape


def _integer(value: ir.Value) -> int:
    found = constant_int(value)
    if found is None:
        raise NotFusedError
    return found


def _dim(value: ir.Value, rank: int) -> int:
    dim = dim_of(constant_int(value), rank)
    if dim is None:
        raise NotFusedError
    return dim


def moved(index: Index, offset: int, step: int = 1) -> Index:
    """An index times a step, and then moved."""
    return Index(tuple((dim, factor * step) for dim, factor in index.terms), index.offset * step + offset)


def _same(_op: ir.Operation, _shape: Shape, _own: Shape, place: Place) -> Place:
    return place


def _transposed(op: ir.Operation, shape: Shape, _own: Shape, place: Place) -> Place:
    rank = len(shape)
    if op.name != "torch.aten.transpose.int":
        return place[::-1]
    first, second = (_dim(operand, rank) for operand in list(op.operands)[1:])
    found = list(place)
    found[first], found[second] = found[second], found[first]
    return tuple(found)


def _permuted(op: ir.Operation, shape: Shape, _own: Shape, place: Place) -> Place:
    order = constant_ints(op.operands[1])
    if order is None:
        raise NotFusedError
    found = [_ZERO] * len(shape)
    for index, dim in zip(place, order, strict=True):
        found[dim] = index
    return tuple(found)


def _expanded(_op: ir.Operation, shape: Shape, own: Shape, place: Place) -> Place:
    return broadcast(place, own, shape)


def broadcast(place: Place, shape: Shape, operand: Shape) -> Place:
    """The place of an operand's element that is broadcast to a place of a shape."""
    added = len(shape) - len(operand)
    pairs = zip(place[added:], operand, strict=True)
    return tuple(_ZERO if size == 1 else index for index, size in pairs)


def _unsqueezed(op: ir.Operation, _shape: Shape, own: Shape, place: Place) -> Place:
    dim = _dim(op.operands[1], len(own))
    return place[:dim] + place[dim + 1 :]


def _squeezed(_op: ir.Operation, shape: Shape, own: Shape, place: Place) -> Place:
    rest = iter(place)
    if len(shape) == len(own):
        return place
    dropped = _dropped(_op, shape)
    return tuple(_ZERO if dim in dropped else next(rest) for dim in range(len(shape)))


def _dropped(op: ir.Operation, shape: Shape) -> set[int]:
    if len(op.operands) == 1:
        return {dim for dim, size in enumerate(shape) if size == 1}
    return {_dim(op.operands[1], len(shape))}


def _selected(op: ir.Operation, shape: Shape, _own: Shape, place: Place) -> Place:
    dim, index = _dim(op.operands[1], len(shape)), _integer(op.operands[2])
    size = shape[dim]
    if index < 0 and size is None:
        raise NotFusedError
    return (*place[:dim], Index((), index + (size or 0) if index < 0 else index), *place[dim:])


def _sliced(op: ir.Operation, shape: Shape, _own: Shape, place: Place) -> Place:
    dim, step = _dim(op.operands[1], len(shape)), _integer(op.operands[4])
    start = slice_start(op.operands[2], shape[dim])
    return (*place[:dim], moved(place[dim], start, step), *place[dim + 1 :])


def slice_start(value: ir.Value, size: int | None) -> int:
    """The first index of a slice of a dim."""
    op = defining_op(value)
    if op is not None and op.name == "torch.constant.none":
        return 0
    start = _integer(value)
    if start < 0 and size is None:
        raise NotFusedError
    return max(0, start + (size or 0)) if start < 0 else min(start, _LAST if size is None else size)


_VIEWS = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(("torch.aten.t", "torch.aten.numpy_T", "torch.aten.transpose.int"), _transposed),
    **dict.fromkeys(RESHAPES, _same),
    "torch.aten.permute": _permuted,
    "torch.aten.expand": _expanded,
    "torch.aten.unsqueeze": _unsqueezed,
    **dict.fromkeys(("torch.aten.squeeze", "torch.aten.squeeze.dim"), _squeezed),
    "torch.aten.select.int": _selected,
    "torch.aten.slice.Tensor": _sliced,
}


def _parted(unpack: ir.Operation) -> ir.Operation | None:
    """The op that cuts a tensor into the parts that are unpacked."""
    op = defining_op(unpack.operands[0])
    return op if op is not None and op_name(op) in _PARTS else None


def _in_part(unpack: ir.Operation, number: int, place: Place, shape: Shape) -> Place:
    op = _parted(unpack)
    assert op is not None
    if op.name == "torch.aten.unbind.int":
        dim = _dim(op.operands[1], len(shape))
        return (*place[:dim], Index((), number), *place[dim:])
    dim = _dim(op.operands[2], len(shape))
    lengths = [_shape(part)[dim] for part in list(unpack.results)[:number]]
    known = [length for length in lengths if length is not None]
    if len(known) != len(lengths):
        raise NotFusedError
    return (*place[:dim], moved(place[dim], sum(known)), *place[dim + 1 :])


def _in_reshaped(shape: Shape, own: Shape, place: Place, sizes: Sequence[Size]) -> Place:
    """Through a reshape: dims of the source and of the result in the fewest groups of equal size."""
    found: list[Index] = []
    for dims, own_dims in _groups(shape, own):
        held = [shape[dim] for dim in dims]
        indices = [place[dim] for dim in own_dims]
        if held == [own[dim] for dim in own_dims]:
            found += indices
            continue
        flat = _flat(indices, [own[dim] for dim in own_dims])
        found += _unflattened(flat, held, sizes)
    return tuple(found)


def _groups(shape: Shape, own: Shape) -> list[tuple[list[int], list[int]]]:
    """Dims of two shapes that hold the same elements. Sizes that are not known pair with each other."""
    groups: list[tuple[list[int], list[int]]] = []
    first, second = 0, 0
    while first < len(shape) or second < len(own):
        left, right = [first] if first < len(shape) else [], [second] if second < len(own) else []
        first, second = first + len(left), second + len(right)
        if left and right and shape[left[0]] is None and own[right[0]] is None:
            groups.append((left, right))
            continue
        while (product := _product(shape, left)) != (other := _product(own, right)):
            if product < other and first < len(shape):
                left.append(first)
                first += 1
            elif other < product and second < len(own):
                right.append(second)
                second += 1
            else:
                raise NotFusedError
        groups.append((left, right))
    return groups


def _product(shape: Shape, dims: Sequence[int]) -> int:
    known = [size for dim in dims if (size := shape[dim]) is not None]
    if len(known) != len(dims):
        raise NotFusedError
    return prod(known)


def _flat(indices: Sequence[Index], shape: Sequence[int | None]) -> Index:
    """The index of an element in dims as one."""
    terms: dict[int, int] = {}
    offset, stride = 0, 1
    for index, size in zip(reversed(indices), reversed(shape), strict=True):
        for dim, factor in index.terms:
            terms[dim] = terms.get(dim, 0) + factor * stride
        offset += index.offset * stride
        stride *= size or 0
    return Index(tuple(sorted(terms.items())), offset)


def _unflattened(flat: Index, shape: Sequence[int | None], sizes: Sequence[Size]) -> list[Index]:
    """The indices, in several dims, of an element whose index in them as one is given."""
    found: list[Index] = []
    for size in reversed(list(shape)[1:]):
        assert size is not None
        outer, inner = _divided(flat, size, sizes)
        found.insert(0, inner)
        flat = outer
    return [flat, *found] if shape else []


def _divided(index: Index, size: int, sizes: Sequence[Size]) -> tuple[Index, Index]:
    """An index divided by a size, and the rest."""
    if size == 1:
        return index, _ZERO
    whole = tuple((dim, factor // size) for dim, factor in index.terms if factor % size == 0)
    rest = Index(tuple((dim, factor) for dim, factor in index.terms if factor % size), index.offset % size)
    largest = rest.largest(sizes)
    if largest is None:
        raise NotFusedError
    if largest >= size:
        for dim, factor in rest.terms:
            length = sizes[dim]
            inner = size // factor
            if isinstance(length, int) and size % factor == 0 and length > inner > 1 and length % inner == 0:
                raise RefineError(dim, inner)
        raise NotFusedError
    return Index(whole, index.offset // size), rest
