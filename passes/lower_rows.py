"""`scaled-lower-rows`."""

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.ir.functions import has_backward
from steelyard.ir.kernel_calls import Declarations, KernelCall, NormCall, RowsCall, Slot
from steelyard.ir.torch_ops import constant_bool, constant_int, info_of, op_name, walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.producers import Produced, is_over_rows, match_layer_norm, match_rms_norm
from steelyard.passes.support.targets import read_target

_REDUCTIONS = {"torch.aten.sum.dim_IntList": "sum", "torch.aten.mean.dim": "mean"}
_NORMS = {"torch.aten.native_layer_norm": match_layer_norm, "torch.aten.mul.Tensor": match_rms_norm}


@register_pass
def lower_rows(module: ir.Operation, *, target: str) -> None:
    """Turn norms, softmax, sums and means over the last dim into calls of the CPU's own kernels.

    Takes torch's ops: layer norms, the products that models spell RMS norms by, `_softmax`, and sums and means of the
    last dim, of f32, bf16 or f16. Leaves calls of declared kernels `norm` and `rows`, so that kernels before and after
    them run on one tape. Norms that are quantized at once were fused into that before. Nothing changes on other targets
    than the CPU, and in modules with a backward: see fuse-elementwise, which comes after.
    """
    if read_target(module, target) is not None or has_backward(module):
        return
    declarations = Declarations(module)
    norms = [found for op in walk_ops(module) if op_name(op) in _NORMS and (found := _NORMS[op_name(op)](op))]
    for norm in norms:
        _lower_norm(norm, declarations)
    for op in walk_ops(module):
        function = _REDUCTIONS.get(op_name(op))
        if function is not None and _reduces_rows(op):
            _replace([op], RowsCall, ["source"], [op.operands[0]], {"function": function}, declarations)
        elif op_name(op) == "torch.aten._softmax" and _is_of_rows(op):
            _replace([op], RowsCall, ["source"], [op.operands[0]], {"function": "softmax"}, declarations)


def _lower_norm(found: Produced, declarations: Declarations) -> None:
    settings = {"kind": found.producer, "epsilon": found.epsilon}
    values = [found.source, *found.vectors.values()]
    _replace(found.ops, NormCall, ["source", *found.vectors], values, settings, declarations)


def _reduces_rows(op: ir.Operation) -> bool:
    """Whether an op reduces the last dim, to a dtype that kernels round to."""
    return len(op.operands) == 4 and is_over_rows(op) and constant_bool(op.operands[2]) is not None


def _is_of_rows(op: ir.Operation) -> bool:
    info, dim = info_of(op.operands[0]), constant_int(op.operands[1])
    return info is not None and dim in (-1, len(info.shape) - 1)


def _replace(
    ops: Sequence[ir.Operation],
    kind: type[KernelCall],
    names: Sequence[str],
    operands: Sequence[ir.Value],
    settings: dict[str, Any],
    declarations: Declarations,
) -> None:
    """Call a kernel in place of ops, the last of which comes first; nothing changes where it would break a rule."""
    op = ops[0]
    info = info_of(op.results[0])
    if info is None or info.namespace != "torch":
        return
    slots = [Slot(name, value.type) for name, value in zip(names, operands, strict=True)]
    result = Slot("result", op.results[0].type)
    call = kind(operands=tuple(slots), results=(result,), device="cpu", has_destinations=True, **settings)
    try:
        call.check()
    except ConstraintError:
        return
    with ir.InsertionPoint(op), op.location:
        (made,) = declarations.call(call, list(operands))
    op.results[0].replace_all_uses_with(made)
    for one in ops:
        one.erase()
