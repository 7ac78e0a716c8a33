"""torchao: parts of tensors in safetensors files, and what they mean as JSON in the metadata of the files."""

import json
from typing import Any

from steelyard.checkpoints.catalog import Catalog, Entry
from steelyard.checkpoints.plan import (
    DYNAMIC,
    FP8_ROW,
    FP8_TENSOR,
    FP8_TILE,
    MXFP4,
    MXFP8,
    NVFP4,
    ROWS,
    SWIZZLED,
    LayerInput,
    Plan,
    make_weight,
    read_bound,
    refuse,
)
from steelyard.errors import CheckpointError, shown
from steelyard.formats.schemes import Scheme
from steelyard.recipes import MXFP4BlockScaling, MXFP8BlockScaling

METHOD = "torchao"
_CODES = "_qdata"
_INSTEAD = "quantize it to Float8Tensor, MXTensor or NVFP4Tensor"
_RULES = {"FLOOR": "floor", "RCEIL": "rceil", "CEIL": "ceil", "EVEN": "even"}


def read_plan(catalog: Catalog, config: dict[str, Any]) -> Plan:
    """The plan of a checkpoint whose config has this `quantization_config`."""
    plan = Plan(METHOD)
    for name, entry in sorted(catalog.items()):
        module, _, leaf = name.rpartition(".")
        if leaf.startswith("_") and leaf.endswith(_CODES):
            with catalog.problems.checking(module):
                _add_weight(catalog, plan, f"{module}.{leaf[1:].removesuffix(_CODES)}", entry)
    return plan


def _add_weight(catalog: Catalog, plan: Plan, name: str, codes: Entry) -> None:
    kind, about = _described(catalog, name, codes)
    readers = {"Float8Tensor": _float8, "MXTensor": _mx, "NVFP4Tensor": _nvfp4}
    if kind not in readers:
        raise refuse(f"{name} as {shown(kind)}", catalog, _INSTEAD)
    prefix = codes.name.removesuffix(_CODES)
    scales = catalog.require(f"{prefix}_scale", f"the scale of {codes.name}")
    scheme, layer_input = readers[kind](catalog, name, about, codes)
    second = catalog.get(f"{prefix}_per_tensor_scale") if scheme is NVFP4 else None
    arrangement = SWIZZLED if about.get("is_swizzled_scales") is True else ROWS
    plan.add(make_weight(name, scheme, codes, scales, second, arrangement=arrangement), layer_input)


def _described(catalog: Catalog, name: str, codes: Entry) -> tuple[str, dict[str, Any]]:
    """The class of a tensor, and its attributes."""
    try:
        found = json.loads(catalog.metadata.get(name, ""))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("_data"), dict):
        raise CheckpointError(
            f"the metadata of {codes.file.name} must say what {codes.name} is, in JSON at {name}, and does not; save "
            "the model by torchao's own function"
        )
    return str(found.get("_type")), found["_data"]


def _value(given: Any) -> Any:
    """What JSON of torchao means: attributes of an object, or the name of a dtype or of a choice."""
    return given["_data"] if isinstance(given, dict) and "_data" in given else given


def _name(given: Any) -> str:
    """The name that JSON of torchao means; what is no name is shown."""
    found = _value(given)
    return found if isinstance(found, str) else shown(found)


def _float8(catalog: Catalog, name: str, about: dict[str, Any], codes: Entry) -> tuple[Scheme, LayerInput]:
    block = about.get("block_size")
    *_, rows, columns = (0, 0, *codes.shape)
    if block == [1] * (len(codes.shape) - 1) + [columns]:
        scheme = FP8_ROW
    elif block in ([], None, [rows, columns]):
        scheme = FP8_TENSOR
    elif block == [128, 128]:
        scheme = FP8_TILE
    else:
        raise refuse(f"{name} in blocks of {shown(block)}", catalog, "quantize it per row, per tensor or in 128x128")
    return scheme, _float8_input(catalog, name, about)


def _float8_input(catalog: Catalog, name: str, about: dict[str, Any]) -> LayerInput:
    given = _value(about.get("act_quant_kwargs"))
    if not isinstance(given, dict):
        return LayerInput(None)
    granularity = given.get("granularity")
    kind = _name(granularity.get("_type")) if isinstance(granularity, dict) else None
    known = {"PerRow": "row", "PerTensor": "tensor"}
    size = _value(granularity)
    if kind == "PerBlock" and isinstance(size, dict) and size.get("block_size") == [1, 128]:
        known["PerBlock"] = "group"
    is_e4m3 = _name(given.get("float8_dtype", "float8_e4m3fn")) == "float8_e4m3fn"
    if kind not in known or not is_e4m3 or given.get("hp_value_lb") is not None:
        raise refuse(f"inputs of {name} by {shown(kind)} with {shown(given)}", catalog, "quantize them per row in e4m3")
    bound = given.get("hp_value_ub")
    return LayerInput(
        DYNAMIC[known[kind]], bound=None if bound is None else read_bound(bound, f"hp_value_ub of {name}")
    )


def _mx(catalog: Catalog, name: str, about: dict[str, Any], codes: Entry) -> tuple[Scheme, LayerInput]:
    schemes = {"float8_e4m3fn": MXFP8, "float4_e2m1fn_x2": MXFP4}
    element = _name(about.get("elem_dtype"))
    if element not in schemes or about.get("block_size") != 32:
        found = f"{name} in {shown(element)} by {shown(about.get('block_size'))}"
        raise refuse(found, catalog, "quantize it to float8_e4m3fn or float4_e2m1fn_x2 in blocks of 32")
    given = _value(about.get("act_quant_kwargs"))
    if not isinstance(given, dict):
        return schemes[element], LayerInput(None)
    element_of_input, rule = _name(given.get("elem_dtype")), _RULES.get(_name(given.get("scaling_mode")))
    if element_of_input not in schemes or given.get("block_size") != 32 or rule is None:
        raise refuse(f"inputs of {name} as {shown(given)}", catalog, "quantize them as weights in blocks of 32")
    recipe = MXFP8BlockScaling if schemes[element_of_input] is MXFP8 else MXFP4BlockScaling
    return schemes[element], LayerInput(recipe(scale_rule=rule))


def _nvfp4(catalog: Catalog, name: str, about: dict[str, Any], codes: Entry) -> tuple[Scheme, LayerInput]:
    if about.get("block_size") != 16:
        raise refuse(f"{name} in blocks of {shown(about.get('block_size'))}", catalog, "quantize it in blocks of 16")
    given = _value(about.get("act_quant_kwargs"))
    if not isinstance(given, dict):
        return NVFP4, LayerInput(None)
    scale = catalog.get(f"{codes.name.removesuffix(_CODES)}_act_per_tensor_scale")
    if scale is None and given.get("use_dynamic_per_tensor_scale") is not True:
        raise refuse(f"inputs of {name} without a scale per tensor", catalog, "quantize it with one, or weights alone")
    return NVFP4, LayerInput(DYNAMIC["nvfp4"], scale)
