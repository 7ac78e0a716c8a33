"""DeepSeek V4 from its own names to logits: layers in FP8 with powers of two as scales, and experts in FP4."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import assert_same_bytes, fp8_blocks, fp8_tensor, mxfp4, write_folder
from safetensors.torch import load_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

import steelyard
from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.layers import WEIGHTS_ONLY
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.tensor.quantized_tensor import QuantizedTensor

pytestmark = pytest.mark.slow
METHOD = {
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
    "scale_fmt": "ue8m0",
    "fmt": "e4m3",
}
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "q_lora_rank": 96,
    "o_groups": 2,
    "o_lora_rank": 64,
    "moe_intermediate_size": 64,
    "n_routed_experts": 2,
    "num_experts_per_tok": 2,
    "vocab_size": 64,
}
OTHER_NAMES = {"embed_tokens.": "embed.", "hc_head.hc_": "hc_head_"}
"""What the publisher calls tensors that transformers writes by names of its own."""
IDS = torch.arange(20).reshape(1, 20)


def small_model() -> Any:
    torch.manual_seed(0)
    model = DeepseekV4ForCausalLM(DeepseekV4Config(**SIZES)).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(std=0.1) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    return model


def is_quantized(name: str) -> bool:
    return name.endswith(".weight") and (".attn.w" in name or ".experts." in name or ".shared_experts." in name)


def quantized(name: str, plain: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors of a weight, and its values."""
    if ".experts." in name:
        codes, scales, values = mxfp4(plain)
        parts = torch.from_numpy(codes).view(torch.int8), torch.from_numpy(scales).view(torch.float8_e8m0fnu)
    else:
        codes, scales, values = fp8_blocks(plain, is_power_of_two=True)
        parts = fp8_tensor(codes), torch.from_numpy(scales).to(torch.float8_e8m0fnu)
    return dict(zip((name, name.replace(".weight", ".scale")), parts, strict=True)), torch.from_numpy(values)


def write_published(folder: Path) -> Any:
    """Write a small model under the publisher's names; the model with the values that its codes mean."""
    small_model().save_pretrained(folder / "plain")
    plain, config = (
        load_file(folder / "plain/model.safetensors"),
        json.loads((folder / "plain/config.json").read_text()),
    )
    tensors: dict[str, torch.Tensor] = {}
    decoded: dict[str, torch.Tensor] = {}
    for name, tensor in plain.items():
        theirs = name.removeprefix("model.")
        for ours, other in OTHER_NAMES.items():
            theirs = theirs.replace(ours, other)
        parts, decoded[name] = quantized(theirs, tensor) if is_quantized(theirs) else ({theirs: tensor}, tensor)
        tensors.update(parts)
    write_folder(folder / "decoded", config, decoded)
    write_folder(folder / "published", {**config, "expert_dtype": "fp4", "quantization_config": METHOD}, tensors)
    return DeepseekV4ForCausalLM.from_pretrained(folder / "decoded").eval()


def test_a_model_decodes_runs_and_is_saved_as_it_was(tmp_path: Path):
    model = write_published(tmp_path)
    folder = tmp_path / "published"
    catalog = read_catalog(folder)
    loaded = load_model(catalog, read_plan(catalog))
    kept = {name for name, each in loaded.named_parameters() if isinstance(each, QuantizedTensor)}
    assert len(kept) == 10
    for name, parameter in loaded.named_parameters():
        found = parameter.dequantize() if name in kept else parameter
        assert torch.equal(found, model.get_parameter(name)), name
    net = steelyard.load(folder)
    with torch.no_grad():
        found, expected = net(IDS).logits, model(IDS).logits
    # Inputs are rounded to E4M3.
    assert 1e-3 < (found - expected).norm() / expected.norm() < 0.1
    formats = {row.layer.removeprefix("model.layers.0."): (row.lhs, row.rhs) for row in net.explain().rows}
    assert formats["self_attn.q_a_proj"] == ("e4m3 1x128", "e4m3 128x128")
    assert formats["mlp.experts.gate_up_proj"] == ("e4m3 1x128", "e2m1 1x32")
    # A product per group of heads, which is no GEMM of one weight: it is decoded.
    assert formats["self_attn.o_a_proj"] == ("f32", "f32")
    steelyard.save(net, tmp_path / "again")
    assert_same_bytes(folder, tmp_path / "again")


def test_nothing_but_the_order_of_sums_differs_without_rounded_inputs(tmp_path: Path):
    model = write_published(tmp_path)
    net = steelyard.load(tmp_path / "published", recipe=WEIGHTS_ONLY)
    with torch.no_grad():
        found, expected = net(IDS).logits, model(IDS).logits
    assert (found - expected).norm() < 1e-5 * expected.norm()
