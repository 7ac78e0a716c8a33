"""`scaled-hoist-weights`."""

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedGemmOp
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.measure import MeasureQuantizeOp
from steelyard.dialect.quantize import QuantizeOp, StoredOp, quantize
from steelyard.dialect.types import scaled_info_of
from steelyard.formats.gemms import OPERAND_USAGES, ROWWISE
from steelyard.ir.attributes import GRADIENT, PARAMETER, SOURCES, WEIGHT
from steelyard.ir.functions import add_argument, functions_of, is_private, make_private_function, result_attributes
from steelyard.ir.stored import is_transpose
from steelyard.ir.torch_ops import defining_op, erase_unused_views, parameter_of, view_root, walk_ops
from steelyard.ir.weights import WeightForm, describe_weight
from steelyard.passes.pipeline.registry import register_pass

_RIGHT = 1
"""Which operand of a GEMM a weight is."""


@register_pass
def hoist_weights(module: ir.Operation) -> None:
    """Move the quantization of parameters out of the step.

    Takes `scaled.quantize` and `scaled.stored` of a view, a transpose or a cast of a parameter. Leaves each in a
    function of its own, `@weight_0` and so on, which takes the parameter (and the scale, where it is state) and returns
    the quantized tensor. In its place the program has an argument that names the function (`scaled.weight`) and the
    arguments that the function takes (`scaled.sources`). The caller may keep the result of the function until one of
    those changes. An amax that the quantize returns becomes another argument. Quantizations that take random bits stay.
    The function says which weight it makes (`scaled.weight_key`, equal where functions of any program make equal
    weights) and, if that is one rowwise copy of the whole parameter or of its transpose, what it is
    (`scaled.weight_form`). The copies of a parameter without gradient become two functions: the forward shares its own
    with programs without gradients. What `scaled.measure_quantize` finds of such a weight is made by a function of its
    own, too: a weight is measured once per write. Quantizations in the bodies of ops, which are private functions,
    stay.
    """
    count = 0
    for function in [function for function in functions_of(module) if not is_private(function)]:
        trained = {own[GRADIENT] for own in result_attributes(function) if GRADIENT in own}
        # First: they read the quantized weights, which are functions' results after that.
        measures = [op.opview for op in walk_ops(function) if isinstance(op.opview, MeasureQuantizeOp)]
        for measure in measures:
            if _is_of_weight(measure):
                _hoist(module, measure, f"weight_{count}")
                count += 1
        for op in walk_ops(function):
            view = op.opview
            if isinstance(view, QuantizeOp | StoredOp) and _is_of_parameter(view):
                for part in _by_usage(view, trained) if isinstance(view, QuantizeOp) else [view]:
                    _hoist(module, part, f"weight_{count}")
                    count += 1


def _by_usage(op: QuantizeOp, trained: set[ir.Attribute]) -> list[QuantizeOp]:
    """A quantize of a parameter without gradient as two, one for each copy; any other as it is."""
    info, uses = scaled_info_of(op.result), list(op.result.uses)
    is_trained = ir.StringAttr.get(parameter_of(op.source) or "") in trained
    if is_trained or info.row is None or info.col is None or info.row.custom:
        return [op]
    if not all(isinstance(use.owner.opview, GemmOp | GroupedGemmOp) and use.operand_number == _RIGHT for use in uses):
        return [op]
    role, layer, has_amax, groups = op.role.value, op.layer.value, op.new_amax is not None, info.groups
    with ir.InsertionPoint(op), op.location:
        row = quantize(
            op.source, info.row, None, role=role, layer=layer, scale=op.scale, groups=groups, new_amax=has_amax
        )
        col = quantize(op.source, None, info.col, role=role, layer=layer, scale=op.scale, groups=groups)
    for gemm in [use.owner.opview for use in uses]:
        assert isinstance(gemm, GemmOp | GroupedGemmOp)
        usage = OPERAND_USAGES[gemm.kind.value][_RIGHT]
        gemm.operation.operands[_RIGHT] = (row if usage == ROWWISE else col).result
    if op.new_amax is not None and row.new_amax is not None:
        op.new_amax.replace_all_uses_with(row.new_amax)
    op.operation.erase()
    return [row, col]


def _is_of_parameter(op: QuantizeOp | StoredOp) -> bool:
    if (isinstance(op, QuantizeOp) and op.rng is not None) or parameter_of(op.source) is None:
        return False
    return all(isinstance(operand, ir.BlockArgument) for operand in list(op.operands)[1:])


def _is_of_weight(op: MeasureQuantizeOp) -> bool:
    maker = defining_op(op.quantized)
    return maker is not None and isinstance(maker.opview, QuantizeOp) and _is_of_parameter(maker.opview)


def _hoist(module: ir.Operation, op: QuantizeOp | StoredOp | MeasureQuantizeOp, name: str) -> None:
    quantized = op
    if isinstance(op, MeasureQuantizeOp):
        maker = defining_op(op.quantized)
        assert maker is not None
        quantized = maker.opview
    assert isinstance(quantized, QuantizeOp | StoredOp)
    source = ir.BlockArgument(view_root(quantized.source))
    parameter = parameter_of(quantized.source)
    assert parameter is not None
    arguments = [source, *(ir.BlockArgument(operand) for operand in list(quantized.operands)[1:])]
    types = [result.type for result in op.results]
    block = make_private_function(module, name, arguments, types, op.location)
    with ir.InsertionPoint(block):
        copies: dict[ir.Value, ir.Value] = dict(zip(arguments, block.arguments, strict=True))
        results = [_clone_slice(result, copies) for result in op.results]
        ir.Operation.create("func.return", operands=results, loc=op.location)
    describe_weight(block.owner, None if isinstance(op, MeasureQuantizeOp) else _form(op))
    attributes: dict[str, ir.Attribute] = {
        PARAMETER: ir.StringAttr.get(parameter),
        WEIGHT: ir.FlatSymbolRefAttr.get(name),
        SOURCES: ir.DenseI64ArrayAttr.get([argument.arg_number for argument in arguments]),
    }
    for result in op.results:
        result.replace_all_uses_with(add_argument(source.owner, result.type, op.location, attributes))
    viewed = quantized.source
    op.operation.erase()
    erase_unused_views(viewed)


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


def _clone_slice(value: ir.Value, copies: dict[ir.Value, ir.Value]) -> ir.Value:
    """Copy the op that makes a value, and those that make its operands; returns the copy's value."""
    if value in copies:
        return copies[value]
    op = defining_op(value)
    assert op is not None, "a quantized parameter depends on nothing but the parameter and its state"
    operands = [_clone_slice(operand, copies) for operand in op.operands]
    clone = op.clone()
    for index, operand in enumerate(operands):
        clone.operands[index] = operand
    for old, new in zip(op.results, clone.results, strict=True):
        copies[old] = new
    return copies[value]
