"""`scaled-lower-rows`."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.ir.functions import has_backward
from steelyard.ir.kernel_calls import (
    ColumnsCall,
    Declarations,
    KernelCall,
    NormBackwardCall,
    NormCall,
    RowsCall,
    Slot,
)
from steelyard.ir.torch_ops import (
    constant_bool,
    constant_int,
    constant_ints,
    dim_of,
    info_of,
    is_none,
    op_name,
    walk_ops,
)
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.producers import Produced, is_over_rows, match_layer_norm, match_rms_norm
from steelyard.passes.support.targets import read_target

_REDUCTIONS = {"torch.aten.sum.dim_IntList": "sum", "torch.aten.mean.dim": "mean"}
_NORM, _NORM_BACKWARD = "torch.aten.native_layer_norm", "torch.aten.native_layer_norm_backward"


@register_pass
def lower_rows(module: ir.Operation, *, target: str) -> None:
    """Turn norms, softmax, sums and means over the last dim or the first ones into calls of the CPU's own kernels.

    Takes torch's ops: layer norms and their gradients, the products that models spell RMS norms by, `_softmax`, and
    sums and means of the last dim, or of the first ones as in gradients of biases, of f32, bf16 or f16. Leaves calls of
    declared kernels `norm`, `norm_backward`, `rows` and `columns`, so that kernels before and after them run on one
    tape. Norms that are quantized at once were fused into that before. On other targets than the CPU nothing changes.
    In modules with a backward, softmax and RMS norms stay torch's: a model may be cut into blocks, some of which torch
    runs, and must keep the bits of the whole. Sums and means are lowered there, too, since they have torch's bits, and
    so are layer norms, since no block that has one is left to torch.
    """
    if read_target(module, target) is not None:
        return
    declarations, in_training = Declarations(module), has_backward(module)
    products = [] if in_training else [op for op in walk_ops(module) if op_name(op) == "torch.aten.mul.Tensor"]
    for found in map(match_rms_norm, products):
        if found is not None:
            _lower_norm(found, declarations)
    for op in walk_ops(module):
        if op_name(op) in _REDUCTIONS:
            # The order of a sum of all there is depends on torch's threads.
            if not in_training or not _is_one_number(op):
                _lower_reduction(op, _REDUCTIONS[op_name(op)], declarations)
        elif op_name(op) == "torch.aten._softmax" and _is_of_rows(op) and not in_training:
            _replace([op], RowsCall, ["source"], [op.operands[0]], {"function": "softmax"}, declarations)
        elif op_name(op) == _NORM and (found := match_layer_norm(op)):
            _lower_norm(found, declarations)
        elif op_name(op) == _NORM_BACKWARD:
            _lower_norm_backward(op, declarations)


def _lower_norm(found: Produced, declarations: Declarations) -> None:
    settings = {"kind": found.producer, "epsilon": found.epsilon}
    values = [found.source, *found.vectors.values()]
    made = {"result": found.ops[0].results[0]}
    rest = list(found.ops[0].results)[1:]
    if any(list(result.uses) for result in rest):
        made |= dict(zip(("mean", "rstd"), rest, strict=True))
    _replace(found.ops, NormCall, ["source", *found.vectors], values, settings, declarations, made)


def _lower_norm_backward(op: ir.Operation, declarations: Declarations) -> None:
    grad, source, sizes, mean, rstd, weight, _, _ = op.operands
    extent = constant_ints(sizes)
    read = dict(zip(("grad_source", "grad_weight", "grad_bias"), op.results, strict=True))
    made = {name: value for name, value in read.items() if list(value.uses)}
    if extent is None or len(extent) != 1 or not made:
        return
    operands = {"grad": grad, "source": source, "mean": mean, "rstd": rstd}
    operands |= {} if is_none(weight) else {"weight": weight}
    _replace([op], NormBackwardCall, list(operands), list(operands.values()), {}, declarations, made)


def _lower_reduction(op: ir.Operation, function: str, declarations: Declarations) -> None:
    if len(op.operands) != 4 or constant_bool(op.operands[2]) is None:
        return
    if is_over_rows(op):
        _replace([op], RowsCall, ["source"], [op.operands[0]], {"function": function}, declarations)
    elif dims := _first_dims(op):
        settings = {"function": function, "dims": dims}
        _replace([op], ColumnsCall, ["source"], [op.operands[0]], settings, declarations)


def _is_one_number(op: ir.Operation) -> bool:
    info = info_of(op.results[0])
    return info is not None and all(size == 1 for size in info.shape)


def _first_dims(op: ir.Operation) -> int:
    """How many of the first dims an op reduces; 0 where these are not what it reduces."""
    info, listed = info_of(op.operands[0]), constant_ints(op.operands[1])
    if info is None or not listed:
        return 0
    found = [dim_of(number, len(info.shape)) for number in listed]
    dims = sorted(dim for dim in found if dim is not None)
    return len(dims) if dims == list(range(len(found))) and len(dims) < len(info.shape) else 0


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
    results: Mapping[str, ir.Value] | None = None,
) -> None:
    """Call a kernel in place of ops, the last of which comes first; nothing changes where it would break a rule.

    `results` are those of the first op that the call makes, if it makes more than one or has other names for them.
    """
    op = ops[0]
    results = results or {"result": op.results[0]}
    infos = [info_of(value) for value in results.values()]
    if any(info is None or info.namespace != "torch" for info in infos):
        return
    call = kind(
        operands=tuple(Slot(name, value.type) for name, value in zip(names, operands, strict=True)),
        results=tuple(Slot(name, value.type) for name, value in results.items()),
        device="cpu",
        has_destinations=True,
        **settings,
    )
    try:
        call.check()
    except ConstraintError:
        return
    with ir.InsertionPoint(op), op.location:
        made = declarations.call(call, list(operands))
    for value, new in zip(results.values(), made, strict=True):
        value.replace_all_uses_with(new)
    for one in ops:
        one.erase()
