"""From a value to the loops that compute it: what is fused into it becomes steps, what is not is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_mlir import ir

from steelyard.formats.elementwise import (
    COPIED_TYPES,
    OUT,
    VALUE_TYPES,
    Access,
    Compute,
    Index,
    Load,
    Loop,
    Operand,
    Program,
    Size,
    Step,
    Store,
)
from steelyard.ir.attributes import PARAMETER
from steelyard.ir.functions import argument_name
from steelyard.ir.torch_ops import constant_int, defining_op, dim_of, info_of, op_name
from steelyard.passes.support.element_places import (
    NotFusedError,
    Place,
    RefineError,
    base_of,
    broadcast,
    moved,
    place_in_source,
    slice_start,
    view_source,
)
from steelyard.passes.support.element_steps import can_compute, compute

CAT, SELECT_BACKWARD, SLICE_BACKWARD = (f"torch.aten.{name}" for name in ("cat", "select_backward", "slice_backward"))
_MOST_LOOPS = 16


class DivideError(Exception):
    """A dim of a loop must be two loops, the second from this element on."""

    def __init__(self, dim: int, at: int):
        self.dim, self.at = dim, at


@dataclass(frozen=True)
class Fused:
    """The program that makes a value, and what it reads."""

    program: Program
    inputs: list[ir.Value]
    """in0, in1, ..."""
    sizes: list[tuple[ir.Value, int]]
    """The tensor and dim that each size of the result has which is not known."""


@dataclass(frozen=True)
class _Box:
    """Part of the elements of a result: sizes of a loop, and where its elements are in the result."""

    sizes: tuple[Size, ...]
    place: Place

    def divided(self, dim: int, at: int) -> tuple["_Box", "_Box"]:
        size = self.sizes[dim]
        if isinstance(size, str) or not 0 < at < size:
            raise NotFusedError
        first = replace(self, sizes=(*self.sizes[:dim], at, *self.sizes[dim + 1 :]))
        place = tuple(replace(one, offset=one.offset + at * dict(one.terms).get(dim, 0)) for one in self.place)
        return first, _Box((*self.sizes[:dim], size - at, *self.sizes[dim + 1 :]), place)

    def refined(self, dim: int, inner: int) -> "_Box":
        size = self.sizes[dim]
        assert isinstance(size, int)
        sizes = (*self.sizes[:dim], size // inner, inner, *self.sizes[dim + 1 :])
        return _Box(sizes, tuple(_refined(index, dim, inner) for index in self.place))


def _refined(index: Index, dim: int, inner: int) -> Index:
    terms: list[tuple[int, int]] = []
    for own, factor in index.terms:
        if own == dim:
            terms += [(dim, factor * inner), (dim + 1, factor)]
        else:
            terms.append((own + 1 if own > dim else own, factor))
    return replace(index, terms=tuple(terms))


def is_element_op(op: ir.Operation) -> bool:
    """Whether an op becomes part of a program, by its types and its constants."""
    name = op_name(op)
    if name not in (CAT, SELECT_BACKWARD, SLICE_BACKWARD):
        return can_compute(op)
    info = info_of(op.result)
    if info is None or info.dtype not in COPIED_TYPES:
        return False
    if name == CAT:
        values = pieces(op)
        return constant_int(op.operands[1]) is not None and all(_is_like(value, info.dtype) for value in values)
    numbers = [constant_int(operand) for operand in list(op.operands)[2:]]
    return info.dtype in VALUE_TYPES and None not in numbers and (name == SELECT_BACKWARD or numbers[-1] == 1)


def _is_like(value: ir.Value, dtype: str) -> bool:
    info = info_of(value)
    return info is not None and info.dtype == dtype


def pieces(cat: ir.Operation) -> list[ir.Value]:
    """What a cat puts one after the other."""
    made = defining_op(cat.operands[0])
    return list(made.operands) if made is not None and made.name == "torch.prim.ListConstruct" else []


def element_operands(op: ir.Operation) -> list[ir.Value]:
    """The tensors that an op of a program reads."""
    return pieces(op) if op_name(op) == CAT else [one for one in op.operands if info_of(one) is not None]


def fused(root: ir.Value, inlined: set[ir.Value], *, through_views: bool = True) -> Fused:
    """The program of a value; raises `NotFusedError` where there is none. What is not inlined is loaded.

    Views of it are loaded from what they show; or as they are, which torch has to make then, if not `through_views`.
    """
    info = info_of(root)
    assert info is not None
    unknown = iter(range(len(info.shape)))
    sizes = tuple(f"s{next(unknown)}" if size is None else size for size in info.shape)
    place = tuple(Index(((dim, 1),)) for dim in range(len(sizes)))
    inputs: list[ir.Value] = []
    boxes = [_Box(sizes, place)]
    loops: list[Loop] = []
    while boxes:
        box = boxes.pop(0)
        try:
            loops.append(_Evaluation(box.sizes, inputs, root, inlined, through_views).loop(box.place))
        except DivideError as divide:
            boxes[:0] = box.divided(divide.dim, divide.at)
        except RefineError as refine:
            boxes.insert(0, box.refined(refine.dim, refine.inner))
        if len(boxes) + len(loops) > _MOST_LOOPS:
            raise NotFusedError
    return _numbered(loops, inputs, sizes)


def _numbered(loops: Sequence[Loop], inputs: Sequence[ir.Value], sizes: Sequence[Size]) -> Fused:
    """A program whose inputs are those that it reads, in their order."""
    used = dict.fromkeys(access.tensor for loop in loops for access in loop.accesses if access.tensor != OUT)
    names = {name: f"in{index}" for index, name in enumerate(used)} | {OUT: OUT}
    made = tuple(replace(loop, steps=tuple(_renamed(step, names) for step in loop.steps)) for loop in loops)
    read = {name: inputs[int(name.removeprefix("in"))] for name in used}
    accesses = [access for loop in loops for access in loop.accesses if access.tensor != OUT]
    found = [_size_source(dim, accesses, read) for dim, size in enumerate(sizes) if isinstance(size, str)]
    return Fused(Program(made), list(read.values()), found)


def _renamed(step: Step, names: dict[str, str]) -> Step:
    if isinstance(step, Compute):
        return step
    return replace(step, access=replace(step.access, tensor=names[step.access.tensor]))


def _size_source(dim: int, accesses: Sequence[Access], read: dict[str, ir.Value]) -> tuple[ir.Value, int]:
    """A tensor and its dim that a dim of the loop walks all of."""
    for access in accesses:
        for own, index in enumerate(access.indices):
            info = info_of(read[access.tensor])
            assert info is not None
            if index == Index(((dim, 1),)) and info.shape[own] is None:
                return read[access.tensor], own
    raise NotFusedError


def _is_weight(value: ir.Value) -> bool:
    info = info_of(value)
    is_matrix = info is not None and len(info.shape) > 1
    return is_matrix and isinstance(value, ir.BlockArgument) and argument_name(value, PARAMETER) is not None


class _Evaluation:
    """The steps of one loop. A value at the same place is computed once."""

    def __init__(
        self,
        sizes: Sequence[Size],
        inputs: list[ir.Value],
        root: ir.Value,
        inlined: set[ir.Value],
        through_views: bool,
    ):
        self._through_views = through_views
        self._sizes = sizes
        self._inputs = inputs
        self._root = root
        self._inlined = inlined
        self._steps: list[Step] = []
        self._known: dict[tuple[ir.Value, Place], tuple[Operand, str]] = {}
        self._count = 0

    def loop(self, place: Place) -> Loop:
        info = info_of(self._root)
        assert info is not None
        value, dtype = self._read(self._root, place)
        if isinstance(value, int) and dtype != info.dtype:
            value = self._emit("cast", value, dtype=info.dtype)
        self._steps.append(Store(value, Access(OUT, tuple(map(self._walked, place)))))
        return Loop(tuple(self._sizes), tuple(self._steps))

    def _walked(self, index: Index) -> Index:
        """An index without dims of the loop that have one element."""
        return replace(index, terms=tuple(term for term in index.terms if self._sizes[term[0]] != 1))

    def _read(self, value: ir.Value, place: Place) -> tuple[Operand, str]:
        place = tuple(map(self._walked, place))
        if (value, place) not in self._known:
            self._known[value, place] = self._evaluated(value, place)
        return self._known[value, place]

    def _evaluated(self, value: ir.Value, place: Place) -> tuple[Operand, str]:
        source = view_source(value) if self._through_views else None
        if source is not None:
            try:
                return self._read(source, place_in_source(value, place, self._sizes))
            except NotFusedError:
                if value == self._root:
                    raise
                return self._load(value, place)
        if value not in self._inlined:
            return self._load(value, place)
        op, info = defining_op(value), info_of(value)
        assert op is not None
        assert info is not None
        match op_name(op):
            case "torch.aten.cat":
                return self._piece(op, place)
            case "torch.aten.select_backward" | "torch.aten.slice_backward":
                return self._padded(op, place)
            case _:
                return compute(op, lambda one: self._operand(one, value, place), self._emit), info.dtype

    def _operand(self, operand: ir.Value, value: ir.Value, place: Place) -> tuple[Operand, str]:
        info, own = info_of(operand), info_of(value)
        if info is None or own is None:
            raise NotFusedError
        return self._read(operand, broadcast(place, own.shape, info.shape))

    def _load(self, value: ir.Value, place: Place) -> tuple[Operand, str]:
        info = info_of(value)
        # A weight may be a quantized tensor when the program runs: torch's ops decode it.
        if info is None or _is_weight(base_of(value)):
            raise NotFusedError
        if value not in self._inputs:
            self._inputs.append(value)
        self._steps.append(Load(self._count, Access(f"in{self._inputs.index(value)}", place)))
        self._count += 1
        return self._count - 1, info.dtype

    def _emit(self, operation: str, *operands: Operand, dtype: str) -> Operand:
        self._steps.append(Compute(self._count, operation, operands, dtype))
        self._count += 1
        return self._count - 1

    def _piece(self, cat: ir.Operation, place: Place) -> tuple[Operand, str]:
        dim = dim_of(constant_int(cat.operands[1]), len(place))
        if dim is None:
            raise NotFusedError
        begin = 0
        for piece in pieces(cat):
            info = info_of(piece)
            if info is None or len(info.shape) != len(place) or info.shape[dim] is None:
                raise NotFusedError
            end = begin + (info.shape[dim] or 0)
            if self._is_in(place[dim], begin, end):
                return self._read(piece, (*place[:dim], moved(place[dim], -begin), *place[dim + 1 :]))
            begin = end
        raise NotFusedError

    def _padded(self, op: ir.Operation, place: Place) -> tuple[Operand, str]:
        """A gradient of a part, with zeros around it."""
        info = info_of(op.result)
        assert info is not None
        dim = dim_of(constant_int(op.operands[2]), len(place))
        size = None if dim is None else info.shape[dim]
        if dim is None or size is None:
            raise NotFusedError
        start = slice_start(op.operands[3], size)
        if op_name(op) == SELECT_BACKWARD:
            inside = self._is_in(place[dim], start, start + 1)
            rest = (*place[:dim], *place[dim + 1 :])
        else:
            inside = self._is_in(place[dim], start, slice_start(op.operands[4], size))
            rest = (*place[:dim], moved(place[dim], -start), *place[dim + 1 :])
        return self._read(op.operands[0], rest) if inside else (0.0, info.dtype)

    def _is_in(self, index: Index, begin: int, end: int) -> bool:
        """Whether an index is between two; a loop in which it crosses one of them is divided."""
        largest = index.largest(self._sizes)
        if largest is None:
            raise NotFusedError
        if largest < begin or index.offset >= end:
            return False
        if begin <= index.offset and largest < end:
            return True
        if len(index.terms) != 1 or index.terms[0][1] != 1:
            raise NotFusedError
        at = begin if index.offset < begin else end
        raise DivideError(index.terms[0][0], at - index.offset)
