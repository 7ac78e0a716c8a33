"""NVIDIA ModelOpt's unified export for Hugging Face."""

from typing import Any, NamedTuple

from steelyard.checkpoints.catalog import Catalog, Entry, read_json
from steelyard.checkpoints.kv_scales import find_scales
from steelyard.checkpoints.patterns import Globs, read_names
from steelyard.checkpoints.plan import (
    DYNAMIC,
    FP8_ROW,
    FP8_TENSOR,
    FP8_TILE,
    MXFP4,
    MXFP8,
    NVFP4,
    NVFP4_WIDE,
    TRANSPOSED,
    LayerInput,
    Plan,
    make_weight,
    read_object,
    refuse,
)
from steelyard.errors import CheckpointError, shown
from steelyard.formats.schemes import Scheme

METHOD = "modelopt"
FILE = "hf_quant_config.json"
_INSTEAD = "take an FP8, MXFP8, NVFP4 or MXFP4 checkpoint of the model"
_CACHES = (".k_scale", ".v_scale", ".k_bias", ".v_bias")
_EXPERTS = ("gate_up_proj", "down_proj")
"""Experts that stay one tensor, transposed: `experts.gate_up_proj`, `experts.gate_up_proj_weight_scale`."""


class _Algorithm(NamedTuple):
    """What a value of `quant_algo` means."""

    scheme: Scheme
    input: str | None
    """The key of the recipe of inputs."""
    is_static: bool = False
    """Inputs have a scale in the file."""


_ALGORITHMS = {
    "FP8": _Algorithm(FP8_TENSOR, "tensor", is_static=True),
    "FP8_PER_CHANNEL_PER_TOKEN": _Algorithm(FP8_ROW, "row"),
    "FP8_PB_WO": _Algorithm(FP8_TILE, "group"),
    "NVFP4": _Algorithm(NVFP4, "nvfp4", is_static=True),
    "NVFP4_AWQ": _Algorithm(NVFP4, "nvfp4", is_static=True),
    "W4A16_NVFP4": _Algorithm(NVFP4, None),
    "W4A8_NVFP4_FP8": _Algorithm(NVFP4_WIDE, "tensor", is_static=True),
    "MXFP8": _Algorithm(MXFP8, "mxfp8"),
    "MXFP4": _Algorithm(MXFP4, "mxfp4"),
    "W4A8_MXFP4_FP8": _Algorithm(MXFP4, "tensor", is_static=True),
}
"""By names in upper case."""


def read_plan(catalog: Catalog, config: dict[str, Any]) -> Plan:
    """The plan of a checkpoint whose config has this `quantization_config`."""
    if "quant_algo" not in config and (catalog.folder / FILE).exists():
        config = read_file(catalog)
    mixed = read_object(config.get("quantized_layers"), "quantized_layers")
    key = "ignore" if config.get("ignore") else "exclude_modules"
    ignored = Globs(read_names(config.get(key), key), key)
    plan = Plan(METHOD)
    for layer, scale in _layers(catalog).items():
        with catalog.problems.checking(layer):
            _add_layer(catalog, plan, layer, scale, _algorithm_of(catalog, layer, config.get("quant_algo"), mixed))
            if ignored.find(layer) is not None:
                plan.odd.append(f"{layer} has a scale, though {key} in the config says that it is not quantized")
    with catalog.problems.checking("kv_cache_scheme"):
        _keep_caches(catalog, plan, config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme"))
    return plan


def read_file(catalog: Catalog) -> dict[str, Any]:
    """The config of older exports, which is in a file of its own."""
    found = read_json(catalog.folder / FILE).get("quantization")
    if not isinstance(found, dict):
        raise CheckpointError(f"quantization in '{catalog.folder / FILE}' must be an object, got {shown(found)}")
    return found


def _layers(catalog: Catalog) -> dict[str, str]:
    """The layers with codes or scales: the name of each weight without `.weight`, and that of its scale."""
    found = {}
    for name, entry in catalog.items():
        if name.endswith(".weight_scale"):
            found[name.removesuffix(".weight_scale")] = name
        elif name.endswith("_weight_scale") and name.removesuffix("_weight_scale").endswith(_EXPERTS):
            found[name.removesuffix("_weight_scale")] = name
        elif name.endswith(".weight") and entry.dtype in ("F8_E4M3", "U8"):
            found.setdefault(name.removesuffix(".weight"), name + "_scale")
    return dict(sorted(found.items()))


def _algorithm_of(catalog: Catalog, layer: str, default: Any, mixed: dict[str, Any]) -> _Algorithm:
    """What a layer is quantized by. Of mixed ones, the entry of the layer, or of the nearest module around it, says."""
    name = default
    if _upper(default) == "MIXED_PRECISION":
        parts = layer.split(".")
        around = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        about = next((mixed[each] for each in around if each in mixed), None)
        if not isinstance(about, dict):
            raise CheckpointError(f"quantized_layers in the config must say how {layer} is quantized, and does not")
        name = about.get("quant_algo")
    known = _ALGORITHMS.get(_upper(name))
    if known is None:
        raise refuse(f"{layer} in {shown(name)}", catalog, _INSTEAD)
    return known


def _upper(name: Any) -> str:
    """The name of an algorithm: files have some in lower case."""
    return name.upper() if isinstance(name, str) else ""


def _add_layer(catalog: Catalog, plan: Plan, layer: str, scale: str, algorithm: _Algorithm) -> None:
    scheme = algorithm.scheme
    is_stack = not scale.endswith(".weight_scale")
    prefix = f"{layer}_" if is_stack else f"{layer}."
    name = layer if is_stack else f"{layer}.weight"
    codes = catalog.require(name, "its codes")
    scales = catalog.require(scale, f"the scale of {codes.name}")
    second = None
    if scheme.second_level != "none":
        second = catalog.require(f"{scale}_2", f"the second scale of {codes.name}")
    arrangement = {"arrangement": TRANSPOSED} if is_stack else {}
    weight = make_weight(name, scheme, codes, scales, second, **arrangement)
    plan.add(weight, _input(catalog, prefix, algorithm))


def _input(catalog: Catalog, prefix: str, algorithm: _Algorithm) -> LayerInput:
    factor: Entry | None = catalog.get(f"{prefix}pre_quant_scale")
    if algorithm.input is None:
        return LayerInput(None, factor=factor)
    scale = catalog.require(f"{prefix}input_scale", "the scale of its input") if algorithm.is_static else None
    return LayerInput(DYNAMIC[algorithm.input], scale, factor=factor)


def _keep_caches(catalog: Catalog, plan: Plan, about: Any) -> None:
    """Note how KV caches are quantized, and keep their scales."""
    plan.kept.update({each: catalog[each] for each in catalog if each.endswith(_CACHES)})
    name = "FP8" if isinstance(about, dict) else about
    if name is None or _upper(name) == "NONE":
        return
    if not isinstance(name, str):
        raise CheckpointError(f"kv_cache_quant_algo in the config must be a name, got {shown(name)}; fetch it again")
    if name.upper() != "FP8":
        plan.not_run.append(
            f'KV caches are meant to be {shown(name)}; they stay in high precision, unless you choose kv_cache="fp8"'
        )
        return
    plan.kv_cache = "fp8"
    plan.kv_scales = find_scales(catalog)
