"""`scaled-lower-attention`."""

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.ir.kernel_calls import AttentionCall, Declarations, Slot
from steelyard.ir.torch_ops import constant_bool, constant_number, is_none, op_name, walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.targets import read_target

_FLASH = "torch.aten._scaled_dot_product_flash_attention_for_cpu"


@register_pass
def lower_attention(module: ir.Operation, *, target: str) -> None:
    """Turn attention in high precision into calls of the CPU's own kernel.

    Takes torch's flash attention for the CPU, as an op of two results. Leaves a call of a declared kernel `attention`,
    which says whether it is causal and what its scale is; its results are laid out as torch's are, so that torch's
    backward reads them. The op stays as it is where the kernel has no part of it: with dropout, in other dtypes than
    f32, bf16 and f16, with a scale that is known only at run time, and on other targets than the CPU.
    """
    if read_target(module, target) is not None:
        return
    declarations = Declarations(module)
    for op in walk_ops(module):
        call = attention_call(op)
        if call is None:
            continue
        operands = list(op.operands)
        with ir.InsertionPoint(op), op.location:
            made = declarations.call(call, [*operands[:3], *([] if call.mask is None else [operands[5]])])
        for old, new in zip(op.results, made, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


def attention_call(op: ir.Operation) -> AttentionCall | None:
    """The call that an op becomes on the CPU; None where the kernel does not do what it does."""
    if op_name(op) != _FLASH or len(op.operands) != 7 or len(op.results) != 2:
        return None
    dropout, causal, mask, scale = list(op.operands)[3:]
    is_causal, factor = constant_bool(causal), constant_number(scale)
    if constant_number(dropout) != 0 or is_causal is None or (factor is None and not is_none(scale)):
        return None
    named = [*zip(("query", "key", "value"), op.operands, strict=False), ("mask", mask)]
    call = AttentionCall(
        operands=tuple(Slot(name, value.type) for name, value in named if not is_none(value)),
        results=(Slot("result", op.results[0].type), Slot("logsumexp", op.results[1].type)),
        causal=is_causal,
        scale=None if factor is None else float(factor),
    )
    try:
        call.check()
    except ConstraintError:
        return None
    return call
