"""`scaled-select-kernels`."""

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedMatmulOp
from steelyard.dialect.matmul import MatmulOp
from steelyard.dialect.types import tensor_info
from steelyard.ir.attributes import DESTINATIONS, DEVICE
from steelyard.ir.kernel_calls import (
    AdvanceRngCall,
    AmaxCall,
    AttentionBackwardCall,
    AttentionCall,
    DequantizeCall,
    Device,
    EpilogueCall,
    GemmCall,
    GroupedGemmCall,
    KernelCall,
    PackCall,
    QuantizingCall,
    TransposeCall,
    UpdateScaleCall,
    declarations_of,
)
from steelyard.ir.torch_ops import none_constant, reshaped_as, transpose_last, walk_ops
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.passes.support.declared import read_declared
from steelyard.passes.support.targets import read_target
from steelyard.targets.gemm_paths import NATIVE

_DESTINATIONS: dict[Device, tuple[type[KernelCall], ...]] = {
    "cpu": (
        QuantizingCall,
        GemmCall,
        GroupedGemmCall,
        PackCall,
        TransposeCall,
        DequantizeCall,
        AttentionCall,
        AttentionBackwardCall,
        AmaxCall,
        UpdateScaleCall,
        AdvanceRngCall,
    ),
    "cuda": (QuantizingCall, GemmCall, GroupedGemmCall, DequantizeCall, EpilogueCall),
}
"""Operations whose kernels, on each kind of device, write their results where they are told."""


@register_pass
def select_kernels(module: ir.Operation, *, target: str) -> None:
    """Choose the kernel of a target for each call.

    Takes calls of declared kernels, `scaled.matmul` and `scaled.grouped_matmul`. Leaves declarations that say whose
    kernel runs them (`scaled.device`): the target's, `cpu` or `cuda`, or a user's own quantizer's, `custom`. They are
    marked `scaled.destinations` where the kernel writes its results into memory that it is given. A matmul, which
    stayed in high precision, becomes torch's own product.
    """
    chosen = read_target(module, target)
    for op in walk_ops(module):
        if isinstance(op.opview, MatmulOp | GroupedMatmulOp):
            _use_torch(op.opview)
    device: Device = "cpu" if chosen is None else "cuda"
    for declaration in declarations_of(module).values():
        _select(declaration, read_declared(declaration), device)


def _select(declaration: ir.Operation, call: KernelCall, device: Device) -> None:
    declaration.attributes[DEVICE] = ir.StringAttr.get("custom" if call.is_custom else device)
    if _writes_where_told(call, device):
        declaration.attributes[DESTINATIONS] = ir.UnitAttr.get()


def _writes_where_told(call: KernelCall, device: Device) -> bool:
    if call.is_custom or not isinstance(call, _DESTINATIONS[device]):
        return False
    # torch's own GEMMs, which native ones are, make their results themselves, and so do those of batches on a GPU.
    if isinstance(call, GemmCall):
        return call.path != NATIVE and (device == "cpu" or not call.batch_dims)
    if isinstance(call, GroupedGemmCall):
        return call.path != NATIVE
    if isinstance(call, DequantizeCall) and device == "cpu":
        # The transform runs along columns: a copy of rows is decoded as that of the transpose.
        return call.columnwise or not call.scheme.rht
    if isinstance(call, UpdateScaleCall):
        return call.algorithm != "custom"
    return call.result("new_amax") is None


def _use_torch(op: MatmulOp | GroupedMatmulOp) -> None:
    """A product in high precision, as torch spells it."""
    info = tensor_info(op.result.type)
    if info is None or info.namespace != "torch":
        fail(op, "stays in high precision, which only a program of torch's tensors can run")
    with ir.InsertionPoint(op), op.location:
        product = _grouped(op) if isinstance(op, GroupedMatmulOp) else _SPELLINGS[op.kind.value](op)
    op.result.replace_all_uses_with(product)
    op.operation.erase()


def _fprop(op: MatmulOp) -> ir.Value:
    if op.batch_dims.value:
        return _torch_op("torch.aten.matmul", [op.lhs, transpose_last(op.rhs)], op.result.type)
    bias = none_constant() if op.bias is None else op.bias
    return _torch_op("torch.aten.linear", [op.lhs, op.rhs, bias], op.result.type)


def _dgrad(op: MatmulOp) -> ir.Value:
    return _torch_op("torch.aten.matmul", [op.lhs, op.rhs], op.result.type)


def _wgrad(op: MatmulOp) -> ir.Value:
    lhs, rhs = (_flattened(value) if not op.batch_dims.value else value for value in (op.lhs, op.rhs))
    return _torch_op("torch.aten.matmul", [transpose_last(lhs), rhs], op.result.type)


def _grouped(op: GroupedMatmulOp) -> ir.Value:
    lhs, rhs, kind = op.lhs, op.rhs, op.kind.value
    operands = [transpose_last(lhs), rhs] if kind == "wgrad" else [lhs, transpose_last(rhs) if kind == "fprop" else rhs]
    info = tensor_info(lhs.type)
    assert info is not None
    # Programs for GPUs are compiled with torch's own op in bf16 only.
    is_torch = info.dtype == "bf16"
    options = [none_constant(), none_constant()] if is_torch else []
    name = {"name": ir.StringAttr.get("torch.aten._grouped_mm" if is_torch else "torch.steelyard.grouped_mm")}
    return ir.Operation.create("torch.operator", [op.result.type], [*operands, op.ends, *options], name).result


_SPELLINGS = {"fprop": _fprop, "dgrad": _dgrad, "wgrad": _wgrad}


def _flattened(value: ir.Value) -> ir.Value:
    """A matrix whose rows are all the tokens."""
    info = tensor_info(value.type)
    assert info is not None
    tokens: int | None = 1
    for size in info.shape[:-1]:
        tokens = None if tokens is None or size is None else tokens * size
    return reshaped_as(value, info.with_((tokens, info.shape[-1])).type())


def _torch_op(name: str, operands: list[ir.Value], result: ir.Type) -> ir.Value:
    return ir.Operation.create(name, results=[result], operands=operands).result
