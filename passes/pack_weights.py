"""`scaled-pack-weights`."""

from dataclasses import replace

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedGemmOp
from steelyard.dialect.layout import pack
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.types import TensorType, scaled_info_of
from steelyard.formats.parts import can_pack
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

    Takes the functions that make weights, as `scaled-hoist-weights` leaves them. On the CPU, an FP4 weight that is
    only read by GEMMs, as their right operand, is packed by its function (`scaled.pack`), and the arguments that stand
    for it have the packed type. One packed copy serves GEMMs with any number of rows. The function says so in
    `scaled.weight_form`. Other formats are read as they are.
    """
    if read_target(module, target) is not None:
        return
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions_of(module)}
    for name, arguments in weight_arguments(functions.values()).items():
        if name in functions and all(map(_can_pack, arguments)):
            _pack(functions[name], arguments)


def _can_pack(argument: ir.BlockArgument) -> bool:
    info = scaled_info_of(argument)
    fits = len(info.shape) == (3 if info.groups else 2) and None not in info.shape
    if not fits or not all(map(can_pack, info.schemes)):
        return False
    gemms = GemmOp | GroupedGemmOp
    return all(isinstance(use.owner.opview, gemms) and use.operand_number == _RIGHT for use in argument.uses)


def _pack(function: ir.Operation, arguments: list[ir.BlockArgument]) -> None:
    def packed(value: ir.Value) -> list[tuple[str, ir.Value]] | None:
        if not isinstance(value.type, TensorType):
            return None
        with ir.InsertionPoint(terminator_of(function)), function.location:
            return [("", pack(value).result)]

    replace_results(function, packed)
    form = declared_form(function)
    describe_weight(function, form and replace(form, layout="packed"))
    returned = [value.type for value in terminator_of(function).operands]
    (packed_type,) = (type_ for type_ in returned if isinstance(type_, TensorType))
    for argument in arguments:
        argument.set_type(packed_type)
        refresh_type(argument.owner.owner)
