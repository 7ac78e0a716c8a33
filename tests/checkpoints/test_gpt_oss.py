"""Checkpoints of gpt-oss: experts in stacks of MXFP4."""

import numpy as np
import pytest
import torch
from folders import E2M1, mxfp4, write_folder
from published import bf16_llama
from safetensors.torch import load_file
from transformers import GptOssConfig, GptOssForCausalLM, Mxfp4Config

import steelyard
from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.checkpoints.models import find_targets, make_empty_model, read_config
from steelyard.checkpoints.tensors import read_parts, stored_parts
from steelyard.errors import CheckpointError
from steelyard.recipes import MXFP4BlockScaling

PREFIX = "model.layers.0.mlp.experts"
EXPERTS, HIDDEN, INTERMEDIATE = 2, 64, 96
METHOD = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
CONFIG = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 1,
    "num_local_experts": EXPERTS,
    "vocab_size": 32,
    "quantization_config": METHOD,
}


def write_experts(folder, **changes):
    """A folder with the experts of one layer, and the values of each stack [E, N, K]."""
    torch.manual_seed(0)
    tensors, values = {}, {}
    for name, shape in {"gate_up_proj": (2 * INTERMEDIATE, HIDDEN), "down_proj": (HIDDEN, INTERMEDIATE)}.items():
        rows, columns = shape
        made = [mxfp4(torch.randn(shape) * 2.0**expert) for expert in range(EXPERTS)]
        codes = np.stack([codes for codes, _, _ in made]).reshape(EXPERTS, rows, columns // 32, 16)
        tensors[f"{PREFIX}.{name}_blocks"] = torch.from_numpy(codes)
        tensors[f"{PREFIX}.{name}_scales"] = torch.from_numpy(np.stack([scales for _, scales, _ in made]))
        tensors[f"{PREFIX}.{name}_bias"] = torch.randn(EXPERTS, rows, dtype=torch.bfloat16)
        values[f"{PREFIX}.{name}"] = np.stack([decoded for _, _, decoded in made])
    tensors.update(changes)
    write_folder(folder, CONFIG, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    return tensors, values


def decode(parts) -> np.ndarray:
    """The values of a stack of parts."""
    codes = np.stack([parts.codes & 15, parts.codes >> 4], -1).reshape(*parts.codes.shape[:-1], -1)
    return E2M1[codes] * np.exp2(parts.scales.numpy().astype(np.float32) - 127).repeat(32, -1)


def test_stacks_are_those_of_transformers_bit_for_bit(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, values = write_experts(tmp_path)
    plan = read_plan(read_catalog(tmp_path))
    assert set(plan.weights) == set(values)
    for name, weight in plan.weights.items():
        assert weight.shape == values[name].shape
        found = decode(read_parts(weight))
        np.testing.assert_array_equal(found, values[name])
        theirs = convert_moe_packed_tensors(tensors[f"{name}_blocks"], tensors[f"{name}_scales"], dtype=torch.float32)
        np.testing.assert_array_equal(found.transpose(0, 2, 1), theirs.numpy())


def test_only_weights_are_quantized_and_biases_are_plain(tmp_path):
    tensors, _ = write_experts(tmp_path)
    plan = read_plan(read_catalog(tmp_path))
    assert {each.recipe for each in plan.inputs.values()} == {None}
    assert plan.used() == {name for name in tensors if not name.endswith("_bias")}


def test_stacks_are_parameters_of_the_model(tmp_path):
    _, values = write_experts(tmp_path)
    catalog = read_catalog(tmp_path)
    model = make_empty_model(read_config(tmp_path, catalog.config), torch.bfloat16)
    targets = find_targets(model, catalog, read_plan(catalog))
    for name, stack in values.items():
        assert [weight.name for weight in targets[name].weights] == [name]
        experts, rows, columns = stack.shape
        assert tuple(model.get_parameter(name).shape) == (experts, columns, rows)


def test_a_model_runs_on_its_codes_and_is_saved_with_the_same_bytes(tmp_path):
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "num_experts_per_tok": 2}
    config = {**CONFIG, **heads, "dtype": "float32"}
    decoded = GptOssForCausalLM(GptOssConfig(**{name: config[name] for name in config if name != "architectures"}))
    decoded.eval().requires_grad_(False)
    experts, values = write_experts(tmp_path / "experts")
    for name, parameter in decoded.named_parameters():
        parameter.normal_(std=0.3) if parameter.dim() > 1 else parameter.fill_(1)
        if name in values:
            parameter.copy_(torch.from_numpy(values[name]).mT)
    biases = {name: tensor.float() for name, tensor in experts.items() if name.endswith("_bias")}
    plain = {name: tensor for name, tensor in decoded.state_dict().items() if name not in values}
    for name, tensor in biases.items():
        decoded.get_parameter(name).copy_(tensor)
    folder = write_folder(tmp_path / "published", config, {**plain, **experts, **biases})
    net = steelyard.load(folder)
    ids = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        found, expected = net(ids).logits, decoded(ids).logits
    assert (found - expected).norm() < 1e-4 * expected.norm()
    rows = [row for row in net.explain().rows if "experts" in row.layer]
    assert [(row.lhs, row.rhs, row.reason) for row in rows] == [("f32", "e2m1 1x32", "")] * 2
    steelyard.save(net, tmp_path / "again")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("published", "again"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name


def small_gpt_oss() -> GptOssForCausalLM:
    sizes = {name: CONFIG[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "num_experts_per_tok": 2}
    torch.manual_seed(0)
    config = GptOssConfig(**sizes, **heads, num_local_experts=EXPERTS, dtype="bfloat16")
    return GptOssForCausalLM(config).to(torch.bfloat16).eval()


@pytest.mark.every(2)
@torch.no_grad()
@pytest.mark.parametrize("weights", ["cached", "quantized"])
def test_transformers_decodes_what_was_quantized_here(weights, tmp_path):
    model, ids = small_gpt_oss(), torch.arange(12).reshape(1, 12)
    plain = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    recipe = MXFP4BlockScaling(scale_rule="floor", activations=None)
    net = steelyard.compile(model, recipe, overrides={"*.experts*": recipe, "*": None}, weights=weights)
    net(ids)
    steelyard.save(net, tmp_path / "out", format="mxfp4")
    theirs = GptOssForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)
    )
    again = steelyard.load(tmp_path / "out")
    for name, tensor in plain.items():
        found = theirs.get_parameter(name)
        if not name.endswith("experts.gate_up_proj") and not name.endswith("experts.down_proj"):
            assert torch.equal(found, tensor), name
            continue
        # Blocks run along the reduction, which is the second dim of the parameter.
        wanted = np.stack([mxfp4(matrix.mT.float())[2] for matrix in tensor])
        np.testing.assert_array_equal(found.float().mT.numpy(), wanted, err_msg=name)
        assert torch.equal(again.get_parameter(name).dequantize(), found), name


@pytest.mark.parametrize(
    ("model", "recipe", "message"),
    [
        (
            bf16_llama,
            "mxfp4/none",
            "that of gpt-oss, .* got a model of type 'llama'; choose format=\"compressed-tensors\"",
        ),
        (small_gpt_oss, "mxfp8/none", "gate_up_proj must be quantized by mxfp4, .* got f8E4M3FN in 1x32"),
    ],
    ids=["llama", "mxfp8"],
)
def test_what_the_format_cannot_hold_is_refused(model, recipe, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        steelyard.save(steelyard.compile(model(), recipe), tmp_path / "out", format="mxfp4")


def test_stacks_are_written_byte_for_byte(tmp_path):
    tensors, _ = write_experts(tmp_path)
    for weight in read_plan(read_catalog(tmp_path)).weights.values():
        for name, tensor in stored_parts(weight, read_parts(weight)).items():
            assert torch.equal(tensor, tensors[name])


@pytest.mark.parametrize(
    ("end", "tensor", "message"),
    [
        ("_scales", None, "down_proj_scales, the scales of"),
        ("_blocks", None, "down_proj_blocks, the codes of"),
        ("_blocks", torch.zeros(2, 64, 96, dtype=torch.bfloat16), "must be U8, got BF16"),
        ("_blocks", torch.zeros(2, 64, 96, dtype=torch.uint8), r"must have 4 dims, \[E, N, K/32, 16\]"),
        ("_scales", torch.zeros(2, 64, 2, dtype=torch.uint8), r"must have shape \[2, 64, 3\], got \[2, 64, 2\]"),
    ],
)
def test_stacks_that_are_not_whole_are_refused(tmp_path, end, tensor, message):
    write_experts(tmp_path, **{f"{PREFIX}.down_proj{end}": tensor})
    with pytest.raises(CheckpointError, match=message):
        read_plan(read_catalog(tmp_path))


def test_a_scale_that_is_no_number_is_refused(tmp_path):
    scales = torch.full((EXPERTS, HIDDEN, INTERMEDIATE // 32), 127, dtype=torch.uint8)
    scales[1, 2, 0] = 255
    write_experts(tmp_path, **{f"{PREFIX}.down_proj_scales": scales})
    plan = read_plan(read_catalog(tmp_path))
    with pytest.raises(CheckpointError, match=r"down_proj_scales.* must be numbers.*got 255.0 at \[1, 2, 0\]"):
        read_parts(plan.weights[f"{PREFIX}.down_proj"])
