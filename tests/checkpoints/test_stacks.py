"""Experts in one transposed tensor, as ModelOpt and FBGEMM have those of gpt-oss and Llama 4."""

from pathlib import Path
from typing import Any

import pytest
import torch
from folders import assert_same_bytes, fp8_rows, rounded_to_e4m3_rows, write_folder
from published import modelopt_values, write_modelopt
from safetensors.torch import load_file
from transformers import GptOssConfig, GptOssForCausalLM, Llama4ForCausalLM, Llama4TextConfig

import steelyard
from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.layers import WEIGHTS_ONLY
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.errors import CheckpointError

# All experts take all tokens, so that a rounded input does not choose another one.
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_local_experts": 2,
    "num_experts_per_tok": 2,
}
IDS = torch.arange(16).reshape(1, 16)


def gpt_oss() -> Any:
    return GptOssForCausalLM(GptOssConfig(**SIZES))


def llama4() -> Any:
    more = {"intermediate_size_mlp": 96, "interleave_moe_layer_step": 1}
    return Llama4ForCausalLM(Llama4TextConfig(**SIZES, **more))


def filled(model: Any) -> Any:
    """The model with values whose products neither vanish nor explode."""
    torch.manual_seed(0)
    model.eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(std=0.15) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    model.config.architectures = [type(model).__name__]
    return model


MODELS = {"gpt-oss": (gpt_oss, "mlp"), "llama4": (llama4, "feed_forward")}


def decoded_model(folder: Path, make: Any, values: dict[str, torch.Tensor]) -> Any:
    """The model in float32, with the values that the producer reads."""
    model = make().eval().requires_grad_(False)
    tensors = load_file(folder / "model.safetensors")
    for name, parameter in model.named_parameters():
        parameter.copy_(values[name] if name in values else tensors[name])
    return model


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits.float()


FORMATS = ["NVFP4", pytest.param("FP8", marks=pytest.mark.slow)]


def write_stacks(folder: Path, name: str, format: str) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Let ModelOpt write a model; the weights that it reads itself, and which of them are stacks."""
    make, block = MODELS[name]
    write_modelopt(folder, f"{format}_DEFAULT_CFG", model=filled(make()).to(torch.bfloat16))
    stacks = [f"model.layers.0.{block}.experts.{part}" for part in ("gate_up_proj", "down_proj")]
    return modelopt_values(folder), stacks


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("format", FORMATS)
def test_stacks_of_modelopt_decode_as_it_reads_them_and_are_saved_with_the_same_bytes(name, format, tmp_path):
    folder = tmp_path / "published"
    values, stacks = write_stacks(folder, name, format)
    catalog = read_catalog(folder)
    plan = read_plan(catalog)
    loaded = load_model(catalog, plan)
    assert set(stacks) <= values.keys() == plan.weights.keys()
    for weight, expected in values.items():
        assert torch.equal(loaded.get_parameter(weight).dequantize(dtype=torch.float32), expected), weight
    steelyard.save(steelyard.load(folder), tmp_path / "again")
    assert_same_bytes(folder, tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("format", "inputs", "most"), [("NVFP4", "e2m1 1x16", 0.5), ("FP8", "e4m3 tensor", 0.1)])
def test_stacks_of_modelopt_run(name, format, inputs, most, tmp_path):
    values, stacks = write_stacks(tmp_path, name, format)
    expected = logits_of(decoded_model(tmp_path, MODELS[name][0], values))
    net = steelyard.load(tmp_path, dtype=torch.float32)
    error = (logits_of(net) - expected).norm() / expected.norm()
    assert 1e-3 < error < most
    rows = {row.layer: row for row in net.explain().rows}
    assert [(rows[stack].lhs, rows[stack].reason) for stack in stacks] == [(f"{inputs} static", "")] * 2
    # Without rounded inputs, nothing but the order of sums differs.
    exact = steelyard.load(tmp_path, dtype=torch.float32, recipe=WEIGHTS_ONLY)
    assert (logits_of(exact) - expected).norm() < 1e-5 * expected.norm()


BOUND = 2.5
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": BOUND, "modules_to_not_convert": ["lm_head"]}


def write_fbgemm(folder: Path, model: Any) -> dict[str, torch.Tensor]:
    """Write a Llama 4 in FP8, let it have the values that its codes mean, and return these."""
    tensors, values = {}, {}
    for name, plain in model.state_dict().items():
        is_stack = ".experts." in name
        if not is_stack and not name.endswith("_proj.weight"):
            tensors[name] = plain
            continue
        # transformers quantizes the rows of transposes, and writes the scales of one stack as a row, of the other as
        # a column.
        codes, scales, decoded = (torch.from_numpy(each) for each in fp8_rows(plain.mT if is_stack else plain))
        codes = codes.view(torch.float8_e4m3fn)
        tensors[name] = codes.mT.contiguous() if is_stack else codes
        tensors[f"{name}_scale"] = scales.mT if name.endswith("gate_up_proj") else scales
        values[name] = decoded.mT if is_stack else decoded
        plain.copy_(values[name])
    write_folder(folder, {**model.config.to_dict(), "quantization_config": FBGEMM}, tensors)
    return values


def round_inputs(model: Any) -> None:
    """Let the layers of a Llama 4 round their inputs as FBGEMM does."""
    round_rows = rounded_to_e4m3_rows(BOUND)

    def rounded(values: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(round_rows(values.numpy()))

    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]),))
    experts = model.model.layers[0].feed_forward.experts

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        batches = hidden.reshape(len(experts.gate_up_proj), -1, hidden.shape[-1])
        gate, up = (rounded(batches) @ experts.gate_up_proj).chunk(2, -1)
        inner = up * torch.nn.functional.silu(gate)
        return (rounded(inner) @ experts.down_proj).reshape(hidden.shape)

    experts.forward = forward


def test_stacks_of_fbgemm_decode_run_and_are_saved_as_they_were(tmp_path: Path):
    model = filled(llama4())
    folder = tmp_path / "published"
    values = write_fbgemm(folder, model)
    tensors = load_file(folder / "model.safetensors")
    prefix = "model.layers.0.feed_forward.experts"
    assert tensors[f"{prefix}.gate_up_proj_scale"].shape == (2, 1, 192)
    assert tensors[f"{prefix}.down_proj_scale"].shape == (2, 64, 1)
    catalog = read_catalog(folder)
    loaded = load_model(catalog, read_plan(catalog))
    for name, expected in values.items():
        assert torch.equal(loaded.get_parameter(name).dequantize(), expected), name
    round_inputs(model)
    net = steelyard.load(folder)
    found, expected = logits_of(net), logits_of(model)
    # Sums in another order may move an input across a border between two codes; nothing else differs.
    assert (found - expected).norm() < 2e-3 * expected.norm()
    steelyard.save(net, tmp_path / "again")
    assert_same_bytes(folder, tmp_path / "again")
    with pytest.raises(CheckpointError, match=r"the input of .* is multiplied or bounded"):
        steelyard.save(net, tmp_path / "other", format="compressed-tensors")
