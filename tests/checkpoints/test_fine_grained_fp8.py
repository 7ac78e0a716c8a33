"""Checkpoints of transformers' fp8 and mxfp8."""

import ml_dtypes
import numpy as np
import pytest
import torch
from folders import (
    assert_loaded,
    assert_runs,
    e4m3,
    fp8_blocks,
    fp8_tensor,
    from_e4m3,
    mxfp4,
    mxfp8,
    rounded_to_e4m3,
    rounded_to_mxfp8,
    small_llama,
    write_folder,
    write_quantized,
)

from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.checkpoints.models import find_targets, make_empty_model, read_config
from steelyard.checkpoints.tensors import read_parts, stored_parts
from steelyard.errors import CheckpointError
from steelyard.recipes import Float8BlockScaling, Float8CurrentScaling, Float8RowScaling, MXFP8BlockScaling

BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
POWERS = {**BLOCKS, "scale_fmt": "ue8m0"}
STATIC_SCALE = np.float32(40 / 448)
"""Few inputs of the small model are beyond 40; they saturate."""


def tiles(dtype: torch.dtype, scale: str = "weight_scale_inv"):
    """What quantizes a weight in tiles, with scales in a dtype."""

    def quantize(layer: str, plain: torch.Tensor):
        codes, scales, values = fp8_blocks(plain, is_power_of_two=dtype is not torch.float32)
        return {"weight": fp8_tensor(codes), scale: torch.from_numpy(scales).to(dtype)}, values

    return quantize


def one_scale(weight: str, activation: str | None):
    """What quantizes a weight with one scale."""

    def quantize(layer: str, plain: torch.Tensor):
        scale = np.float32(np.abs(plain.numpy()).max() / 448)
        codes = e4m3(plain.numpy() / scale)
        parts = {"weight": fp8_tensor(codes), weight: torch.tensor(scale)}
        if activation:
            parts[activation] = torch.tensor(STATIC_SCALE)
        return parts, from_e4m3(codes) * scale

    return quantize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu], ids=str)
def test_tiles_of_ragged_layers_decode_to_code_times_scale(tmp_path, dtype):
    model = small_llama()
    values = write_quantized(tmp_path, model, BLOCKS, tiles(dtype))
    assert values["model.layers.0.mlp.gate_proj.weight"].shape == (192, 128)
    assert values["model.layers.0.mlp.down_proj.weight"].shape == (128, 192)
    assert_loaded(tmp_path, values)


def test_a_ragged_projection_of_deepseek_has_five_rows_of_scales(tmp_path):
    codes, scales, _ = fp8_blocks(torch.randn(576, 256))
    assert scales.shape == (5, 2)
    name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
    tensors = {name: fp8_tensor(codes), f"{name}_scale_inv": torch.from_numpy(scales)}
    plan = read_plan(read_catalog(write_folder(tmp_path, {"quantization_config": BLOCKS}, tensors)))
    parts = read_parts(plan.weights[name])
    np.testing.assert_array_equal(parts.codes.numpy(), codes)
    np.testing.assert_array_equal(parts.scales.numpy(), scales)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("config", "dtype", "recipe"),
    [
        (BLOCKS, torch.float32, Float8BlockScaling(power_of_two=False)),
        (POWERS, torch.float8_e8m0fnu, Float8BlockScaling()),
    ],
    ids=["float", "ue8m0"],
)
def test_a_net_runs_as_the_decoded_model(tmp_path, config, dtype, recipe):
    model = small_llama()
    write_quantized(tmp_path, model, config, tiles(dtype))
    plan = read_plan(read_catalog(tmp_path))
    assert {each.recipe for each in plan.inputs.values()} == {recipe}
    is_power_of_two = recipe.power_of_two
    net = assert_runs(tmp_path, model, rounded_to_e4m3((1, 128), is_power_of_two=is_power_of_two))
    assert str(net.explain()).count("e4m3 128x128") == 7


@pytest.mark.parametrize("scale", ["scale", "qscale_weight"])
def test_other_names_of_the_scale(tmp_path, scale):
    values = write_quantized(tmp_path, small_llama(), BLOCKS, tiles(torch.float32, scale))
    assert_loaded(tmp_path, values)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("weight", "activation"), [("weight_scale_inv", "activation_scale"), ("qscale_weight", "qscale_act")]
)
def test_static_scales_of_inputs(tmp_path, weight, activation):
    config = {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}
    model = small_llama()
    values = write_quantized(tmp_path, model, config, one_scale(weight, activation))
    plan = read_plan(read_catalog(tmp_path))
    layer = "model.layers.0.mlp.up_proj"
    assert plan.inputs[layer].recipe == Float8CurrentScaling(fp8_format="E4M3")
    assert plan.inputs[layer].scale.name == f"{layer}.{activation}"
    assert_loaded(tmp_path, values)
    net = assert_runs(tmp_path, model, lambda rows: from_e4m3(e4m3(rows / STATIC_SCALE)) * STATIC_SCALE)
    formats = [(row.lhs, row.rhs) for row in net.explain().rows if row.is_quantized]
    assert formats == [("e4m3 tensor static", "e4m3 tensor")] * 7


