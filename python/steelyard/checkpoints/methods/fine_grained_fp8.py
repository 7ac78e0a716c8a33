"""The `fp8` and `mxfp8` of transformers: DeepSeek V3 and V4, Mistral, MiniMax and others."""

from typing import Any, NamedTuple

from steelyard.checkpoints.catalog import Catalog, Entry
from steelyard.checkpoints.plan import (
    DYNAMIC,
    FP8_TENSOR,
    FP8_TILE,
    MXFP4,
    MXFP8,
    LayerInput,
    Plan,
    layer_of,
    make_weight,
    refuse,
)
from steelyard.errors import CheckpointError, shown
from steelyard.formats.schemes import Scheme

FP8, MX = "fp8", "mxfp8"
_INSTEAD = "take one with blocks of 128x128, or with one scale per tensor"
_CACHES = (".k_scale", ".v_scale", ".kv_fake_quantizer.qscale_act")
_SCALES = {"_scale_inv": "", ".scale": ".weight", ".qscale_weight": ".weight"}
"""How names of scales end, and how those of their codes do instead. `_scale_inv` multiplies, too."""
_FP4_CODES = ("I8", "U8", "F4")


class _Format(NamedTuple):
    """What a config says about all layers."""

    dense: Scheme
    input: str
    """The key of the recipe of inputs."""
    is_static: bool
    has_fp4_experts: bool


def read_plan(catalog: Catalog, config: dict[str, Any]) -> Plan:
    """The plan of a checkpoint whose config has this `quantization_config`."""
    found = _format(catalog, config)
    plan = Plan(str(config["quant_method"]))
    for name, scale in _weights(catalog).items():
        with catalog.problems.checking(layer_of(name)):
            codes = catalog.require(name, f"the codes of {scale}")
            scales = catalog.require(scale, f"the scale of {name}")
            scheme = _scheme_of(catalog, codes, found)
            plan.add(make_weight(name, scheme, codes, scales), _input(catalog, name, found))
    plan.kept.update({name: catalog[name] for name in catalog if name.endswith(_CACHES)})
    return plan


def _format(catalog: Catalog, config: dict[str, Any]) -> _Format:
    if config.get("fmt", "e4m3") != "e4m3":
        raise refuse(f"codes in {shown(config['fmt'])}", catalog, "take one in e4m3")
    if config.get("modules_to_convert"):
        raise refuse("embeddings in FP8 (modules_to_convert)", catalog, "take one whose embeddings are plain")
    scheme = config.get("activation_scheme") or "dynamic"
    if scheme not in ("dynamic", "static"):
        raise CheckpointError(f"activation_scheme in config.json must be dynamic or static, got {shown(scheme)}")
    is_static = scheme == "static"
    # DeepSeek V4 says it about the model, transformers about its quantization.
    texts = catalog.config.get("text_config")
    holders = [config, catalog.config, texts if isinstance(texts, dict) else {}]
    has_fp4_experts = any(holder.get("expert_dtype") == "fp4" for holder in holders)
    if config["quant_method"].lower() == MX:
        _require_block(catalog, config.get("weight_block_size"), (None, [1, 32]))
        return _Format(MXFP8, "tensor" if is_static else "mxfp8", is_static, has_fp4_experts)
    block = config.get("weight_block_size", [128, 128])
    _require_block(catalog, block, (None, [128, 128]))
    if is_static:
        dynamic = "tensor"
    elif block is None:
        dynamic = "row"
    else:
        dynamic = "group-power-of-two" if config.get("scale_fmt") == "ue8m0" else "group"
    return _Format(FP8_TENSOR if block is None else FP8_TILE, dynamic, is_static, has_fp4_experts)


def _require_block(catalog: Catalog, block: Any, known: tuple[list[int] | None, ...]) -> None:
    if block not in known:
        raise refuse(f"weights in blocks of {shown(block)}", catalog, _INSTEAD)


def _weights(catalog: Catalog) -> dict[str, str]:
    """The codes of each quantized weight, and their scales, by name; one of them may be missing."""
    found: dict[str, str] = {}
    for name, entry in sorted(catalog.items()):
        end = next((end for end in _SCALES if name.endswith(end)), None)
        if end is None:
            if entry.dtype == "F8_E4M3":
                found.setdefault(name, _scales_of(catalog, name))
            continue
        codes = name.removesuffix(end) + _SCALES[end]
        # Other modules may have a parameter called scale.
        if end == ".scale" and (codes not in catalog or catalog[codes].dtype not in ("F8_E4M3", *_FP4_CODES)):
            continue
        found[codes] = name
    return found


def _scales_of(catalog: Catalog, codes: str) -> str:
    every = [codes.removesuffix(other) + end for end, other in _SCALES.items() if codes.endswith(other)]
    return next((name for name in every if name in catalog), f"{codes}_scale_inv")


def _scheme_of(catalog: Catalog, codes: Entry, found: _Format) -> Scheme:
    if codes.dtype not in _FP4_CODES:
        return found.dense
    if not found.has_fp4_experts:
        raise refuse(f"{codes.name} in {codes.dtype}, with no expert_dtype fp4 in config.json", catalog, _INSTEAD)
    return MXFP4


def _input(catalog: Catalog, codes: str, found: _Format) -> LayerInput:
    recipe = DYNAMIC[found.input]
    if not found.is_static:
        return LayerInput(recipe)
    layer = codes.removesuffix(".weight")
    mistral = catalog.get(f"{layer}.qscale_act")
    own = f"{layer}.activation_scale" if codes.endswith(".weight") else f"{layer}_activation_scale"
    return LayerInput(recipe, mistral or catalog.require(own, "the static scale of its input"))
