"""`scaled-lower-attention`."""

from typing import TypeVar

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.ir.kernel_calls import AttentionBackwardCall, AttentionCall, Declarations, Slot
from steelyard.ir.torch_ops import constant_bool, constant_number, is_none, op_name, walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.targets import read_target

_FLASH = "torch.aten._scaled_dot_product_flash_attention_for_cpu"
_FLASH_BACKWARD = f"{_FLASH}_backward"
_Call = TypeVar("_Call", AttentionCall, AttentionBackwardCall)


@register_pass
def lower_attention(module: ir.Operation, *, target: str) -> None:
    """Turn attention in high precision, and its backward, into calls of the CPU's own kernels.

    Takes torch's flash attention for the CPU, as an op of two results, and its backward, of three. Leaves a call of a
    declared kernel, `attention` or `attention_backward`, which says whether it is causal and what its scale is; results
    are laid out as torch's are, so that either may be torch's own. An op stays as it is where the kernel has no part of
    it: with dropout, in other dtypes than f32, bf16 and f16, with a scale that is known only at run time, and on other
    targets than the CPU.
    """
    if read_target(module, target) is not None:
        return
    declarations = Declarations(module)
    for op in walk_ops(module):
        call = attention_call(op)
        if call is None:
            continue
        operands = list(op.operands)
        read = operands[: 3 if isinstance(call, AttentionCall) else 6]
        with ir.InsertionPoint(op), op.location:
            made = declarations.call(call, [*read, *([] if call.mask is None else [operands[len(read) + 2]])])
        for old, new in zip(op.results, made, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


def attention_call(op: ir.Operation) -> AttentionCall | AttentionBackwardCall | None:
    """The call that an op becomes on the CPU; None where the kernel does not do what it does."""
    if op_name(op) == _FLASH and len(op.operands) == 7 and len(op.results) == 2:
        return _checked(AttentionCall, op, ("query", "key", "value"), ("result", "logsumexp"))
    if op_name(op) == _FLASH_BACKWARD and len(op.operands) == 10 and len(op.results) == 3:
        read = ("grad_out", "query", "key", "value", "out", "logsumexp")
        return _checked(AttentionBackwardCall, op, read, ("grad_query", "grad_key", "grad_value"))
    return None


def _checked(kind: type[_Call], op: ir.Operation, read: tuple[str, ...], made: tuple[str, ...]) -> _Call | None:
    """A call with the operands of an op before its settings, and its mask; None where it would break a constraint."""
    dropout, causal, mask, scale = list(op.operands)[len(read) :]
    is_causal, factor = constant_bool(causal), constant_number(scale)
    if constant_number(dropout) != 0 or is_causal is None or (factor is None and not is_none(scale)):
        return None
    named = [*zip(read, op.operands, strict=False), ("mask", mask)]
    call = kind(
        operands=tuple(Slot(name, value.type) for name, value in named if not is_none(value)),
        results=tuple(Slot(name, value.type) for name, value in zip(made, op.results, strict=True)),
        causal=is_causal,
        scale=None if factor is None else float(factor),
    )
    try:
        call.check()
    except ConstraintError:
        return None
    return call
