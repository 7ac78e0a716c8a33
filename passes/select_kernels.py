"""`scaled-select-kernels`."""

from collections.abc import Mapping

from torch_mlir import ir

from steelyard.dialect.matmul import MatmulOp
from steelyard.dialect.types import tensor_info
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import DESTINATIONS, KERNEL
from steelyard.ir.kernel_calls import Kernel, Setting, kernels_of
from steelyard.ir.torch_ops import none_constant, reshaped_as, transpose_last, walk_ops
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.targets import TARGETS
from steelyard.targets.gemm_paths import NATIVE

_DESTINATIONS = {
    "cpu": ("quantize", "produce_quantize", "gemm", "pack"),
    "cuda": ("quantize", "produce_quantize", "gemm", "dequantize", "epilogue"),
}
"""Kernels of each kind of device that write where they are told."""


@register_pass
def select_kernels(module: ir.Operation, *, target: str) -> None:
    """Choose the kernel of a target for each call.

    Takes calls of declared kernels that are named by what they do, and `scaled.matmul`. Leaves declarations that name a
    kernel of the target and what it works on, such as `cpu.gemm.mx`, `cpu.gemm.nvfp4.packed` or `cuda.swizzle.mx`. A
    kernel that writes its results into memory it is given is marked `scaled.destinations`. A user's own quantizer runs
    `custom.quantize` and `custom.gemm`. A matmul, which stayed in high precision, becomes torch's own product.
    """
    if target not in TARGETS:
        fail(module, f"target must be one of {', '.join(TARGETS)}, got '{target}'")
    for op in walk_ops(module):
        if isinstance(op.opview, MatmulOp):
            _use_torch(op.opview)
    symbols = kernels_of(module)
    for op in module.regions[0].blocks[0].operations:
        if KERNEL in op.attributes:
            _select(op.operation, symbols[ir.StringAttr(op.attributes["sym_name"]).value], target.partition(":")[0])


def kernel_name(device: str, operation: str, config: Mapping[str, Setting]) -> str:
    """The kernel of a kind of device that runs an operation."""
    schemes = [value for value in config.values() if isinstance(value, Scheme)]
    if any(scheme.custom for scheme in schemes):
        return f"custom.{operation}"
    is_packed = operation == "gemm" and any(scheme.layout == "packed" for scheme in schemes)
    return ".".join([device, operation, *sorted({scheme.family for scheme in schemes}), *["packed"] * is_packed])


def _select(declaration: ir.Operation, kernel: Kernel, device: str) -> None:
    operation = f"batched_{kernel.name}" if "batch_dims" in kernel.config else kernel.name
    name = kernel_name(device, operation, kernel.config)
    declaration.attributes[KERNEL] = ir.StringAttr.get(name)
    # torch's own GEMMs, which native ones are, make their results themselves.
    allocates = name.startswith("custom.") or kernel.config.get("path") == NATIVE or "new_amax" in kernel.results
    if operation in _DESTINATIONS[device] and not allocates:
        declaration.attributes[DESTINATIONS] = ir.UnitAttr.get()


def _use_torch(op: MatmulOp) -> None:
    """A product in high precision, as torch spells it."""
    info = tensor_info(op.result.type)
    if info is None or info.namespace != "torch":
        fail(op, "stays in high precision, which only a program of torch's tensors can run")
    with ir.InsertionPoint(op), op.location:
        product = _SPELLINGS[op.kind.value](op)
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
