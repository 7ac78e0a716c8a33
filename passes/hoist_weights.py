"""`scaled-hoist-weights`."""

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedGemmOp
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.measure import MeasureQuantizeOp
from steelyard.dialect.quantize import QuantizeOp, StoredOp, quantize
from steelyard.dialect.types import scaled_info_of
from steelyard.formats.gemms import OPERAND_USAGES, ROWWISE
from steelyard.ir.attributes import GRADIENT, PARAMETER, SOURCES, WEIGHT
from steelyard.ir.functions import add_argument, functions_of, is_private, result_attributes
from steelyard.ir.torch_ops import erase_unused_views, parameter_of, view_root, walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.weight_functions import is_of_parameter, make_weight_function, quantization_of

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
            if isinstance(view, QuantizeOp | StoredOp) and is_of_parameter(view):
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


def _is_of_weight(op: MeasureQuantizeOp) -> bool:
    maker = quantization_of(op)
    return isinstance(maker, QuantizeOp) and is_of_parameter(maker)


def _hoist(module: ir.Operation, op: QuantizeOp | StoredOp | MeasureQuantizeOp, name: str) -> None:
    quantized = quantization_of(op)
    assert quantized is not None
    source = ir.BlockArgument(view_root(quantized.source))
    parameter = parameter_of(quantized.source)
    assert parameter is not None
    arguments = make_weight_function(module, op, name)
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
