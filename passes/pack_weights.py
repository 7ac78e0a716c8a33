"""`scaled-pack-weights`."""

from dataclasses import replace

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedGemmOp
from steelyard.dialect.layout import pack
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.types import TensorType, scaled_info_of
from steelyard.formats.parts import can_pack
from steelyard.ir.bodies import trips_of
from steelyard.ir.functions import functions_of, refresh_type, replace_results, terminator_of, weight_arguments
from steelyard.ir.weights import describe_weight
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.declared import declared_form
from steelyard.passes.support.targets import read_target

_RIGHT = 1
"""Which operand of a GEMM a weight is."""


@register_pass
def pack_weights(module: ir.Operation, *, target: str) -> None:
    """Pack weights once, in the order that a target's GEMMs read them.

    Takes the functions that make weights, as `scaled-hoist-weights` and `scaled-hoist-from-loops` leave them. On the
    CPU, an FP4 weight that is only read by GEMMs, as their right operand, is packed by its function (`scaled.pack`),
    and the arguments that stand for it, or for a stack of it for the trips of loops, have the packed type. One packed
    copy serves GEMMs with any number of rows. The function says so in `scaled.weight_form`. Other formats are read as
    they are.
    """
    if read_target(module, target) is not None:
        return
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions_of(module)}
    for name, arguments in weight_arguments(functions.values()).items():
        if name in functions and _fits(functions[name]) and all(map(_can_pack, arguments)):
            _pack(functions[name], arguments)


def _fits(function: ir.Operation) -> bool:
    """Whether what a function makes of a weight is a matrix, or a stack in groups, that can be packed."""
    infos = [scaled_info_of(value) for value in terminator_of(function).operands if isinstance(value.type, TensorType)]
    return all(
        len(info.shape) == (3 if info.groups else 2) and None not in info.shape and all(map(can_pack, info.schemes))
        for info in infos
    )


def _can_pack(argument: ir.BlockArgument) -> bool:
    return all(_is_multiplied(use.owner.operation, use.operand_number) for use in argument.uses)


def _is_multiplied(op: ir.Operation, number: int) -> bool:
    """Whether an op multiplies by a weight, or is a loop that hands a part of it to its body."""
    return trips_of(op) is not None or (isinstance(op.opview, GemmOp | GroupedGemmOp) and number == _RIGHT)


def _pack(function: ir.Operation, arguments: list[ir.BlockArgument]) -> None:
    def packed(value: ir.Value) -> list[tuple[str, ir.Value]] | None:
        if not isinstance(value.type, TensorType):
            return None
        with ir.InsertionPoint(terminator_of(function)), function.location:
            return [("", pack(value).result)]

    replace_results(function, packed)
    form = declared_form(function)
    describe_weight(function, form and replace(form, layout="packed"))
    (made,) = (value for value in terminator_of(function).operands if isinstance(value.type, TensorType))
    info = scaled_info_of(made)
    for argument in arguments:
        argument.set_type(scaled_info_of(argument).with_schemes(info.row, info.col).type())
        refresh_type(argument.owner.owner)
