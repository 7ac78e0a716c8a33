"""`scaled-lower-splits`."""

from itertools import accumulate

from torch_mlir import ir

from steelyard.ir.functions import functions_of
from steelyard.ir.torch_ops import constant_int, constant_ints, info_of, int_constant, op_name
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.targets import read_target

_EQUAL, _GIVEN = "torch.aten.split.Tensor", "torch.aten.split_with_sizes"
_UNPACK = "torch.prim.ListUnpack"
_LARGEST = 2**63 - 1


@register_pass
def lower_splits(module: ir.Operation, *, target: str) -> None:
    """Take the parts of a tensor one by one, as views that are steps of a tape.

    Takes `torch.aten.split.Tensor` and `torch.aten.split_with_sizes` by constants, whose list is unpacked at once, such
    as queries, keys and values of one projection. Leaves a `torch.aten.slice.Tensor` for each part. On other targets
    than the CPU nothing changes.
    """
    if read_target(module, target) is not None:
        return
    for function in functions_of(module):
        for op in [op.operation for op in function.regions[0].blocks[0].operations]:
            if op_name(op) in (_EQUAL, _GIVEN):
                _lower(op)


def _lower(op: ir.Operation) -> None:
    readers = [use.owner.operation for use in op.results[0].uses]
    if len(readers) != 1 or op_name(readers[0]) != _UNPACK:
        return
    unpack = readers[0]
    sizes, dim = _sizes(op, len(unpack.results)), constant_int(op.operands[2])
    if sizes is None or dim is None or not _fits(op, sizes, dim):
        return
    ends = list(accumulate(sizes))
    with ir.InsertionPoint(op), op.location:
        step, own_dim = int_constant(1), int_constant(dim)
        for part, size, end in zip(unpack.results, sizes, ends, strict=True):
            operands = [op.operands[0], own_dim, int_constant(end - size), int_constant(end), step]
            made = ir.Operation.create("torch.aten.slice.Tensor", [part.type], operands)
            part.replace_all_uses_with(made.result)
    unpack.erase()
    op.erase()


def _sizes(op: ir.Operation, count: int) -> list[int] | None:
    """How long the parts are, the last perhaps shorter; None if that is not known."""
    if op_name(op) == _EQUAL:
        size = constant_int(op.operands[1])
        return None if size is None else [size] * count
    sizes = constant_ints(op.operands[1])
    return sizes if sizes is not None and len(sizes) == count else None


def _fits(op: ir.Operation, sizes: list[int], dim: int) -> bool:
    """Whether a dim has parts that are so long; equal ones may end after it."""
    info = info_of(op.operands[0])
    if info is None or not -len(info.shape) <= dim < len(info.shape) or min(sizes, default=0) < 0:
        return False
    known = info.shape[dim]
    extent = _LARGEST if known is None else known
    begun = sizes[:-1] if op_name(op) == _EQUAL else sizes
    return sum(begun) <= extent and sum(sizes) <= _LARGEST
