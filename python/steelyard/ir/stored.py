"""Parameters that are quantized tensors already: in which format a value that they are holds its rows."""

from collections.abc import Mapping

from torch_mlir import ir

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.types import tensor_info
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import STORED, STORED_TRANSPOSED
from steelyard.ir.functions import argument_attributes
from steelyard.ir.torch_ops import defining_op, op_name, transpose_source, view_root
from steelyard.ir.view_ops import SAME_ELEMENTS

StoredSchemes = tuple[Scheme | None, Scheme | None]
"""How a parameter holds its rows, and how those of its transpose; None where it holds none."""


def stored_attributes(schemes: StoredSchemes) -> dict[str, ir.Attribute]:
    """What an argument says of a parameter that holds its rows like this, in the current context."""
    pairs = zip((STORED, STORED_TRANSPOSED), schemes, strict=True)
    return {name: SchemeAttr.from_scheme(scheme) for name, scheme in pairs if scheme is not None}


def is_stored(attributes: Mapping[str, ir.Attribute]) -> bool:
    """Whether the attributes of an argument say that it is a quantized tensor."""
    return STORED in attributes or STORED_TRANSPOSED in attributes


def stored_scheme(value: ir.Value) -> Scheme | None:
    """The scheme in which a parameter, or its transpose, holds the rows of this value; None where none does."""
    is_transposed, root = is_transpose(value), view_root(value)
    if is_transposed is None or not isinstance(root, ir.BlockArgument):
        return None
    own: Mapping[str, ir.Attribute] = argument_attributes(root.owner.owner)[root.arg_number]
    found = own.get(STORED_TRANSPOSED if is_transposed else STORED)
    return found.scheme if isinstance(found, SchemeAttr) else None


def is_transpose(value: ir.Value) -> bool | None:
    """Whether a value is an argument with its last two dims swapped, or the argument itself; None if it is neither."""
    transposed = False
    while (op := defining_op(value)) is not None:
        swaps = _has_matrices(value) and transpose_source(value) is not None
        if not swaps and op_name(op) not in SAME_ELEMENTS:
            return None
        transposed ^= swaps
        value = op.operands[0]
    return transposed


def _has_matrices(value: ir.Value) -> bool:
    info = tensor_info(value.type)
    return info is not None and len(info.shape) in (2, 3)
