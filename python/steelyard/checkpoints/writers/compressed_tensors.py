"""compressed-tensors: what llm-compressor writes and vLLM reads."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from steelyard.checkpoints.layer_formats import LayerFormat
from steelyard.checkpoints.methods.compressed_tensors import METHOD
from steelyard.checkpoints.tensors import Parts
from steelyard.errors import CheckpointError
from steelyard.formats.schemes import CACHED_STATIC, Scheme

_VERSION = "0.20.0"
"""Whose files these are like."""
_FORMATS = {
    "tensor": "float-quantized",
    "row": "float-quantized",
    "block": "float-quantized",
    "mx": "mxfp8-quantized",
    "mxfp4": "mxfp4-pack-quantized",
    "nvfp4": "nvfp4-pack-quantized",
}


def stored_scheme(layer: LayerFormat) -> Scheme:
    """NVFP4 has its second level as a divisor."""
    scheme = layer.weights
    is_wide = scheme.family == "nvfp4" and scheme.block == "1x32"
    if scheme.element == "f8E5M2" or scheme.second_level == "row" or is_wide:
        raise CheckpointError(
            f"{layer.name} is {scheme.element} in {scheme.block}, which compressed-tensors cannot hold; choose another "
            "recipe or format"
        )
    if scheme.family == "nvfp4":
        return Scheme("f4E2M1FN", "1x16", "f8E4M3FN", source="divisor", second_level="tensor")
    return replace(scheme, block="1x32") if scheme.block == "32x32" else scheme


def layer_tensors(layer: LayerFormat, parts: Parts) -> dict[str, torch.Tensor]:
    """The tensors of a layer."""
    name, family = layer.name, layer.weights.family
    if family in ("mxfp4", "nvfp4"):
        found = {f"{name}.weight_packed": parts.codes}
    else:
        found = {f"{name}.weight": parts.codes.view(torch.float8_e4m3fn)}
    scales = parts.scales.view(torch.float8_e4m3fn) if family == "nvfp4" else parts.scales
    found[f"{name}.weight_scale"] = scales.reshape(1) if family == "tensor" else scales
    if parts.second_level is not None:
        found[f"{name}.weight_global_scale"] = parts.second_level.reshape(1)
    if layer.input_scale is not None:
        is_fp4 = layer.inputs is not None and layer.inputs.family == "nvfp4"
        given = torch.tensor([layer.input_scale], dtype=torch.float32)
        found[f"{name}.input_global_scale" if is_fp4 else f"{name}.input_scale"] = 1 / given if is_fp4 else given
    return found


def cache_tensors(attention: str, key: torch.Tensor, value: torch.Tensor) -> dict[str, torch.Tensor]:
    """Static scales of keys and values stand at their attention."""
    return {f"{attention}.k_scale": key.reshape(1), f"{attention}.v_scale": value.reshape(1)}


def describe(
    layers: Sequence[LayerFormat], ignored: Sequence[str], *, has_caches: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config: one group for all layers that are quantized alike."""
    kinds = {layer.kind: [each.name for each in layers if each.kind == layer.kind] for layer in layers}
    groups = {
        f"group_{index}": {
            "format": _format(weights, inputs),
            "input_activations": None if inputs is None else _arguments(inputs, is_input=True),
            "output_activations": None,
            "targets": ["Linear"] if len(kinds) == 1 else names,
            "weights": _arguments(weights, is_input=False),
        }
        for index, ((weights, inputs), names) in enumerate(kinds.items())
    }
    formats = {group["format"] for group in groups.values()}
    config = {
        "config_groups": groups,
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "global_compression_ratio": None,
        "ignore": list(ignored),
        "kv_cache_scheme": _arguments(CACHED_STATIC, is_input=True) if has_caches else None,
        "quant_method": METHOD,
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": _VERSION,
    }
    return config, {}


def _format(weights: Scheme, inputs: Scheme | None) -> str:
    found = _FORMATS[weights.family]
    return "naive-quantized" if found == "float-quantized" and inputs is None else found


def _arguments(scheme: Scheme, *, is_input: bool) -> dict[str, Any]:
    """How compressed-tensors describes a scheme."""
    found: dict[str, Any] = {"num_bits": 4 if scheme.element == "f4E2M1FN" else 8, "type": "float", "symmetric": True}
    is_static = scheme.source in ("static", "divisor", "delayed")
    found["dynamic"] = is_input and not is_static
    if scheme.family == "nvfp4":
        found |= {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
        return found | ({"dynamic": "local" if is_static else True} if is_input else {})
    if scheme.family in ("mx", "mxfp4"):
        return found | {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    if scheme.family == "block":
        tile = {"strategy": "block", "block_structure": [128, 128]}
        return found | (tile if scheme.is_tiled else {"strategy": "group", "group_size": 128})
    of_rows = "token" if is_input else "channel"
    return found | {"strategy": of_rows if scheme.family == "row" else "tensor"}
