"""Folders that compressed-tensors and ModelOpt write themselves, and the values that they read from them."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from folders import small_llama
from safetensors.torch import load_file

WIDTHS = {"hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4, "dtype": "bfloat16"}
"""Multiples of 128: compressed-tensors makes no ragged tiles."""


def bf16_llama(**changes: Any) -> Any:
    """A small model in bf16."""
    return small_llama(**{**WIDTHS, **changes}).to(torch.bfloat16)


def write_compressed(folder: Path, presets: dict[str, list[str]], **options: Any) -> Path:
    """Quantize a small model with llm-compressor's library: presets, and the layers that each is for."""
    model = bf16_llama()
    groups = {f"group_{i}": preset_name_to_scheme(name, layers) for i, (name, layers) in enumerate(presets.items())}
    config = QuantizationConfig(config_groups=groups, ignore=["lm_head"], **options)
    apply_quantization_config(model, config)
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None and hasattr(module, "weight"):
            _calibrate(module, scheme.weights)
        if hasattr(module, "k_scale"):
            module.k_scale.data.fill_(0.0031)
            module.v_scale.data.fill_(0.0017)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    return folder


def _calibrate(module: Any, arguments: Any) -> None:
    """Fill the scales of a layer as an observer would."""
    weight, strategy = module.weight.data, str(getattr(arguments.strategy, "value", arguments.strategy))
    rows = len(weight)
    blocks = {
        "tensor": weight.reshape(1, -1),
        "channel": weight.unsqueeze(1),
        "block": weight.reshape(rows // 128, 128, -1, 128).transpose(1, 2).flatten(2),
    }
    values = blocks[strategy] if strategy in blocks else weight.reshape(rows, -1, arguments.group_size)
    level = None
    if strategy == "tensor_group":
        level = generate_gparam(weight.min(), weight.max())
        module.weight_global_scale.data.copy_(level)
    scales, _ = calculate_qparams(values.amin(-1), values.amax(-1), arguments, global_scale=level)
    module.weight_scale.data.copy_(scales.reshape(module.weight_scale.shape))
    if hasattr(module, "input_scale"):
        module.input_scale.data.fill_(0.0107)
    if hasattr(module, "input_global_scale"):
        module.input_global_scale.data.fill_(511.3)


def compressed_values(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that compressed-tensors itself decodes."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    tensors = load_file(folder / "model.safetensors")
    found = {}
    for name in [name for name in tensors if name.endswith(".weight_scale")]:
        layer = name.removesuffix(".weight_scale")
        group = _group_of(layer, config)
        reader: Any = BaseCompressor.get_value_from_registry(group.get("format") or config["format"])
        own = {key.removeprefix(f"{layer}."): value for key, value in tensors.items() if key.startswith(f"{layer}.")}
        found[f"{layer}.weight"] = reader.decompress(own, QuantizationScheme(**group))["weight"]
    return found


def _group_of(layer: str, config: dict[str, Any]) -> dict[str, Any]:
    groups = list(config["config_groups"].values())
    named = [group for group in groups if layer in group["targets"]]
    patterns = [
        group for group in groups if any(t.startswith("re:") and re.match(t[3:], layer) for t in group["targets"])
    ]
    return (named or patterns or [group for group in groups if "Linear" in group["targets"]])[0]


def write_modelopt(
    folder: Path, name: str, *caches: str, model: Any = None, change: Callable[[Any], None] = lambda model: None
) -> Path:
    """Quantize a small model, by default a Llama, with ModelOpt by one of its configs, and its KV caches by those of
    others; `change` it, and export it."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    model = model or bf16_llama()
    ids = torch.arange(32).reshape(2, 16) % 64
    config = copy.deepcopy(getattr(mtq, name))
    for other in caches:
        config["quant_cfg"] += getattr(mtq, other)["quant_cfg"]
    mtq.quantize(model, config, lambda model: model(ids))
    change(model)
    export_hf_checkpoint(model, export_dir=folder)
    return folder


def modelopt_values(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that ModelOpt itself decodes, in float32."""
    from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

    algorithm = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_algo"].upper()
    tensors = load_file(folder / "model.safetensors")
    found = _stack_values(algorithm, tensors)
    for name in [name for name in tensors if name.endswith(".weight_scale")]:
        weight = name.removesuffix("_scale")
        codes, scales = tensors[weight], tensors[name]
        shape = torch.Size((codes.shape[0], codes.shape[1] * (2 if codes.dtype == torch.uint8 else 1)))
        if algorithm in ("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8"):
            size = shape[1] // scales.shape[1]
            made = NVFP4QTensor(shape, torch.float32, codes)
            found[weight] = made.dequantize(
                scale=scales, double_scale=tensors[f"{weight}_scale_2"], block_sizes={-1: size}, fast=False
            )
        elif algorithm == "MXFP8":
            found[weight] = MXFP8QTensor(shape, torch.float32, codes).dequantize(scale=scales, block_sizes={-1: 32})
        elif algorithm == "MXFP4":
            found[weight] = MXFP4QTensor(shape, torch.float32, codes).dequantize(scale=scales, block_sizes={-1: 32})
        elif scales.dim() > 1:
            rows, _, columns, _ = scales.shape
            found[weight] = (codes.float().reshape(rows, 128, columns, 128) * scales).reshape(shape)
        else:
            found[weight] = codes.float() * scales.reshape(-1, 1)
    return found


def _stack_values(algorithm: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts in one tensor, which ModelOpt quantizes transposed: its codes and scales run along the second dim."""
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    found = {}
    for name in [name for name in tensors if name.endswith("_proj_weight_scale")]:
        weight = name.removesuffix("_weight_scale")
        codes, scales = tensors[weight], tensors[name]
        if algorithm == "FP8":
            found[weight] = codes.float() * scales
            continue
        codes, scales = codes.mT.contiguous(), scales.mT.contiguous()
        shape = torch.Size((*codes.shape[:2], 2 * codes.shape[2]))
        made = NVFP4QTensor(shape, torch.float32, codes)
        level = tensors[f"{weight}_weight_scale_2"]
        found[weight] = made.dequantize(scale=scales, double_scale=level, block_sizes={-1: 16}, fast=False).mT
    return found
