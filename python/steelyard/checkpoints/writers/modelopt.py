"""ModelOpt's unified export for Hugging Face: what TensorRT-LLM and vLLM read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from steelyard.checkpoints.layer_formats import LayerFormat
from steelyard.checkpoints.methods.modelopt import FILE, METHOD
from steelyard.checkpoints.tensors import Parts
from steelyard.errors import CheckpointError
from steelyard.formats.schemes import Scheme

_MIXED = "MIXED_PRECISION"
_ALGORITHMS: dict[tuple[str, str, str | None, bool], str] = {
    ("tensor", "tensor", "tensor", True): "FP8",
    ("row", "row", "row", False): "FP8_PER_CHANNEL_PER_TOKEN",
    ("block", "128x128", "block", False): "fp8_pb_wo",
    ("nvfp4", "1x16", "nvfp4", True): "NVFP4",
    ("nvfp4", "1x16", None, False): "W4A16_NVFP4",
    ("nvfp4", "1x32", "tensor", True): "W4A8_NVFP4_FP8",
    ("mx", "1x32", "mx", False): "MXFP8",
    ("mxfp4", "1x32", "mxfp4", False): "mxfp4",
    ("mxfp4", "1x32", "tensor", True): "W4A8_MXFP4_FP8",
}
"""By family and block of weights, family of inputs, and whether those have a static scale."""
_GROUP_SIZES = {"nvfp4": 16, "mx": 32, "mxfp4": 32}


def stored_scheme(layer: LayerFormat) -> Scheme:
    """NVFP4 has its second level as a multiplier."""
    _algorithm(layer)
    scheme = layer.weights
    if scheme.family == "nvfp4":
        block = "1x32" if scheme.block == "1x32" else "1x16"
        return Scheme("f4E2M1FN", block, "f8E4M3FN", source="static", second_level="tensor")
    return replace(scheme, block="1x32") if scheme.block == "32x32" else scheme


def layer_tensors(layer: LayerFormat, parts: Parts) -> dict[str, torch.Tensor]:
    """The tensors of a layer."""
    name, family = layer.name, layer.weights.family
    is_fp4 = family in ("mxfp4", "nvfp4")
    scales = parts.scales.view(torch.float8_e4m3fn) if family == "nvfp4" else parts.scales
    if family == "row":
        scales = scales.reshape(-1)
    if family == "block":
        rows, columns = scales.shape
        scales = scales.reshape(rows, 1, columns, 1)
    found = {
        f"{name}.weight": parts.codes if is_fp4 else parts.codes.view(torch.float8_e4m3fn),
        f"{name}.weight_scale": scales,
    }
    if parts.second_level is not None:
        found[f"{name}.weight_scale_2"] = parts.second_level.reshape(())
    if layer.input_scale is not None:
        found[f"{name}.input_scale"] = torch.tensor(layer.input_scale, dtype=torch.float32)
    return found


def cache_tensors(attention: str, key: torch.Tensor, value: torch.Tensor) -> dict[str, torch.Tensor]:
    """Static scales of keys and values stand at what projects them."""
    return {f"{attention}.k_proj.k_scale": key, f"{attention}.v_proj.v_scale": value}


def describe(
    layers: Sequence[LayerFormat], ignored: Sequence[str], *, has_caches: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config, and the file in which ModelOpt writes it once more."""
    algorithms = {layer.name: _algorithm(layer) for layer in layers}
    chosen = set(algorithms.values())
    about: dict[str, Any] = {"quant_algo": chosen.pop() if len(chosen) == 1 else _MIXED}
    size = _GROUP_SIZES.get(layers[0].weights.family)
    if about["quant_algo"] == _MIXED:
        about["quantized_layers"] = {name: {"quant_algo": algorithm} for name, algorithm in algorithms.items()}
    elif size is not None:
        about["group_size"] = size
    producer = {"producer": {"name": "steelyard", "version": "0.1.0"}}
    config = {**about, "ignore": list(ignored), **producer, "quant_method": METHOD}
    if has_caches:
        config["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    caches = {"kv_cache_quant_algo": "FP8" if has_caches else None}
    file = {**producer, "quantization": {**about, **caches, "exclude_modules": list(ignored)}}
    return config, {FILE: file}


def _algorithm(layer: LayerFormat) -> str:
    scheme, inputs = layer.weights, layer.inputs
    block = {"16x16": "1x16", "32x32": "1x32"}.get(scheme.block, scheme.block)
    key = scheme.family, block, None if inputs is None else inputs.family, layer.input_scale is not None
    if key in _ALGORITHMS and scheme.element != "f8E5M2":
        return _ALGORITHMS[key]
    if (*key[:3], True) in _ALGORITHMS:
        raise CheckpointError(
            f"{layer.name} must have a static scale of its input to be written for ModelOpt, and has none; give the "
            "recipe, or steelyard.save, input_scales={layer: scale}, quantize weights only (as in 'nvfp4/none'), or "
            "choose format='compressed-tensors'"
        )
    found = f"{scheme.element} in {scheme.block} with inputs in {'high precision' if inputs is None else inputs.block}"
    raise CheckpointError(f"{layer.name} is {found}, for which ModelOpt has no quant_algo; choose another format")
