"""What is kept between a forward and its backward, by layer: an analysis, no pass."""

from collections import Counter
from collections.abc import Iterable
from math import prod

from torch_mlir import ir

from steelyard.dialect.types import ScaledInfo, TensorType, format_shape, tensor_info
from steelyard.formats.dtypes import ITEM_SIZES
from steelyard.formats.parts import grouped_part_shapes, part_shapes
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import PARAMETER, PRIMAL, SAVED
from steelyard.ir.functions import argument_attributes, argument_name, argument_types, functions_of, result_attributes
from steelyard.ir.gradients import find_gradients
from steelyard.ir.locations import layer_of
from steelyard.ir.torch_ops import defining_op, op_name
from steelyard.ir.view_ops import SHARES_MEMORY


def byte_size(type_: ir.Type) -> int:
    """Bytes of a tensor; a size known only at run time counts as one."""
    if isinstance(type_, TensorType):
        info = type_.info
        copies = [(scheme, columnwise) for scheme, columnwise in ((info.row, False), (info.col, True)) if scheme]
        parts = [part for copy in copies for part in _parts(info, *copy)]
        return sum(prod(size or 1 for size in sizes) * ITEM_SIZES[dtype] for sizes, dtype in parts)
    plain = tensor_info(type_)
    return 0 if plain is None else prod(size or 1 for size in plain.shape) * ITEM_SIZES.get(plain.dtype, 1)


def _parts(info: ScaledInfo, scheme: Scheme, columnwise: bool) -> Iterable[tuple[tuple[int | None, ...], str]]:
    """Shape and element type of each part of a copy; a size known only at run time counts as one."""
    sizes = tuple(size or 1 for size in info.shape)
    if info.groups:
        return grouped_part_shapes(scheme, sizes, columnwise, info.groups).values()
    return part_shapes(scheme, (prod(sizes[:-1]), sizes[-1]), columnwise).values()


def shortened(module: ir.Operation) -> list[tuple[str, str]]:
    """Layers whose values the forward keeps in fewer bits than it computed them in, and what they are."""
    found: list[tuple[str, str]] = []
    for function in functions_of(module):
        terminator = list(function.regions[0].blocks[0].operations)[-1].operation
        for value, own in zip(terminator.operands, result_attributes(function), strict=True):
            op = defining_op(value)
            if SAVED in own and op is not None and op.name == "torch.aten.to.dtype":
                info = tensor_info(value.type)
                assert info is not None
                found.append((_layer(value), f"{format_shape(info.shape)} kept for the backward in {info.dtype}"))
    return found


def kept_bytes(module: ir.Operation) -> Counter[str]:
    """Bytes that the forward of a module leaves to its backward, by layer; inputs of the model are of no layer."""
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions_of(module)}
    bytes_by_layer: Counter[str] = Counter()
    if "backward" not in functions:
        return bytes_by_layer
    forward = functions["forward"]
    terminator = list(forward.regions[0].blocks[0].operations)[-1].operation
    for value, own in zip(terminator.operands, result_attributes(forward), strict=True):
        if SAVED in own:
            bytes_by_layer[_layer(value)] += byte_size(value.type)
    backward = functions["backward"]
    for type_, own in zip(argument_types(backward), argument_attributes(backward), strict=True):
        if PRIMAL in own and PARAMETER not in own:
            bytes_by_layer[""] += byte_size(type_)
    return bytes_by_layer


def eager_bytes(module: ir.Operation) -> Counter[str]:
    """Bytes that torch keeps for the same backward, by layer: all that it reads and that is no parameter."""
    bytes_by_layer: Counter[str] = Counter()
    for joint in functions_of(module):
        gradients = find_gradients(joint)
        read = {
            memory_of(operand)
            for op in joint.regions[0].blocks[0].operations
            if any(result in gradients for result in op.results)
            for operand in op.operands
            if operand not in gradients
        }
        for value in read:
            is_parameter = isinstance(value, ir.BlockArgument) and argument_name(value, PARAMETER) is not None
            if not is_parameter:
                bytes_by_layer[_layer(value)] += byte_size(value.type)
    return bytes_by_layer


def memory_of(value: ir.Value) -> ir.Value:
    """The value whose memory another shares."""
    while (op := defining_op(value)) is not None and op_name(op) in SHARES_MEMORY:
        value = op.operands[0]
    return value


def _layer(value: ir.Value) -> str:
    op = defining_op(value)
    return "" if op is None else layer_of(op.location)
