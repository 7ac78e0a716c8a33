"""Functions that make weights: the quantization of a parameter, by itself."""

from torch_mlir import ir

from steelyard.dialect.measure import MeasureQuantizeOp
from steelyard.dialect.quantize import QuantizeOp, StoredOp
from steelyard.dialect.types import scaled_info_of
from steelyard.ir.functions import make_private_function
from steelyard.ir.stored import is_transpose
from steelyard.ir.torch_ops import defining_op, parameter_of, view_root
from steelyard.ir.weights import WeightForm, describe_weight
from steelyard.passes.support.slices import clone_slice


def is_of_parameter(op: QuantizeOp | StoredOp) -> bool:
    """Whether an op quantizes a parameter, and reads nothing but that and arguments."""
    if (isinstance(op, QuantizeOp) and op.rng is not None) or parameter_of(op.source) is None:
        return False
    return all(isinstance(operand, ir.BlockArgument) for operand in list(op.operands)[1:])


def quantization_of(op: QuantizeOp | StoredOp | MeasureQuantizeOp) -> QuantizeOp | StoredOp | None:
    """The op itself, or the one whose result it measures; None where an argument is measured."""
    if not isinstance(op, MeasureQuantizeOp):
        return op
    maker = defining_op(op.quantized)
    return maker.opview if maker is not None and isinstance(maker.opview, QuantizeOp | StoredOp) else None


def make_weight_function(
    module: ir.Operation, op: QuantizeOp | StoredOp | MeasureQuantizeOp, name: str
) -> list[ir.BlockArgument]:
    """A new function that does what an op and those before it do; returns the arguments that it reads."""
    quantized = quantization_of(op)
    assert quantized is not None
    arguments = [ir.BlockArgument(value) for value in (view_root(quantized.source), *list(quantized.operands)[1:])]
    types = [result.type for result in op.results]
    block = make_private_function(module, name, arguments, types, op.location)
    with ir.InsertionPoint(block):
        copies: dict[ir.Value, ir.Value] = dict(zip(arguments, block.arguments, strict=True))
        results = [clone_slice(result, copies) for result in op.results]
        ir.Operation.create("func.return", operands=results, loc=op.location)
    describe_weight(block.owner, None if isinstance(op, MeasureQuantizeOp) else _form(op))
    return arguments


def _form(op: QuantizeOp | StoredOp) -> WeightForm | None:
    """What a parameter that is quantized already must hold to be the result; None where no parameter can be."""
    info = scaled_info_of(op.result)
    is_transposed = is_transpose(op.source)
    has_amax = isinstance(op, QuantizeOp) and op.new_amax is not None
    if info.row is None or info.col is not None or info.row.custom or has_amax or is_transposed is None:
        return None
    if len(info.shape) != (3 if info.groups else 2):
        return None
    return WeightForm(info.row, is_transposed)