def test_one_scale_per_tensor_with_dynamic_inputs(tmp_path):
    config = {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "dynamic"}
    model = small_llama()
    values = write_quantized(tmp_path, model, config, one_scale("weight_scale_inv", None))
    assert_loaded(tmp_path, values)
    inputs = read_plan(read_catalog(tmp_path)).inputs
    assert {each.recipe for each in inputs.values()} == {Float8RowScaling(fp8_format="E4M3")}
    net = assert_runs(tmp_path, model, rounded_to_e4m3((1, 0)))
    assert str(net.explain()).count("e4m3 row  e4m3 tensor") == 7


def test_mxfp8_of_minimax(tmp_path):
    def quantize(layer: str, plain: torch.Tensor):
        codes, scales, values = mxfp8(plain)
        return {"weight": fp8_tensor(codes), "weight_scale_inv": torch.from_numpy(scales)}, values

    model = small_llama()
    config = {"quant_method": "mxfp8", "weight_block_size": [1, 32], "ignored_layers": ["lm_head"]}
    values = write_quantized(tmp_path, model, config, quantize)
    assert_loaded(tmp_path, values)
    inputs = read_plan(read_catalog(tmp_path)).inputs
    assert {each.recipe for each in inputs.values()} == {MXFP8BlockScaling()}
    net = assert_runs(tmp_path, model, rounded_to_mxfp8)
    assert str(net.explain()).count("e4m3 1x32  e4m3 1x32") == 7


def test_the_values_are_those_of_transformers(tmp_path):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    codes, scales, _ = fp8_blocks(torch.randn(256, 384))
    tensors = {"a.weight": fp8_tensor(codes), "a.weight_scale_inv": torch.from_numpy(scales)}
    plan = read_plan(read_catalog(write_folder(tmp_path, {"quantization_config": BLOCKS}, tensors)))
    expected = Fp8Dequantize(None)._dequantize_one(tensors["a.weight"], tensors["a.weight_scale_inv"])
    parts = read_parts(plan.weights["a.weight"])
    spread = parts.scales.numpy().repeat(128, 0).repeat(128, 1)
    np.testing.assert_array_equal(from_e4m3(parts.codes.numpy()) * spread, expected.numpy())


