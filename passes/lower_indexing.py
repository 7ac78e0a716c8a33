"""`scaled-lower-indexing`."""

from typing import Any

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.formats.dtypes import ITEM_SIZES
from steelyard.ir.functions import argument_attributes, functions_of
from steelyard.ir.kernel_calls import AddRowsCall, Declarations, KernelCall, LookupCall, Slot, WriteRowsCall
from steelyard.ir.stored import is_stored
from steelyard.ir.torch_ops import constant_bool, constant_int, dim_of, info_of, op_name
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.targets import read_target

_EMBEDDING = "torch.aten.embedding"
_EMBEDDING_BACKWARD = "torch.aten.embedding_dense_backward"
_COPY, _COPY_IN_PLACE = "torch.aten.index_copy", "torch.aten.index_copy_"
_MOST_DIMS = 8


@register_pass
def lower_indexing(module: ir.Operation, *, target: str) -> None:
    """Turn reads and writes of rows that are found by number into calls of the CPU's own kernels.

    Takes `torch.aten.embedding`, `torch.aten.embedding_dense_backward`, `torch.aten.index_copy` and
    `torch.aten.index_copy_`. Leaves calls of declared kernels `lookup` and `write_rows`, which move the same bytes, and
    `add_rows`, which has torch's bits, so that kernels before and after them run on one tape: a decoding step appends
    its tokens to a cache of fixed size there. A table that is a quantized parameter stays torch's, whose op decodes it,
    as do gradients that are scaled by how often an index comes. On other targets than the CPU nothing changes.
    """
    if read_target(module, target) is not None:
        return
    declarations = Declarations(module)
    for function in functions_of(module):
        block = function.regions[0].blocks[0]
        pairs = zip(block.arguments, argument_attributes(function), strict=True)
        stored: set[ir.Value] = {argument for argument, own in pairs if is_stored(own)}
        for op in [op.operation for op in block.operations]:
            found = _call(op, stored)
            if found is not None:
                _replace(op, *found, declarations)


def _call(op: ir.Operation, stored: set[ir.Value]) -> tuple[KernelCall, list[ir.Value]] | None:
    """The call that an op becomes, and its operands; None where no kernel does what it does."""
    name, operands = op_name(op), list(op.operands)
    if len(op.results) != 1 or not _is_plain(op.results[0]):
        return None
    settings: dict[str, Any] = {
        "results": (Slot("result", op.results[0].type),),
        "device": "cpu",
        "has_destinations": True,
    }
    if name == _EMBEDDING and operands[0] not in stored:
        return _checked(LookupCall, ("table", "indices"), operands[:2], settings)
    if name == _EMBEDDING_BACKWARD:
        padding = constant_int(operands[3])
        if padding is None or constant_bool(operands[4]) is not False:
            return None
        return _checked(AddRowsCall, ("rows", "indices"), operands[:2], settings | {"padding": padding})
    if name in (_COPY, _COPY_IN_PLACE):
        tensor, dim, *others = operands
        info = info_of(tensor)
        own_dim = None if info is None else dim_of(constant_int(dim), len(info.shape))
        if own_dim is None:
            return None
        settings |= {"dim": own_dim, "in_place": name == _COPY_IN_PLACE}
        return _checked(WriteRowsCall, ("target", "indices", "rows"), [tensor, *others], settings)
    return None


def _is_plain(value: ir.Value) -> bool:
    info = info_of(value)
    return info is not None and info.namespace == "torch" and info.dtype in ITEM_SIZES and len(info.shape) <= _MOST_DIMS


def _checked(
    kind: type[KernelCall], names: tuple[str, ...], operands: list[ir.Value], settings: dict[str, Any]
) -> tuple[KernelCall, list[ir.Value]] | None:
    slots = tuple(Slot(name, value.type) for name, value in zip(names, operands, strict=True))
    call = kind(operands=slots, **settings)
    try:
        call.check()
    except ConstraintError:
        return None
    return call, operands


def _replace(op: ir.Operation, call: KernelCall, operands: list[ir.Value], declarations: Declarations) -> None:
    with ir.InsertionPoint(op), op.location:
        (made,) = declarations.call(call, operands)
    op.results[0].replace_all_uses_with(made)
    op.erase()
