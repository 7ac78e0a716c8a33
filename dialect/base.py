"""The dialect object, and what every op of it shares: named constraints and located diagnostics."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.assembly.spelling import shorten
from steelyard.dialect.remembered import remembered_set
from steelyard.errors import ConstraintError

_Choice = TypeVar("_Choice", bound=str)
_Op = TypeVar("_Op", bound="ScaledOp")
_Value = TypeVar("_Value", ir.Value, ir.Type)


class Scaled(ext.Dialect, name="scaled"):
    """Quantized tensors and the operations on them; see docs/dialect.md."""


def require(holds: bool, constraint: str, message: str) -> None:
    """Raise the named constraint unless it holds."""
    if not holds:
        raise ConstraintError(constraint, message)


class ScaledOp(Scaled.Operation):
    """Base of the ops: a subclass defines `check`, which raises `ConstraintError`.

    Printing an op inside its verifier would recurse, and the verifier runs before the declared operands and attributes
    are checked, so whatever goes wrong in `check` becomes a diagnostic at the op's location that names the layer; one
    that lacks what it declares fails as `<op>_c0`.

    A check reads the op's types and attributes alone, never its neighbours or its `layer`, so that one op of a kind
    is checked for all: programs repeat few signatures, and MLIR verifies after every pass. An op that says that it
    `reads_neighbours` is checked each time.
    """

    reads_neighbours = False

    assembly_format = ""
    """The short form of the op; see `steelyard.dialect.assembly.formats`."""

    def check(self) -> None:
        raise NotImplementedError(f"{self.OPERATION_NAME} has no check")

    @classmethod
    def verify_invariants(cls, op: "ScaledOp") -> bool:
        try:
            # Built here and not in a function of its own: this line is most of what verifying a program costs.
            attributes = op.attributes
            signature = (
                cls,
                *[value.type for value in op.operands],
                *op.results.types,
                *[attributes[name] for name in cls.signature_attributes()],
            )
            if signature in _verified:
                return True
            _check_segments(op)
            op.check()
        except ConstraintError as error:
            message = str(error)
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            message = f"{_describe_ill_formed(op, error)} [{cls._op_name}_c0]"
        else:
            if not cls.reads_neighbours:
                _verified.add(signature)
            return True
        op.location.emit_error(f"'{cls.OPERATION_NAME}' op {shorten(message)}{_layer_suffix(op)}")
        return False

    @classmethod
    @cache
    def signature_attributes(cls) -> tuple[str, ...]:
        """The attributes that a check reads."""
        declared = [field.name for field in cls._fields if isinstance(field, ext.AttributeDef)]
        segments = {
            "operandSegmentSizes": cls._ODS_OPERAND_SEGMENTS,
            "resultSegmentSizes": cls._ODS_RESULT_SEGMENTS,
        }
        stored = [name for name, sizes in segments.items() if sizes is not None]
        return tuple(name for name in declared + stored if name != "layer")


def _check_segments(op: ScaledOp) -> None:
    """The sizes of optional and variadic groups, which an op in generic form states, must fit what it has."""
    groups = (
        ("operandSegmentSizes", op._ODS_OPERAND_SEGMENTS, len(op.operands)),
        ("resultSegmentSizes", op._ODS_RESULT_SEGMENTS, len(op.results)),
    )
    for name, declared, count in groups:
        if declared is None:
            continue
        sizes = list(attribute_of(op, name, ir.DenseI32ArrayAttr))
        # Of a declared group 1 is one value, 0 one that may be absent, and -1 any number.
        fits = len(sizes) == len(declared) and all(
            size == 1 if group == 1 else size >= 0 and (group < 0 or size <= 1)
            for size, group in zip(sizes, declared, strict=True)
        )
        if not fits or sum(sizes) != count:
            raise ConstraintError(f"{op._op_name}_c0", f"{name} must add up to {count} in its groups, got {sizes}")


_verified = remembered_set()


def _describe_ill_formed(op: ScaledOp, error: Exception) -> str:
    for name in op.signature_attributes():
        if name not in op.attributes:
            return f"requires attribute '{name}'"
    for field in op._fields:
        if not isinstance(field, ext.AttributeDef) or field.constraint is Any:
            continue
        kind: type = field.constraint
        if not isinstance(op.attributes[field.name], kind):
            return f"attribute '{field.name}' must be a {kind.__name__}, got {op.attributes[field.name]}"
    return f"must have the operands, results and attributes it declares: {error}"


def _layer_suffix(op: ScaledOp) -> str:
    if "layer" not in op.attributes:
        return ""
    layer = op.attributes["layer"]
    if not isinstance(layer, ir.StringAttr) or not layer.value:
        return ""
    return f" (layer '{layer.value}')"


def build(
    op_class: type[_Op],
    operands: Sequence[ir.Value | list[ir.Value] | None],
    results: Sequence[ir.Type | None],
    attributes: Mapping[str, ir.Attribute],
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> _Op:
    """Create an op; None stands for an optional operand or result that is absent, a list for a variadic one.

    Goes to `ir.Operation.create` directly: construction through the class costs ten times as much.
    """
    # `_ODS_*_SEGMENTS` is None when nothing is optional; then no sizes are stored.
    if op_class._ODS_OPERAND_SEGMENTS is not None:
        attributes = {**attributes, "operandSegmentSizes": _segment_sizes(operands)}
    if op_class._ODS_RESULT_SEGMENTS is not None:
        attributes = {**attributes, "resultSegmentSizes": _segment_sizes(results)}
    made = ir.Operation.create(
        op_class.OPERATION_NAME,
        operands=[value for group in operands for value in _group(group)],
        results=[type_ for type_ in results if type_ is not None],
        attributes=dict(attributes),
        loc=loc,
        ip=ip,
    )
    return cast(_Op, made.opview)


def _group(value: _Value | list[_Value] | None) -> list[_Value]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _segment_sizes(groups: Sequence[_Value | list[_Value] | None]) -> ir.Attribute:
    return ir.DenseI32ArrayAttr.get([len(_group(group)) for group in groups])


def string_attribute(op: ScaledOp, name: str, choices: Sequence[_Choice], constraint: str) -> _Choice:
    """The value of a string attribute that has one of a few values."""
    attribute = op.attributes[name]
    value = attribute.value if isinstance(attribute, ir.StringAttr) else str(attribute)
    return one_of(value, choices, constraint, name)


def one_of(value: str, choices: Sequence[_Choice], constraint: str, name: str) -> _Choice:
    """The choice that a string spells."""
    for choice in choices:
        if choice == value:
            return choice
    raise ConstraintError(constraint, f"{name} must be one of {', '.join(choices)}, got {value}")


def attribute_of(op: ScaledOp, name: str, kind: type[ir.Attribute]) -> Any:
    """An attribute of a kind; for the kinds that the bindings cannot declare."""
    attribute = op.attributes[name]
    if not isinstance(attribute, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {attribute}")
    return attribute
