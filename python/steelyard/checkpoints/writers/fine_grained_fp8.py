"""transformers' own FP8 in tiles of 128x128, as DeepSeek V3 has it."""

from collections.abc import Sequence
from typing import Any

import torch

from steelyard.checkpoints.layer_formats import LayerFormat
from steelyard.checkpoints.tensors import Parts
from steelyard.errors import CheckpointError
from steelyard.formats.schemes import Scheme


def stored_scheme(layer: LayerFormat) -> Scheme:
    """FP8 in tiles of 128x128, with inputs in blocks of 1x128."""
    scheme, inputs = layer.weights, layer.inputs
    fits = scheme.block == "128x128" and scheme.element == "f8E4M3FN" and inputs is not None and inputs.block == "1x128"
    if not fits:
        raise CheckpointError(
            f"{layer.name} must be FP8 in 128x128 with inputs in 1x128 for the format fp8, got {scheme.element} in "
            f"{scheme.block}; choose the recipe fp8-block, or another format"
        )
    return scheme


def layer_tensors(layer: LayerFormat, parts: Parts) -> dict[str, torch.Tensor]:
    """The tensors of a layer; despite its name, `weight_scale_inv` is what codes are multiplied by."""
    return {
        f"{layer.name}.weight": parts.codes.view(torch.float8_e4m3fn),
        f"{layer.name}.weight_scale_inv": parts.scales,
    }


def cache_tensors(attention: str, key: torch.Tensor, value: torch.Tensor) -> dict[str, torch.Tensor]:
    """The format says nothing about KV caches."""
    return {}


def describe(
    layers: Sequence[LayerFormat], ignored: Sequence[str], *, has_caches: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config."""
    is_power = all(layer.inputs is not None and layer.inputs.power_of_two for layer in layers)
    config = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0" if is_power else "float",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": list(ignored),
    }
    return config, {}
