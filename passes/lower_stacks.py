"""`scaled-lower-stacks`."""

from torch_mlir import ir

from steelyard.ir.functions import functions_of
from steelyard.ir.torch_ops import constant_int, defining_op, info_of, int_constant, op_name
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.targets import read_target

_STACK, _LIST = "torch.aten.stack", "torch.prim.ListConstruct"


@register_pass
def lower_stacks(module: ir.Operation, *, target: str) -> None:
    """Put stacked tensors one after the other along a dim that a view gives them.

    Takes `torch.aten.stack` along a constant dim, such as that of the halves that rotary embeddings interleave. Leaves
    a `torch.aten.cat` of a `torch.aten.unsqueeze` of each tensor, which fuse-elementwise and lower-concatenation make
    native steps. On other targets than the CPU nothing changes.
    """
    if read_target(module, target) is not None:
        return
    for function in functions_of(module):
        for op in [op.operation for op in function.regions[0].blocks[0].operations]:
            if op_name(op) == _STACK:
                _lower(op)


def _lower(op: ir.Operation) -> None:
    listed, info, number = defining_op(op.operands[0]), info_of(op.results[0]), constant_int(op.operands[1])
    if listed is None or listed.name != _LIST or info is None or number is None:
        return
    rank = len(info.shape)
    if not -rank <= number < rank:
        return
    at = number % rank
    part = info.with_((*info.shape[:at], 1, *info.shape[at + 1 :])).type()
    with ir.InsertionPoint(op), op.location:
        dim = int_constant(at)
        parts = [ir.Operation.create("torch.aten.unsqueeze", [part], [one, dim]).result for one in listed.operands]
        parts_list = ir.Operation.create(_LIST, [listed.result.type], parts).result
        made = ir.Operation.create("torch.aten.cat", [op.results[0].type], [parts_list, dim]).result
    op.results[0].replace_all_uses_with(made)
    op.erase()
    if not list(listed.result.uses):
        listed.erase()
