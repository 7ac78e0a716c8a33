"""compressed-tensors, which llm-compressor writes."""

from typing import Any, NamedTuple

from steelyard.checkpoints.catalog import Catalog
from steelyard.checkpoints.kv_scales import find_scales
from steelyard.checkpoints.patterns import REGULAR, Names, read_names
from steelyard.checkpoints.plan import (
    DYNAMIC,
    FP8_GROUP,
    FP8_ROW,
    FP8_TENSOR,
    FP8_TILE,
    MXFP4,
    MXFP8,
    NVFP4_DIVIDED,
    LayerInput,
    Plan,
    make_weight,
    read_object,
    refuse,
)
from steelyard.errors import CheckpointError, shown
from steelyard.formats.schemes import Scheme

METHOD = "compressed-tensors"
_CODES, _PACKED, _SCALE = ".weight", ".weight_packed", ".weight_scale"
_CACHES = (".k_scale", ".v_scale", ".q_scale")
_INSTEAD = "take an FP8, MXFP8, NVFP4 or MXFP4 checkpoint of the model"
_IN_WEIGHTS = ("weight_input", "weight_output")
"""Places of transforms that are in the weights already; others run in every call."""


_FORMATS = {
    FP8_TENSOR: ("float-quantized", "naive-quantized"),
    FP8_ROW: ("float-quantized", "naive-quantized"),
    FP8_TILE: ("float-quantized", "naive-quantized"),
    FP8_GROUP: ("float-quantized", "naive-quantized"),
    MXFP8: ("mxfp8-quantized",),
    MXFP4: ("mxfp4-pack-quantized",),
    NVFP4_DIVIDED: ("nvfp4-pack-quantized",),
}
"""How `format` calls what weights are stored as."""
_MIXED = "mixed-precision"


class _Group(NamedTuple):
    """A group of layers that are quantized alike."""

    name: str
    targets: list[str]
    weights: dict[str, Any]
    inputs: dict[str, Any] | None
    format: str | None


class _Groups:
    """The groups of a config by their targets."""

    def __init__(self, groups: list[_Group]):
        targets = sorted((target, index) for index, group in enumerate(groups) for target in group.targets)
        self._groups: dict[str, _Group] = {}
        for target, index in targets:
            self._groups.setdefault(target, groups[index])
        self._names = Names(self._groups, "targets")
        is_class = [target for target in self._groups if not target.startswith(REGULAR) and "." not in target]
        self._of_class = self._groups[is_class[0]] if is_class else None

    def find(self, layer: str) -> _Group | None:
        """The group of a layer: by its name, else by a regular expression, else by a class."""
        target = self._names.find(layer)
        # What has codes and a scale is of the class that is quantized.
        return self._of_class if target is None else self._groups[target]


def read_plan(catalog: Catalog, config: dict[str, Any]) -> Plan:
    """The plan of a checkpoint whose config has this `quantization_config`."""
    _refuse_unsupported(catalog, config)
    plan = Plan(METHOD)
    groups = _Groups(_read_groups(catalog, config))
    ignored = Names(read_names(config.get("ignore"), "ignore"), "ignore")
    for layer in _layers(catalog):
        with catalog.problems.checking(layer):
            _add_layer(catalog, plan, layer, groups.find(layer))
            if ignored.find(layer) is not None:
                plan.odd.append(f"{layer} has a scale, though ignore in config.json says that it is not quantized")
    with catalog.problems.checking("kv_cache_scheme"):
        _keep_caches(catalog, plan, config.get("kv_cache_scheme"))
    return plan


def _refuse_unsupported(catalog: Catalog, config: dict[str, Any]) -> None:
    status = config.get("quantization_status", "compressed")
    if status != "compressed":
        raise refuse(f"weights with quantization_status {shown(status)}", catalog, "save it compressed")
    sparsity = read_object(config.get("sparsity_config"), "sparsity_config")
    if sparsity.get("format", "dense") not in ("dense", None):
        raise refuse(f"sparse weights ({shown(sparsity.get('format'))})", catalog, _INSTEAD)
    transforms = read_object(config.get("transform_config"), "transform_config")
    for name, group in read_object(transforms.get("config_groups"), "config_groups of transform_config").items():
        _refuse_online(catalog, read_object(group, f"{shown(name)} of transform_config"))


