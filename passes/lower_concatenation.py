"""`scaled-lower-concatenation`."""

from collections.abc import Container

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.formats.dtypes import ITEM_SIZES
from steelyard.ir.functions import functions_of
from steelyard.ir.kernel_calls import ConcatenateCall, Declarations, Slot, callee_of
from steelyard.ir.torch_ops import constant_int, defining_op, info_of, op_name, writes_in_place
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.angles import angles_of_inputs
from steelyard.passes.support.declared import declared_calls
from steelyard.passes.support.targets import read_target

_CAT, _CLONE, _LIST = "torch.aten.cat", "torch.aten.clone", "torch.prim.ListConstruct"
_MOST_DIMS, _MOST_PARTS = 8, 16


@register_pass
def lower_concatenation(module: ir.Operation, *, target: str) -> None:
    """Turn what is left of torch's `cat` into calls of the CPU's own kernel.

    Takes `torch.aten.cat` of tensors of one dtype and rank, whose sizes may be known only at run time: what
    fuse-elementwise, which comes before, has no program for, such as a KV cache that grows by a token. Empty tensors of
    one dim, which torch leaves out, may be among them: the first keys of a cache are appended to one. Leaves a call of
    a declared kernel `concatenate`, so that kernels before and after it run on one tape, or the only part itself where
    kernels alone read it. What fuse-elementwise leaves to torch for cosines and sines of positions stays torch's. On
    other targets than the CPU nothing changes.
    """
    if read_target(module, target) is not None:
        return
    declarations, kernels = Declarations(module), declared_calls(module)
    for function in functions_of(module):
        ops = [op.operation for op in function.regions[0].blocks[0].operations]
        may_share, angles = not any(writes_in_place(op) for op in ops), angles_of_inputs(function)
        for op in ops:
            parts = _parts(op)
            if not parts or op.results[0] in angles:
                continue
            whole = op.results[0]
            if may_share and len(parts) == 1 and parts[0].type == whole.type and _is_only_read(whole, kernels.keys()):
                _replace(op, parts[0])
            elif (call := _call(op, parts)) is not None:
                with ir.InsertionPoint(op), op.location:
                    (made,) = declarations.call(call, parts)
                _replace(op, made)


def _parts(op: ir.Operation) -> list[ir.Value]:
    """The tensors that an op puts one after the other; none of an op that does something else."""
    if op_name(op) != _CAT:
        return []
    listed, info = defining_op(op.operands[0]), info_of(op.results[0])
    if listed is None or listed.name != _LIST or info is None or constant_int(op.operands[1]) is None:
        return []
    return [value for value in listed.operands if len(info.shape) == 1 or not _is_nothing(value, info.dtype)]


def _is_nothing(value: ir.Value, dtype: str) -> bool:
    info = info_of(value)
    return info is not None and info.shape == (0,) and info.dtype == dtype


def _is_only_read(value: ir.Value, kernels: Container[str | None]) -> bool:
    """Whether kernels, or concatenations, are all that reads a value: none of them shows it to anyone."""
    readers = [use.owner.operation for use in value.uses]
    readers += [use.owner.operation for reader in readers if reader.name == _LIST for use in reader.result.uses]
    return all(reader.name == _LIST or op_name(reader) == _CAT or callee_of(reader) in kernels for reader in readers)


def _call(op: ir.Operation, parts: list[ir.Value]) -> ConcatenateCall | None:
    """The call that an op becomes; None where the kernel does not do what it does."""
    dim, info = constant_int(op.operands[1]), info_of(op.results[0])
    assert dim is not None
    assert info is not None
    rank = len(info.shape)
    fits = 0 < rank <= _MOST_DIMS and len(parts) <= _MOST_PARTS and info.dtype in ITEM_SIZES
    if not fits or not -rank <= dim < rank or info.namespace != "torch":
        return None
    call = ConcatenateCall(
        operands=tuple(Slot(f"part{index}", value.type) for index, value in enumerate(parts)),
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


def _replace(op: ir.Operation, value: ir.Value) -> None:
    """Put a value in the place of a concatenation, and erase what nothing else reads of it."""
    listed = defining_op(op.operands[0])
    assert listed is not None
    op.results[0].replace_all_uses_with(value)
    op.erase()
    if list(listed.result.uses):
        return
    copies = {made for part in listed.operands if (made := defining_op(part)) is not None and op_name(made) == _CLONE}
    listed.erase()
    for copy in copies:
        if not list(copy.result.uses):
            copy.erase()
