"""What a function that makes a weight says about the weight: its key and its form."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from torch_mlir import ir

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.quantize import QuantizeOp
from steelyard.dialect.types import scaled_info_of
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import PARAMETER, STATE, WEIGHT_FORM, WEIGHT_KEY
from steelyard.ir.functions import argument_attributes

_SCHEME, _TRANSPOSED, _PACKED, _GEMM = "scheme", "transposed", "packed", "gemm"
Layout = Literal["compact", "packed", "gemm"]
"""How the parts of a weight lie: as quantizing leaves them, or in the order that GEMMs of the CPU, or of CUDA, read."""
_ABOUT_ITSELF = ("sym_name", "sym_visibility", "arg_attrs", WEIGHT_KEY, WEIGHT_FORM)
"""Attributes of a function that say nothing about what it makes, or are looked at by themselves."""


@dataclass(frozen=True)
class WeightForm:
    """What a weight is: the rowwise copy of a parameter, or of its transpose.

    Constraints:
    - weight_form_c1: `scaled.weight_form` is a dictionary of `scheme`, a #scaled.scheme in the compact layout, the flag
      `transposed`, and at most one of the flag `packed` and of `gemm`, two positive multiples
    """

    scheme: Scheme
    """In the compact layout."""
    is_transposed: bool = False
    """The weight is the transpose of the parameter."""
    layout: Layout = "compact"
    multiples: tuple[int, int] = (1, 1)
    """What rows and columns are padded to, in the layout of GEMMs on CUDA."""

    def to_attribute(self) -> ir.DictAttr:
        """The form as an attribute, in the current context."""
        given: dict[str, ir.Attribute] = {_SCHEME: SchemeAttr.from_scheme(self.scheme)}
        if self.is_transposed:
            given[_TRANSPOSED] = ir.UnitAttr.get()
        if self.layout == _PACKED:
            given[_PACKED] = ir.UnitAttr.get()
        elif self.layout == _GEMM:
            given[_GEMM] = ir.DenseI64ArrayAttr.get(self.multiples)
        return ir.DictAttr.get(given)

    @classmethod
    def from_attribute(cls, attribute: ir.Attribute) -> "WeightForm":
        """The form that an attribute spells; raises `ConstraintError`."""
        entries = {entry.name: entry.attr for entry in attribute} if isinstance(attribute, ir.DictAttr) else {}
        scheme = entries.get(_SCHEME)
        multiples = _multiples(entries.get(_GEMM))
        known = entries.keys() <= {_SCHEME, _TRANSPOSED, _PACKED, _GEMM} and not {_PACKED, _GEMM} <= entries.keys()
        is_compact = isinstance(scheme, SchemeAttr) and scheme.scheme.layout == "compact"
        if not known or multiples is None or not isinstance(scheme, SchemeAttr) or not is_compact:
            wanted = "scheme, a compact #scaled.scheme, the flag transposed, and the flag packed or the multiples gemm"
            raise ConstraintError("weight_form_c1", f"{WEIGHT_FORM} must be a dictionary of {wanted}, got {attribute}")
        layout: Layout = "packed" if _PACKED in entries else "gemm" if _GEMM in entries else "compact"
        return cls(scheme.scheme, _TRANSPOSED in entries, layout, multiples)


def _multiples(attribute: ir.Attribute | None) -> tuple[int, int] | None:
    """The multiples that an attribute spells, (1, 1) if there is none; None if it spells something else."""
    if attribute is None:
        return 1, 1
    if not isinstance(attribute, ir.DenseI64ArrayAttr) or len(attribute) != 2 or min(attribute) < 1:
        return None
    rows, columns = attribute
    return rows, columns


def describe_weight(function: ir.Operation, form: WeightForm | None) -> None:
    """Record on a function which weight it makes; a pass that changes the function records it again.

    The key is the same for functions that do the same to a parameter, with the same state, in whatever program: passes
    that later lower both do the same to both. It ends with the names of the state, and does not depend on the names of
    parameters and layers. `form` is None where no quantized parameter can be the weight.
    """
    attributes = function.attributes
    attributes[WEIGHT_KEY] = ir.StringAttr.get(" ".join([_digest(function), *weight_states(function)]))
    if form is not None:
        attributes[WEIGHT_FORM] = form.to_attribute()
    elif WEIGHT_FORM in attributes:
        del attributes[WEIGHT_FORM]


def is_weight(function: ir.Operation) -> bool:
    """Whether a function makes a weight."""
    return WEIGHT_KEY in function.attributes


def weight_key(function: ir.Operation) -> str:
    """The key of the weight that a function makes."""
    return ir.StringAttr(function.attributes[WEIGHT_KEY]).value


def weight_states(function: ir.Operation) -> tuple[str, ...]:
    """The names of the state that a function takes."""
    return tuple(ir.StringAttr(own[STATE]).value for own in argument_attributes(function) if STATE in own)


def renamed_key(key: str, states: tuple[str, ...]) -> str:
    """The key of the same making with other state."""
    return " ".join([key.partition(" ")[0], *states])


def weight_form(function: ir.Operation) -> WeightForm | None:
    """The form of the weight that a function makes; raises `ConstraintError`."""
    attributes = function.attributes
    return WeightForm.from_attribute(attributes[WEIGHT_FORM]) if WEIGHT_FORM in attributes else None


def _digest(function: ir.Operation) -> str:
    """A number for what a function does: its arguments, and its ops in their order."""
    about = _attributes(function, _ABOUT_ITSELF)
    arguments = [
        [(name, "" if name in (PARAMETER, STATE) else str(value)) for name, value in sorted(own.items())]
        for own in argument_attributes(function)
    ]
    made = repr((about, arguments, [_block(block, {}) for block in function.regions[0].blocks]))
    return blake2b(made.encode(), digest_size=16).hexdigest()


def _block(block: ir.Block, numbers: dict[ir.Value, int]) -> list[object]:
    """The ops of a block, their operands by the order in which values are made."""
    for argument in block.arguments:
        numbers[argument] = len(numbers)
    ops: list[object] = [[str(argument.type) for argument in block.arguments]]
    for view in block.operations:
        op = view.operation
        operands = [numbers[operand] for operand in op.operands]
        regions = [[_block(inner, numbers) for inner in region.blocks] for region in op.regions]
        # Only a user's own quantizer may differ from layer to layer.
        own = _attributes(op, () if _is_custom(op) else ("layer",))
        ops.append((op.name, operands, own, [str(result.type) for result in op.results], regions))
        for result in op.results:
            numbers[result] = len(numbers)
    return ops


def _is_custom(op: ir.Operation) -> bool:
    view = op.opview
    return isinstance(view, QuantizeOp) and any(scheme.custom for scheme in scaled_info_of(view.result).schemes)


def _attributes(op: ir.Operation, without: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    attributes = op.attributes
    names = sorted(name for name in attributes if name not in without)
    return [(name, str(attributes[name])) for name in names]