def _refuse_online(catalog: Catalog, group: dict[str, Any]) -> None:
    """Refuse transforms that run in every call."""
    places = group.get("apply") or []
    if not isinstance(places, list):
        raise CheckpointError(f"apply of transform_config in config.json must be a list, got {shown(places)}")
    for place in places:
        location = read_object(place, "apply of transform_config").get("location")
        if location not in _IN_WEIGHTS:
            raise refuse(f"transforms in every call (transform_config at {shown(location)})", catalog, _INSTEAD)


def _read_groups(catalog: Catalog, config: dict[str, Any]) -> list[_Group]:
    given = read_object(config.get("config_groups"), "config_groups")
    if not given:
        raise CheckpointError("config_groups in config.json must hold groups of layers, and is empty; fetch it again")
    top = config.get("format")
    found = []
    for name, group in given.items():
        # A list of targets alone has the name of a preset.
        about = group if isinstance(group, dict) else {"targets": group, **_preset(catalog, name)}
        targets = read_names(about.get("targets"), f"targets of {shown(name)}")
        if about.get("weights") is None:
            continue
        weights = read_object(about["weights"], f"weights of {shown(name)}")
        given_inputs = about.get("input_activations")
        inputs = None if given_inputs is None else read_object(given_inputs, f"input_activations of {shown(name)}")
        own = about.get("format") or (None if top == _MIXED else top)
        found.append(_Group(name, targets, weights, inputs, own))
    return found


def _preset(catalog: Catalog, name: str) -> dict[str, Any]:
    fp8: dict[str, Any] = {"num_bits": 8, "type": "float"}
    fp4: dict[str, Any] = {"num_bits": 4, "type": "float"}
    tiles = {**fp8, "strategy": "block", "block_structure": [128, 128]}
    nvfp4 = {**fp4, "strategy": "tensor_group", "group_size": 16}
    mxfp4 = {**fp4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8", "dynamic": True}
    mxfp8 = {**mxfp4, "num_bits": 8}
    of_groups = {**fp8, "strategy": "group", "group_size": 128, "dynamic": True}
    presets: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
        "FP8": ({**fp8, "strategy": "tensor"}, {**fp8, "strategy": "tensor", "dynamic": False}),
        "FP8_DYNAMIC": ({**fp8, "strategy": "channel"}, {**fp8, "strategy": "token", "dynamic": True}),
        "FP8_BLOCK": (tiles, of_groups),
        "NVFP4": (nvfp4, {**nvfp4, "dynamic": "local"}),
        "NVFP4A16": (nvfp4, None),
        "MXFP4": (mxfp4, mxfp4),
        "MXFP4A16": (mxfp4, None),
        "MXFP8": (mxfp8, mxfp8),
        "MXFP8A16": (mxfp8, None),
        "MXFP4XFP8": (mxfp4, of_groups),
    }
    if name not in presets:
        raise refuse(f"the preset {shown(name)}", catalog, _INSTEAD)
    weights, inputs = presets[name]
    return {"weights": weights, "input_activations": inputs}


def _layers(catalog: Catalog) -> list[str]:
    """The layers that have codes and a scale, or one of them."""
    packed = [name.removesuffix(_PACKED) for name in catalog if name.endswith(_PACKED)]
    scaled = [name.removesuffix(_SCALE) for name in catalog if name.endswith(_SCALE)]
    fp8 = [name.removesuffix(_CODES) for name in catalog if name.endswith(_CODES) and catalog[name].dtype == "F8_E4M3"]
    return sorted({*packed, *scaled, *fp8})


def _add_layer(catalog: Catalog, plan: Plan, layer: str, group: _Group | None) -> None:
    if group is None:
        raise CheckpointError(
            f"{layer} in '{catalog.folder}' must belong to a group of config_groups in config.json, for it has codes "
            "or a scale, and no target matches it; fetch the config again"
        )
    scheme = _weight_scheme(catalog, layer, group)
    is_fp4 = scheme.element == "f4E2M1FN"
    codes = catalog.require(layer + (_PACKED if is_fp4 else _CODES), "its codes")
    scales = catalog.require(layer + _SCALE, f"the scale of {codes.name}")
    second = None
    if scheme.second_level != "none":
        second = catalog.require(f"{layer}.weight_global_scale", "its global scale")
    weight = make_weight(layer + ".weight", scheme, codes, scales, second)
    plan.add(weight, _input(catalog, layer, group.inputs))


