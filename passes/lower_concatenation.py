"""`scaled-lower-concatenation`."""

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.formats.dtypes import ITEM_SIZES
from steelyard.ir.kernel_calls import ConcatenateCall, Declarations, Slot
from steelyard.ir.torch_ops import constant_int, defining_op, info_of, op_name, walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.targets import read_target

_CAT = "torch.aten.cat"
_MOST_DIMS, _MOST_PARTS = 8, 16


@register_pass
def lower_concatenation(module: ir.Operation, *, target: str) -> None:
    """Turn what is left of torch's `cat` into calls of the CPU's own kernel.

    Takes `torch.aten.cat` of tensors of one dtype and rank, whose sizes may be known only at run time: what
    fuse-elementwise, which comes before, has no program for, such as a KV cache that grows by a token. Leaves a call of
    a declared kernel `concatenate`, so that kernels before and after it run on one tape. On other targets than the CPU
    nothing changes.
    """
    if read_target(module, target) is not None:
        return
    declarations = Declarations(module)
    for op in walk_ops(module):
        call = _call(op)
        if call is None:
            continue
        listed = defining_op(op.operands[0])
        assert listed is not None
        with ir.InsertionPoint(op), op.location:
            (made,) = declarations.call(call, list(listed.operands))
        op.results[0].replace_all_uses_with(made)
        op.erase()
        if not list(listed.result.uses):
            listed.erase()


def _call(op: ir.Operation) -> ConcatenateCall | None:
    """The call that an op becomes; None where the kernel does not do what it does."""
    if op_name(op) != _CAT:
        return None
    listed, dim, info = defining_op(op.operands[0]), constant_int(op.operands[1]), info_of(op.results[0])
    if listed is None or listed.name != "torch.prim.ListConstruct" or dim is None or info is None:
        return None
    rank = len(info.shape)
    fits = 0 < rank <= _MOST_DIMS and 0 < len(listed.operands) <= _MOST_PARTS and info.dtype in ITEM_SIZES
    if not fits or not -rank <= dim < rank or info.namespace != "torch":
        return None
    call = ConcatenateCall(
        operands=tuple(Slot(f"part{index}", value.type) for index, value in enumerate(listed.operands)),
        results=(Slot("result", op.results[0].type),),
        device="cpu",
        has_destinations=True,
        dim=dim % rank,
    )
    try:
        call.check()
    except ConstraintError:
        return None
    return call
