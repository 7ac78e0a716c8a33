"""`#scaled.scheme`: a `Scheme` as an attribute."""

from typing import Any

from torch_mlir import ir

from steelyard.dialect.base import Scaled, require
from steelyard.dialect.remembered import remembered
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme

_FLAGS = ("power_of_two", "rht")


class SchemeAttr(Scaled.Attribute, name="scheme"):
    """How one copy of a tensor is quantized.

    `#mxfp8_1x32`, `#fp8_e5m2_tensor_delayed`, `#nvfp4_1x16_stochastic_rht`: format, block (rows x columns of the stored
    array, or `tensor`), and the options that differ from what is usual. What no name can say, a lower bound of the
    amax or a user's own quantizer, is spelled in full, as any scheme may be:
    `#scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {rule = "floor"}>` has the element format, the block, the type of a
    scale, and the options that differ from their defaults. Flags are unit attributes: `{power_of_two}`, `{rht}`. The
    meaning of each option, and the constraints scheme_c1 to scheme_c11, are those of
    `steelyard.formats.schemes.Scheme`.

    Constraints:
    - scheme_c12: options are known and hold no default value, so that equal schemes are equal attributes
    """

    element: ir.TypeAttr
    block: ir.StringAttr
    scale: ir.TypeAttr
    options: ir.DictAttr

    @classmethod
    def from_scheme(cls, scheme: Scheme) -> "SchemeAttr":
        """The attribute of a scheme, in the current context."""
        return _make(scheme, ir.Context.current)

    @property
    def scheme(self) -> Scheme:
        """The scheme, verified; raises `ConstraintError`."""
        return _scheme(self)


@remembered
def _make(scheme: Scheme, context: ir.Context) -> SchemeAttr:
    options = {name: _to_attribute(value) for name, value in scheme.options().items()}
    return SchemeAttr.get(
        ir.TypeAttr.get(ir.Type.parse(scheme.element, context)),
        ir.StringAttr.get(scheme.block, context=context),
        ir.TypeAttr.get(ir.Type.parse(scheme.scale, context)),
        ir.DictAttr.get(options, context=context),
        context=context,
    )


@remembered
def _scheme(attribute: SchemeAttr) -> Scheme:
    element, block, scale, options = (parameter.maybe_downcast() for parameter in attribute.params)
    values = {entry.name: _from_attribute(entry.name, entry.attr) for entry in ir.DictAttr(options)}
    known = Scheme.__dataclass_fields__.keys() - {"element", "block", "scale"}
    for name in values:
        require(name in known, "scheme_c12", f"unknown scheme option {name!r}, the options are {sorted(known)}")
    scheme = Scheme(
        str(ir.TypeAttr(element).value), ir.StringAttr(block).value, str(ir.TypeAttr(scale).value), **values
    )
    idle = values.keys() - scheme.options().keys()
    require(not idle, "scheme_c12", f"scheme options must not spell a default, got {sorted(idle)}")
    return scheme


def _to_attribute(value: bool | float | str) -> ir.Attribute:
    if isinstance(value, bool):
        return ir.UnitAttr.get()
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    return ir.FloatAttr.get_f32(value)


def _from_attribute(name: str, attribute: ir.Attribute) -> Any:
    attribute = attribute.maybe_downcast()
    if name in _FLAGS:
        return True if isinstance(attribute, ir.UnitAttr) else str(attribute)
    if name == "epsilon":
        if not isinstance(attribute, ir.FloatAttr) or str(attribute.type) != "f32":
            raise ConstraintError("scheme_c2", f"epsilon must be an f32, got {attribute}")
        return attribute.value
    if not isinstance(attribute, ir.StringAttr):
        raise ConstraintError("scheme_c2", f"{name} must be a string, got {attribute}")
    return attribute.value