def _weight_scheme(catalog: Catalog, layer: str, group: _Group) -> Scheme:
    about = group.weights
    bits, strategy, size = _numbers(about, f"weights of {shown(group.name)}")
    if about.get("type", "int") != "float":
        raise refuse(f"{layer} in {shown(about.get('type', 'int'))} of {bits} bits", catalog, _INSTEAD)
    if about.get("symmetric", True) is not True:
        raise refuse(f"{layer} with zero points", catalog, _INSTEAD)
    is_mx, tile = about.get("scale_dtype") == "torch.uint8", about.get("block_structure")
    known: dict[tuple, Scheme] = {
        (8, "tensor"): FP8_TENSOR,
        (8, "channel"): FP8_ROW,
        (8, "block"): FP8_TILE,
        (8, "group", 128, False): FP8_GROUP,
        (8, "group", 32, True): MXFP8,
        (4, "group", 32, True): MXFP4,
        (4, "tensor_group", 16, False): NVFP4_DIVIDED,
    }
    is_grouped = strategy in ("group", "tensor_group")
    key = (bits, strategy, size, is_mx and strategy == "group") if is_grouped else (bits, strategy)
    if strategy == "block" and tile not in ([128, 128], "128x128"):
        raise refuse(f"{layer} in blocks of {shown(tile)}", catalog, "take one with blocks of 128x128")
    if key not in known:
        found = f"{layer} in floats of {bits} bits by {shown(strategy)}" + (f" of {size}" if is_grouped else "")
        raise refuse(found, catalog, _INSTEAD)
    if group.format is not None and group.format not in _FORMATS[known[key]]:
        raise refuse(f"{layer} in the format {shown(group.format)} with such weights", catalog, _INSTEAD)
    return known[key]


def _numbers(about: dict[str, Any], what: str) -> tuple[int | None, str | None, int | None]:
    """The bits, the strategy and the size of groups, each of its type."""
    bits, strategy, size = about.get("num_bits"), about.get("strategy"), about.get("group_size")
    for key, value, kind in (("num_bits", bits, int), ("strategy", strategy, str), ("group_size", size, int)):
        if value is not None and type(value) is not kind:
            raise CheckpointError(f"{key} of {what} in config.json must be of type {kind.__name__}, got {shown(value)}")
    return bits, strategy, size


def _input(catalog: Catalog, layer: str, about: dict[str, Any] | None) -> LayerInput:
    """How the input of a layer is quantized."""
    if about is None:
        return LayerInput(None)
    if about.get("type", "int") != "float":
        raise refuse(f"inputs of {layer} in {shown(about.get('type', 'int'))}", catalog, _INSTEAD)
    bits, strategy, size = _numbers(about, "input_activations")
    dynamic = about.get("dynamic", False)
    if dynamic not in (True, False, "local"):
        raise CheckpointError(
            f"dynamic of input_activations in config.json must be true, false or local, got {shown(dynamic)}"
        )
    if (bits, strategy) == (8, "tensor") and dynamic is False:
        return LayerInput(DYNAMIC["tensor"], catalog.require(f"{layer}.input_scale", "the static scale of its input"))
    if (bits, strategy, size) == (4, "tensor_group", 16):
        scale = None
        if dynamic is not True:
            scale = catalog.require(f"{layer}.input_global_scale", "the global scale of its input")
        return LayerInput(DYNAMIC["nvfp4"], scale, is_divisor=True)
    known = {
        (8, "tensor", None): "tensor",
        (8, "token", None): "row",
        (8, "group", 128): "group",
        (8, "group", 32): "mxfp8",
        (4, "group", 32): "mxfp4",
    }
    key = bits, strategy, size if strategy == "group" else None
    if key not in known or dynamic is not True:
        raise refuse(f"inputs of {layer} in {bits} bits by {shown(strategy)}", catalog, _INSTEAD)
    return LayerInput(DYNAMIC[known[key]])


def _keep_caches(catalog: Catalog, plan: Plan, about: Any) -> None:
    """Note how KV caches are quantized, and keep their scales."""
    plan.kept.update({name: catalog[name] for name in catalog if name.endswith(_CACHES)})
    about = read_object(about, "kv_cache_scheme")
    if not about:
        return
    if about.get("num_bits") != 8 or about.get("type") != "float":
        found = f"{shown(about.get('type'))} of {shown(about.get('num_bits'))} bits"
        raise refuse(f"KV caches in {found}", catalog, _INSTEAD)
    plan.kv_cache = "fp8"
    if about.get("dynamic", False) is True:
        return
    if about.get("strategy", "tensor") != "tensor":
        plan.not_run.append(
            f"scales of KV caches are meant to be by {shown(about.get('strategy'))}; caches have one per token and head"
        )
        return
    plan.kv_scales = find_scales(catalog)