def small_deepseek_v4(folder):
    """Names and formats of DeepSeek V4: a layer of attention in FP8, and experts in FP4."""
    tensors = {}
    for name, shape in {"attn.wq_a": (96, 128), "attn.wkv": (64, 128), "ffn.shared_experts.w1": (64, 128)}.items():
        codes, scales, _ = fp8_blocks(torch.randn(shape), is_power_of_two=True)
        tensors[f"layers.0.{name}.weight"] = fp8_tensor(codes)
        tensors[f"layers.0.{name}.scale"] = torch.from_numpy(scales).to(torch.float8_e8m0fnu)
    for expert in range(2):
        for name, shape in {"w1": (64, 128), "w3": (64, 128), "w2": (128, 64)}.items():
            codes, scales, _ = mxfp4(torch.randn(shape))
            prefix = f"layers.0.ffn.experts.{expert}.{name}"
            tensors[f"{prefix}.weight"] = torch.from_numpy(codes).view(torch.int8)
            tensors[f"{prefix}.scale"] = torch.from_numpy(scales).view(torch.float8_e8m0fnu)
    tensors["layers.0.attn_norm.weight"] = torch.ones(128, dtype=torch.bfloat16)
    tensors["layers.0.hc_attn_scale"] = torch.ones(3)
    config = {"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "expert_dtype": "fp4"}
    sizes = {
        "hidden_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 64,
        "q_lora_rank": 96,
        "moe_intermediate_size": 64,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "vocab_size": 64,
    }
    write_folder(folder, {**config, **sizes, "quantization_config": POWERS}, tensors)
    return tensors


def test_deepseek_v4_has_fp8_layers_and_fp4_experts(tmp_path):
    tensors = small_deepseek_v4(tmp_path)
    plan = read_plan(read_catalog(tmp_path))
    scaled = {name.removesuffix(".scale") for name in tensors if name.endswith(".scale")}
    assert set(plan.weights) == {f"{layer}.weight" for layer in scaled}
    assert plan.weights["layers.0.attn.wq_a.weight"].scheme.block == "128x128"
    expert = plan.weights["layers.0.ffn.experts.1.w2.weight"]
    assert (expert.scheme.element, expert.scheme.block, expert.shape) == ("f4E2M1FN", "1x32", (128, 64))
    assert {each.recipe for each in plan.inputs.values()} == {Float8BlockScaling()}
    assert "layers.0.hc_attn_scale" not in plan.used()


def test_the_names_of_deepseek_v4_are_those_of_its_model(tmp_path):
    small_deepseek_v4(tmp_path)
    catalog = read_catalog(tmp_path)
    model = make_empty_model(read_config(tmp_path, catalog.config), torch.bfloat16)
    targets = find_targets(model, catalog, read_plan(catalog))
    assert "model.layers.0.self_attn.q_a_proj.weight" in targets
    assert len(targets["model.layers.0.mlp.experts.gate_up_proj"].weights) == 4
    assert len(targets["model.layers.0.mlp.experts.down_proj"].weights) == 2


@pytest.mark.parametrize("dtype", [torch.float8_e8m0fnu, torch.uint8], ids=str)
def test_parts_of_fp4_experts_are_read_and_written_byte_for_byte(tmp_path, dtype):
    codes, scales, _ = mxfp4(torch.randn(64, 96))
    name = "layers.0.ffn.experts.0.w1"
    tensors = {f"{name}.weight": torch.from_numpy(codes).view(torch.int8)}
    tensors[f"{name}.scale"] = torch.from_numpy(scales).view(dtype)
    config = {"expert_dtype": "fp4", "quantization_config": POWERS}
    weight = read_plan(read_catalog(write_folder(tmp_path, config, tensors))).weights[f"{name}.weight"]
    parts = read_parts(weight)
    np.testing.assert_array_equal(parts.codes.numpy(), codes)
    np.testing.assert_array_equal(parts.scales.numpy(), scales)
    for stored, tensor in stored_parts(weight, parts).items():
        assert tensor.dtype == tensors[stored].dtype
        assert torch.equal(tensor.view(torch.uint8), tensors[stored].view(torch.uint8))


def test_powers_of_two_of_tiles_are_written_as_they_were(tmp_path):
    exponents = np.array([[0, 1], [127, 254]], np.uint8)
    assert float(exponents.view(ml_dtypes.float8_e8m0fnu)[0, 0]) == 2.0**-127
    tensors = {"a.weight": fp8_tensor(e4m3(np.ones((130, 256), np.float32)))}
    tensors["a.scale"] = torch.from_numpy(exponents).view(torch.float8_e8m0fnu)
    catalog = read_catalog(write_folder(tmp_path, {"quantization_config": POWERS}, tensors))
    weight = read_plan(catalog).weights["a.weight"]
    parts = read_parts(weight)
    assert parts.scales.tolist() == [[2.0**-127, 2.0**-126], [1.0, 2.0**127]]
    stored = stored_parts(weight, parts)["a.scale"].view(torch.uint8)
    assert torch.equal(stored, torch.from_numpy(exponents))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_block_size": [64, 64]}, r"blocks of \[64, 64\].*128x128"),
        ({"fmt": "e5m2"}, "codes in 'e5m2'"),
        ({"modules_to_convert": ["embed_tokens"]}, "embeddings in FP8"),
        ({"activation_scheme": "offline"}, "must be dynamic or static, got 'offline'"),
        ({"activation_scheme": "static"}, r"a.activation_scale, the static scale of its input"),
        ({"quant_method": "mxfp8"}, r"blocks of \[128, 128\]"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path, changes, message):
    codes, scales, _ = fp8_blocks(torch.randn(128, 128))
    tensors = {"a.weight": fp8_tensor(codes), "a.weight_scale_inv": torch.from_numpy(scales)}
    catalog = read_catalog(write_folder(tmp_path, {"quantization_config": {**BLOCKS, **changes}}, tensors))
    with pytest.raises(CheckpointError, match=message):
        read_plan(catalog)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.weight"], "a.weight_scale_inv, the scale of a.weight"),
        (["a.weight_scale_inv"], "a.weight, the codes of a.weight_scale_inv"),
    ],
)
def test_a_weight_needs_codes_and_scales(tmp_path, names, message):
    codes, scales, _ = fp8_blocks(torch.randn(128, 128))
    tensors = {"a.weight": fp8_tensor(codes), "a.weight_scale_inv": torch.from_numpy(scales)}
    folder = write_folder(tmp_path, {"quantization_config": BLOCKS}, {name: tensors[name] for name in names})
    with pytest.raises(CheckpointError, match=message):
        read_plan(read_catalog(folder))


def test_integers_are_not_taken_for_fp4(tmp_path):
    tensors = {"a.weight": torch.ones(128, 64, dtype=torch.int8), "a.weight_scale_inv": torch.ones(128, 4)}
    folder = write_folder(tmp_path, {"quantization_config": BLOCKS}, tensors)
    with pytest.raises(CheckpointError, match=r"a\.weight in I8, with no expert_dtype fp4"):
        read_plan(read_catalog(folder))
