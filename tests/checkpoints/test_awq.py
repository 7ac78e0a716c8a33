"""ModelOpt's NVFP4_AWQ: inputs are multiplied by a factor per column before they are quantized."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_folders
import torch
from folders import assert_loaded, assert_same_bytes, nvfp4, small_llama, write_folder, write_quantized
from published import WIDTHS, bf16_llama, modelopt_values, write_modelopt
from safetensors.torch import load_file

import steelyard
from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.layers import WEIGHTS_ONLY
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.errors import CheckpointError

METHOD = {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ", "ignore": ["lm_head"]}
SECOND_LEVEL, INPUT_SCALE = np.float32(0.0007), np.float32(0.02)
IDS = torch.arange(24).reshape(1, 24) * 7 % 64


def factor_of(layer: str, columns: int) -> torch.Tensor:
    """A factor per column: other ones for each layer."""
    generator = torch.Generator().manual_seed(len(layer))
    return torch.empty(columns, dtype=torch.bfloat16).uniform_(0.25, 4, generator=generator)


def scaled_first(layer: str, plain: torch.Tensor):
    codes, scales, values = nvfp4(plain, SECOND_LEVEL)
    return {
        "weight": torch.from_numpy(codes),
        "weight_scale": torch.from_numpy(scales).view(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(SECOND_LEVEL),
        "input_scale": torch.tensor(INPUT_SCALE),
        "pre_quant_scale": factor_of(layer, plain.shape[1]),
    }, values


def logits_in_float64(decoded: Any, *, rounds_inputs: bool) -> torch.Tensor:
    """The logits of a model in float64 whose layers multiply their inputs by their factors, and then round them."""

    def multiply(layer: str):
        def hook(_: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            scaled = inputs[0] * factor_of(layer, inputs[0].shape[-1])
            rows = scaled.float().reshape(-1, scaled.shape[-1])
            return (
                (torch.from_numpy(nvfp4(rows, INPUT_SCALE)[2]).reshape(scaled.shape).double(),)
                if rounds_inputs
                else (scaled,)
            )

        return hook

    model = decoded.double()
    layers = {name: module for name, module in model.named_modules() if name.endswith("_proj")}
    hooks = [module.register_forward_pre_hook(multiply(name)) for name, module in layers.items()]
    with torch.no_grad():
        found = model(IDS).logits
    for hook in hooks:
        hook.remove()
    return found


def test_inputs_are_multiplied_before_they_are_rounded(tmp_path: Path):
    model = small_llama()
    folder = tmp_path / "published"
    values = write_quantized(folder, model, METHOD, scaled_first)
    assert_loaded(folder, values)
    net, exact = steelyard.load(folder), steelyard.load(folder, recipe=WEIGHTS_ONLY)
    for run, rounds in ((net, True), (exact, False)):
        expected = logits_in_float64(model, rounds_inputs=rounds)
        with torch.no_grad():
            assert (run(IDS).logits - expected).norm() < 1e-5 * expected.norm()
    rows = [row for row in net.explain().rows if row.layer.endswith("_proj")]
    assert [(row.lhs, row.rhs) for row in rows] == [("e2m1 1x16 static", "e2m1 1x16 static")] * 7
    steelyard.save(net, tmp_path / "again")
    assert_same_bytes(folder, tmp_path / "again")
    with pytest.raises(CheckpointError, match=r"the input of .*q_proj is multiplied or bounded"):
        steelyard.save(net, tmp_path / "other", format="compressed-tensors")


def test_factors_in_float32_leave_a_model_in_bf16(tmp_path: Path):
    model = small_llama()
    write_quantized(tmp_path, model, METHOD, scaled_first)
    tensors = load_file(tmp_path / "model.safetensors")
    wide = {name: each.float() if name.endswith(".pre_quant_scale") else each for name, each in tensors.items()}
    write_folder(tmp_path, {**model.config.to_dict(), "quantization_config": METHOD}, wide)
    catalog = read_catalog(tmp_path)
    layer = "model.layers.0.mlp.up_proj"
    rows = torch.randn(4, 128).to(torch.bfloat16)
    with torch.no_grad():
        found = load_model(catalog, read_plan(catalog), torch.bfloat16).get_submodule(layer)(rows)
    scaled = (rows * wide[f"{layer}.pre_quant_scale"]).to(torch.bfloat16).double()
    expected = scaled @ model.get_parameter(f"{layer}.weight").double().mT
    assert found.dtype == torch.bfloat16
    assert (found - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize(("size", "value"), [(96, 1.0), (1, 1.0), (128, float("nan")), (128, float("inf"))])
def test_a_layer_needs_a_finite_factor_per_column(size: int, value: float, tmp_path: Path):
    model = small_llama()
    write_quantized(tmp_path, model, METHOD, scaled_first)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.pre_quant_scale"] = torch.full((size,), value)
    write_folder(tmp_path, {**model.config.to_dict(), "quantization_config": METHOD}, tensors)
    with pytest.raises(CheckpointError, match=r"up_proj\.pre_quant_scale in model\.safetensors must have 128 finite"):
        steelyard.load(tmp_path)


def test_factors_of_experts_are_refused(tmp_path: Path):
    kind = next(kind for kind in small_folders.KINDS if kind.name == "modelopt-nvfp4-gpt-oss")
    small_folders.write_folder(tmp_path, kind)
    tensors = small_folders.tensors_of(kind)
    tensors["model.layers.0.mlp.experts.down_proj_pre_quant_scale"] = np.ones(96, np.float32)
    (tmp_path / "model.safetensors").write_bytes(small_folders.file_of(tensors))
    with pytest.raises(CheckpointError, match=r"experts\.down_proj must be a linear layer to adjust its input"):
        steelyard.load(tmp_path)


def set_factors(model: Any) -> None:
    """What ModelOpt's AWQ, which needs a GPU, leaves in a model."""
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.input_quantizer.pre_quant_scale = factor_of(name, module.in_features)


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "kept"), [(2, ["model.layers.0.self_attn.o_proj"]), (4, [])])
def test_exports_of_modelopt_with_factors_kept_and_folded(heads: int, kept: list[str], tmp_path: Path):
    """ModelOpt folds factors into the norm or the layer before where it can, and keeps the others."""
    model = bf16_llama(num_key_value_heads=heads)
    folder = write_modelopt(tmp_path / "published", "NVFP4_DEFAULT_CFG", model=model, change=set_factors)
    tensors, values = load_file(folder / "model.safetensors"), modelopt_values(folder)
    end = ".pre_quant_scale"
    assert [name.removesuffix(end) for name in tensors if name.endswith(end)] == kept
    catalog = read_catalog(folder)
    plan = read_plan(catalog)
    assert [layer for layer, each in plan.inputs.items() if each.factor is not None] == kept
    loaded = load_model(catalog, plan)
    for name, expected in values.items():
        assert torch.equal(loaded.get_parameter(name).dequantize(dtype=torch.float32), expected), name
    decoded = small_llama(**{**WIDTHS, "num_key_value_heads": heads}).double().requires_grad_(False)
    for name, parameter in decoded.named_parameters():
        parameter.copy_(values[name] if name in values else tensors[name])
    for layer in kept:
        factor = tensors[layer + end].double()
        decoded.get_submodule(layer).register_forward_pre_hook(lambda _, inputs, factor=factor: (inputs[0] * factor,))
    net = steelyard.load(folder, dtype=torch.float32, recipe=WEIGHTS_ONLY)
    with torch.no_grad():
        found, expected = net(IDS).logits, decoded(IDS).logits
    assert (found - expected).norm() < 1e-5 * expected.norm()
    steelyard.save(net, tmp_path / "again")
    assert_same_bytes(folder, tmp_path / "again")
