"""Experts, which files hold one by one and models as one stack per layer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_folders
import torch
from published import compressed_values
from safetensors.torch import load_file
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import steelyard
from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.conversion import convert
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.errors import CheckpointError

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "dtype": "bfloat16",
}
IDS = torch.arange(16).reshape(1, 16)


def qwen() -> Any:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, num_experts=4, moe_intermediate_size=32, head_dim=32))


def mixtral() -> Any:
    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4, intermediate_size=96))


MODELS = {"qwen": (qwen, ("gate_proj", "up_proj", "down_proj")), "mixtral": (mixtral, ("w1", "w3", "w2"))}


def make_plain(model: str) -> Any:
    torch.manual_seed(0)
    made = MODELS[model][0]().to(torch.bfloat16).eval()
    with torch.no_grad():
        for index, parameter in enumerate(made.parameters()):
            parameter.normal_(std=0.02 * (index + 1)) if parameter.dim() > 1 else parameter.fill_(1)
    return made


def write_plain(folder: Path, model: str) -> Path:
    make_plain(model).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "recipe",
    ["nvfp4", "fp8-current", *(pytest.param(each, marks=pytest.mark.slow) for each in ("fp8-row", "mxfp4/mxfp8"))],
)
def test_experts_decode_as_compressed_tensors_reads_them(model: str, recipe: str, tmp_path: Path):
    folder = tmp_path / "quantized"
    list(convert(write_plain(tmp_path / "plain", model), folder, recipe))
    expected = compressed_values(folder)
    catalog = read_catalog(folder)
    loaded = load_model(catalog, read_plan(catalog))
    experts = loaded.model.layers[0].mlp.experts
    gate, up, down = MODELS[model][1]
    prefix = next(name for name in expected if ".experts.0." in name).split(".experts.")[0]
    for index in range(4):
        one = {part: expected[f"{prefix}.experts.{index}.{part}.weight"] for part in (gate, up, down)}
        joined = torch.cat([one[gate], one[up]]).to(torch.bfloat16)
        assert torch.equal(experts.gate_up_proj.dequantize()[index], joined)
        assert torch.equal(experts.down_proj.dequantize()[index], one[down].to(torch.bfloat16))


@pytest.mark.parametrize("recipe", ["nvfp4", pytest.param("fp8-row", marks=pytest.mark.slow)])
def test_experts_run_quantized_and_are_saved_with_the_same_bytes(recipe: str, tmp_path: Path):
    folder, again = tmp_path / "quantized", tmp_path / "again"
    list(convert(write_plain(tmp_path / "plain", "qwen"), folder, recipe))
    net = steelyard.load(folder)
    with torch.no_grad():
        found = net(IDS).logits
    rows = {row.layer: row for row in net.explain().rows if "experts" in row.layer}
    assert [row.reason for row in rows.values()] == ["", ""]
    catalog = read_catalog(folder)
    decoded = load_model(catalog, read_plan(catalog), torch.float32)
    for name, parameter in list(decoded.named_parameters()):
        module = decoded.get_submodule(name.rpartition(".")[0])
        module._parameters[name.rpartition(".")[2]] = torch.nn.Parameter(parameter.dequantize().float())
    with torch.no_grad():
        expected = decoded(IDS).logits
    # Inputs are rounded to four or eight bits, too.
    assert (found.float() - expected).norm() < (0.5 if recipe == "nvfp4" else 0.1) * expected.norm()
    steelyard.save(net, again)
    before, after = load_file(folder / "model.safetensors"), load_file(again / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), after[name].reshape(-1).view(torch.uint8)), name


@pytest.mark.parametrize("model", MODELS)
def test_experts_of_a_net_that_was_never_loaded_are_saved_as_they_are_converted(model: str, tmp_path: Path):
    list(convert(write_plain(tmp_path / "plain", model), tmp_path / "converted", "mxfp8"))
    steelyard.save(steelyard.compile(make_plain(model), "mxfp8", overrides={"lm_head": None}), tmp_path / "saved")
    converted, saved = (load_file(tmp_path / each / "model.safetensors") for each in ("converted", "saved"))
    experts = [name for name in converted if ".experts." in name]
    assert len(experts) == 4 * 3 * 2
    for name in experts:
        assert torch.equal(saved[name].view(torch.uint8), converted[name].view(torch.uint8)), name


def test_gate_and_up_share_their_second_scale(tmp_path: Path):
    folder = tmp_path / "quantized"
    list(convert(write_plain(tmp_path / "plain", "qwen"), folder, "nvfp4"))
    tensors = load_file(folder / "model.safetensors")
    for index in range(4):
        layer = f"model.layers.0.mlp.experts.{index}"
        scales = [tensors[f"{layer}.{part}.weight_global_scale"] for part in ("gate_proj", "up_proj")]
        assert torch.equal(*scales)
    attention = [tensors[f"model.layers.0.self_attn.{part}_proj.weight_global_scale"] for part in "qkv"]
    assert torch.equal(attention[0], attention[1])
    assert torch.equal(attention[0], attention[2])


@pytest.mark.parametrize(("name", "end"), [("ct-nvfp4", "weight_global_scale"), ("modelopt-nvfp4", "weight_scale_2")])
def test_gate_and_up_with_second_scales_of_their_own_are_refused(name: str, end: str, tmp_path: Path):
    kind = next(kind for kind in small_folders.KINDS if kind.name == f"{name}-experts")
    small_folders.write_folder(tmp_path, replace(kind, shards=1))
    tensors = small_folders.tensors_of(kind)
    tensors[f"model.layers.0.mlp.experts.1.up_proj.{end}"] *= 2
    (tmp_path / "model.safetensors").write_bytes(small_folders.file_of(tensors))
    message = (
        r"experts\.1\.up_proj\..* must have the second scale of the weight that it is joined with.*steelyard convert"
    )
    with pytest.raises(CheckpointError, match=message):
        steelyard.load(tmp_path)
