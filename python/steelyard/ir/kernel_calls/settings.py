"""Settings of a kernel as attributes: each field of a call's dataclass is one entry of its `scaled.config`.

The type of a field decides how it is written and what is accepted when it is read. A field that has its default value
is not written.
"""

from dataclasses import MISSING, Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch_mlir import ir

from steelyard.dialect.attributes import SchemeAttr
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme

OWN = {"is_setting": False}
"""Metadata of the fields that all calls have, which are no settings."""

UNKNOWN = -1
"""A size that is known only at run time, as attributes spell it."""

SETTINGS = "call_c2"


@cache
def settings_of(call: type) -> dict[str, "Field[Any]"]:
    """The fields of a call's dataclass that are settings, by name."""
    return {field.name: field for field in fields(call) if field.metadata.get("is_setting", True)}


@cache
def _hints(call: type) -> dict[str, Any]:
    return get_type_hints(call)


def write_settings(call: object) -> ir.DictAttr:
    """The settings of a call that differ from their defaults."""
    values = {name: (getattr(call, name), field.default) for name, field in settings_of(type(call)).items()}
    return ir.DictAttr.get({name: _attribute(value) for name, (value, default) in values.items() if value != default})


def read_settings(call: type, operation: str, config: ir.DictAttr) -> dict[str, Any]:
    """The settings that a config gives; raises `ConstraintError` where one is unknown, missing or of the wrong kind."""
    known = settings_of(call)
    found: dict[str, Any] = {}
    for entry in config:
        if entry.name not in known:
            names = ", ".join(known) or "none"
            raise ConstraintError(SETTINGS, f"{operation} has no setting '{entry.name}'; its settings: {names}")
        found[entry.name] = _setting(entry.name, entry.attr, _hints(call)[entry.name])
    for name, field in known.items():
        if name not in found and field.default is MISSING:
            raise ConstraintError(SETTINGS, f"{operation} needs the setting '{name}' in scaled.config, got none")
    return found


def _attribute(value: Any) -> ir.Attribute:
    if isinstance(value, Scheme):
        return SchemeAttr.from_scheme(value)
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, float):
        return ir.FloatAttr.get_f64(value)
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if value and isinstance(value[0], str):
        return ir.ArrayAttr.get([ir.StringAttr.get(line) for line in value])
    sizes: tuple[int | None, ...] = value
    return ir.DenseI64ArrayAttr.get([UNKNOWN if size is None else size for size in sizes])


def _setting(name: str, attribute: ir.Attribute, hint: Any) -> Any:
    """The value of one entry, which must be of the kind that the field's type says."""
    hint = _without_none(hint)
    if hint is Scheme:
        return _expect(name, attribute, SchemeAttr, "a #scaled.scheme").scheme
    if hint is bool:
        return _expect(name, attribute, ir.BoolAttr, "true or false").value
    if hint is int:
        return _expect(name, attribute, ir.IntegerAttr, "an integer").value
    if hint is float:
        return _expect(name, attribute, ir.FloatAttr, "a float").value
    if hint == tuple[str, ...]:
        lines = list(_expect(name, attribute, ir.ArrayAttr, "an array of strings"))
        return tuple(_expect(name, line, ir.StringAttr, "an array of strings").value for line in lines)
    if get_origin(hint) is tuple:
        sizes = list(_expect(name, attribute, ir.DenseI64ArrayAttr, "an array<i64>"))
        return _sizes(name, sizes, may_be_unknown=NoneType in get_args(get_args(hint)[0]))
    value = _expect(name, attribute, ir.StringAttr, "a string").value
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise ConstraintError(SETTINGS, f"{name} must be one of {', '.join(get_args(hint))}, got {value}")
    return value


def _sizes(name: str, sizes: list[int], *, may_be_unknown: bool) -> tuple[int | None, ...]:
    least = UNKNOWN if may_be_unknown else 1
    if any(size < least for size in sizes):
        raise ConstraintError(SETTINGS, f"{name} must hold sizes of at least {least}, got {sizes}")
    return tuple(None if size == UNKNOWN else size for size in sizes)


def _without_none(hint: Any) -> Any:
    """The type of a setting that may be absent."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    (kind,) = (kind for kind in get_args(hint) if kind is not NoneType)
    return kind


def _expect(name: str, attribute: ir.Attribute, kind: Any, words: str) -> Any:
    if not isinstance(attribute, kind):
        raise ConstraintError(SETTINGS, f"{name} must be {words}, got {attribute}")
    return attribute
