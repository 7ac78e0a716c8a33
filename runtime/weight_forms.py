"""How the function of a weight makes it from a parameter, as its IR says: what a quantized parameter must hold."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch_mlir import ir

from steelyard.formats.schemes import Scheme
from steelyard.ir.kernel_calls import Kernel, callee_of
from steelyard.ir.torch_ops import constant_int, constant_ints, defining_op

_SAME = {f"torch.aten.{name}" for name in ("detach", "alias", "contiguous", "clone", "_to_copy", "to.dtype")}
_SAME |= {"torch.prims.convert_element_type"}


@dataclass(frozen=True)
class WeightForm:
    """The rowwise copy of a parameter, or of its transpose."""

    scheme: Scheme
    """In the compact layout."""
    is_transposed: bool
    """The weight is the transpose of the parameter."""
    is_packed: bool


def read_form(function: ir.Operation, kernels: Mapping[str, Kernel]) -> WeightForm | None:
    """The form of a weight; None where it is no whole matrix in one copy of a built-in scheme."""
    operations = [op.operation for op in function.regions[0].blocks[0].operations]
    called = [(op, kernels[callee]) for op in operations if (callee := callee_of(op) or "") in kernels]
    names = [kernel.name.split(".")[1] for _, kernel in called]
    if not called or names not in (["quantize"], ["quantize", "pack"]):
        return None
    op, quantize = called[0]
    scheme, results = quantize.config.get("row"), called[-1][1].results
    if not isinstance(scheme, Scheme) or scheme.custom or not all(name.startswith("row.") for name in results):
        return None
    is_transposed = _is_transposed(op.operands[0])
    if is_transposed is None:
        return None
    return WeightForm(replace(scheme, layout="compact"), is_transposed, "pack" in names)


def _is_transposed(value: ir.Value) -> bool | None:
    """Whether a value is the transpose of an argument, or the argument itself; None if it is neither."""
    transposed = False
    while (op := defining_op(value)) is not None:
        if op.name not in _SAME and not _is_transpose(op):
            return None
        transposed ^= _is_transpose(op)
        value = op.operands[0]
    return transposed


def _is_transpose(op: ir.Operation) -> bool:
    if op.name in ("torch.aten.t", "torch.aten.numpy_T"):
        return True
    if op.name == "torch.aten.transpose.int":
        return {constant_int(op.operands[1]), constant_int(op.operands[2])} in ({0, 1}, {-2, -1}, {0, -1}, {1, -2})
    return op.name == "torch.aten.permute" and constant_ints(op.operands[1]) == [1, 0]
