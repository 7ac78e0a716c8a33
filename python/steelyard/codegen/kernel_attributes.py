"""Kernels as attributes: `{kernel = "amax", rht = true, source = {dtype = "bf16"}}` says what code is generated.

Fields that have their default are left out.
"""

from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from torch_mlir import ir

from steelyard.codegen.amax import AmaxKernel
from steelyard.codegen.copies import Copy
from steelyard.codegen.dequantize import DequantizeKernel
from steelyard.codegen.epilogue import EpilogueKernel
from steelyard.codegen.groups import GroupedKernel
from steelyard.codegen.kernel import Kernel, TileKernel
from steelyard.codegen.produce import ProduceKernel
from steelyard.codegen.producers import Producer
from steelyard.codegen.quantize import QuantizeKernel
from steelyard.codegen.scale_layouts import ScaleLayoutKernel
from steelyard.codegen.sources import Source
from steelyard.codegen.state import ComputeScaleKernel, EmptyRowScalesKernel, InverseScaleKernel, UpdateScaleKernel
from steelyard.codegen.statistics import RowStatisticsKernel
from steelyard.codegen.transpose import TransposeKernel
from steelyard.dialect.attributes import SchemeAttr
from steelyard.errors import IRError, SteelyardError
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import CODE

_KERNEL = "kernel"
_KINDS: dict[str, type[Kernel]] = {
    "amax": AmaxKernel,
    "compute_scale": ComputeScaleKernel,
    "dequantize": DequantizeKernel,
    "empty_row_scales": EmptyRowScalesKernel,
    "epilogue": EpilogueKernel,
    "groups": GroupedKernel,
    "inverse_scale": InverseScaleKernel,
    "produce": ProduceKernel,
    "quantize": QuantizeKernel,
    "row_statistics": RowStatisticsKernel,
    "scale_layout": ScaleLayoutKernel,
    "transpose": TransposeKernel,
    "update_scale": UpdateScaleKernel,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_PARTS: tuple[type, ...] = (Copy, Producer, Source)


def kernel_attribute(kernel: Kernel) -> ir.DictAttr:
    """What a kernel is."""
    return ir.DictAttr.get({_KERNEL: ir.StringAttr.get(_NAMES[type(kernel)]), **_fields(kernel)})


def read_kernel(attribute: ir.Attribute) -> Kernel:
    """The kernel that an attribute describes."""
    try:
        found = {entry.name: entry.attr for entry in ir.DictAttr(attribute)}
        name = ir.StringAttr(found.pop(_KERNEL)).value
        return _read_fields(_KINDS[name], found)
    except (KeyError, TypeError, ValueError, AttributeError, SteelyardError) as error:
        kinds = ", ".join(_KINDS)
        raise IRError(
            f"{CODE} must describe a kernel ({kinds}) with its fields, got {attribute}: {error}; "
            "run scaled-plan-launches, which writes it"
        ) from None


def _fields(value: Any) -> dict[str, ir.Attribute]:
    given = [field for field in fields(value) if getattr(value, field.name) != _default(field)]
    return {field.name: _attribute(getattr(value, field.name)) for field in given}


def _default(field: Field) -> Any:
    return field.default if field.default is not MISSING else MISSING


def _attribute(value: Any) -> ir.Attribute:
    if isinstance(value, Scheme):
        return SchemeAttr.from_scheme(value)
    if isinstance(value, Kernel):
        return kernel_attribute(value)
    if is_dataclass(value):
        return ir.DictAttr.get(_fields(value))
    if isinstance(value, tuple):
        return ir.ArrayAttr.get([_attribute(item) for item in value])
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    return ir.StringAttr.get(value)


@cache
def _types(kind: type) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind).items() if name in {f.name for f in fields(kind)}}


def _read_fields(kind: type, found: dict[str, ir.Attribute]) -> Any:
    types = _types(kind)
    unknown = found.keys() - types.keys()
    if unknown:
        raise ValueError(f"there is no field '{min(unknown)}'")
    return kind(**{name: _read(types[name], attribute) for name, attribute in found.items()})


def _read(type_: Any, attribute: ir.Attribute) -> Any:
    if type_ is Scheme:
        if not isinstance(attribute, SchemeAttr):
            raise TypeError(f"a scheme must be a #scaled.scheme, got {attribute}")
        return attribute.scheme
    if type_ is TileKernel:
        return read_kernel(attribute)
    if type_ == tuple[Copy, ...]:
        return tuple(_read(Copy, item) for item in ir.ArrayAttr(attribute))
    part = next((part for part in _PARTS if type_ in (part, part | None)), None)
    if part is not None:
        return _read_fields(part, {entry.name: entry.attr for entry in ir.DictAttr(attribute)})
    kinds = {bool: ir.BoolAttr, int: ir.IntegerAttr, str: ir.StringAttr}
    return kinds[type_](attribute).value
