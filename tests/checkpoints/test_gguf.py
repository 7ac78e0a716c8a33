"""GGUF files, written and decoded by the package gguf."""

import json
import struct

import gguf
import numpy as np
import pytest
import small_gguf
import torch
from folders import assert_loaded, assert_runs, small_llama
from gguf import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard.checkpoints.gguf_catalog import open_catalog
from steelyard.checkpoints.gguf_files import read_header
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.errors import CheckpointError, SteelyardError

SECOND_LEVEL = np.float32(3 / 4096)


def interleaved(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of Llama's converter: of each head, one of the first half, then one of the second."""
    size = len(matrix) // heads
    order = [
        head * size + half * size // 2 + pair for head in range(heads) for pair in range(size // 2) for half in (0, 1)
    ]
    return matrix[order]


def in_blocks(values: np.ndarray, kind: Type) -> np.ndarray:
    """Bytes of random NVFP4 blocks, or of the MXFP4 blocks that gguf makes of values."""
    if kind == Type.MXFP4:
        return gguf.quants.quantize(values, kind)
    generator = np.random.default_rng(values.size)
    blocks = generator.integers(0, 256, (*values.shape[:-1], values.shape[-1] // 64, 36), np.uint8)
    blocks[..., :4] %= 0x7E
    # Two spellings of zero.
    blocks[0, 0, :2] = 0, 0x7F
    return blocks.reshape(*values.shape[:-1], -1)


def write_gguf(
    folder,
    model,
    kind: Type,
    architecture: str = "llama",
    *,
    is_permuted: bool = True,
    fp4: str = "_proj.weight",
    **changes,
):
    """Write a model whose layers are of a type, let it have the values that they decode to, and return these."""
    config = model.config
    names = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    known = gguf.get_tensor_name_map(names[architecture], config.num_hidden_layers)
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    writer.add_array("tokenizer.ggml.tokens", [f"token {index}" for index in range(200)])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 200)
    values = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        plain = tensor.numpy()
        theirs = known.get_name(name, (".weight", ".bias"))
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        of_head = next((count for layer, count in heads.items() if layer in name and is_permuted), None)
        if not name.endswith(fp4):
            given_type = np.float16 if name == "lm_head.weight" else np.float32
            stored = interleaved(plain, of_head) if of_head else plain
            writer.add_tensor(theirs, stored.astype(given_type))
            tensor.copy_(torch.from_numpy(plain.astype(given_type).astype(np.float32)))
            continue
        blocks = in_blocks(plain, kind)
        decoded = gguf.quants.dequantize(blocks, kind).astype(np.float32)
        if kind == Type.NVFP4:
            decoded = decoded * SECOND_LEVEL
            writer.add_tensor(theirs.replace(".weight", ".scale"), np.array([SECOND_LEVEL]))
            writer.add_tensor(theirs.replace(".weight", ".input_scale"), np.ones(1, np.float32))
        writer.add_tensor(theirs, interleaved(blocks, of_head) if of_head else blocks, raw_dtype=kind)
        values[name] = decoded
        tensor.copy_(torch.from_numpy(decoded))
    for name, (tensor, raw) in changes.items():
        writer.add_tensor(name.replace("__", "."), tensor, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return values


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", [Type.MXFP4, Type.NVFP4], ids=lambda kind: kind.name)
def test_weights_decode_as_gguf_decodes_them(tmp_path, kind):
    model = small_llama()
    values = write_gguf(tmp_path, model, kind)
    assert len(values) == 7
    assert_loaded(tmp_path, values)
    net = assert_runs(tmp_path / "model.gguf", model, None)
    assert str(net.explain()).count("f32  e2m1 1x") == 7


def test_rows_of_other_architectures_are_as_they_were(tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 32}
    config = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    config.architectures = ["Qwen2ForCausalLM"]
    model = Qwen2ForCausalLM(config).eval().float()
    values = write_gguf(tmp_path, model, Type.MXFP4, "qwen2", is_permuted=False)
    assert_loaded(tmp_path, values)
    catalog = open_catalog(tmp_path)
    loaded = load_model(catalog, read_plan(catalog), torch.float32)
    for name in ("model.layers.0.self_attn.q_proj.bias", "model.embed_tokens.weight"):
        assert torch.equal(loaded.get_parameter(name), model.get_parameter(name))


def test_biases_of_permuted_layers_follow_their_rows(tmp_path):
    model = small_llama(attention_bias=True)
    write_gguf(tmp_path, model, Type.MXFP4)
    catalog = open_catalog(tmp_path)
    loaded = load_model(catalog, read_plan(catalog), torch.float32)
    name = "model.layers.0.self_attn.k_proj.bias"
    assert torch.equal(loaded.get_parameter(name), model.get_parameter(name))


def test_what_the_config_says_is_not_read_from_the_file(tmp_path):
    write_gguf(tmp_path, small_llama(), Type.MXFP4, rope_freqs__weight=(np.ones(16, np.float32), None))
    plan = read_plan(open_catalog(tmp_path))
    assert plan.method == "gguf"
    assert {each.recipe for each in plan.inputs.values()} == {None}


def test_other_quantized_types_are_refused_by_name(tmp_path):
    codes = np.zeros((64, 144), np.uint8)
    write_gguf(tmp_path, small_llama(), Type.MXFP4, extra=(codes, Type.Q4_K))
    with pytest.raises(CheckpointError, match=r"extra in model\.gguf must be MXFP4, NVFP4 or plain, got Q4_K.*convert"):
        steelyard.load(tmp_path)


def test_a_tensor_that_the_model_has_not_is_refused(tmp_path):
    stack = np.zeros((2, 32, 64), np.float32)
    write_gguf(tmp_path, small_llama(), Type.MXFP4, blk__0__ffn_up_exps__weight=(stack, None))
    with pytest.raises(CheckpointError, match=r"ffn_up_exps\.weight .*must be a tensor of the model in config\.json"):
        steelyard.load(tmp_path)


KINDS = {kind.name: kind for kind in small_gguf.KINDS}


@pytest.mark.parametrize(
    "name",
    [
        "gguf-nvfp4-experts",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("gguf-mxfp4-qwen3", "gguf-nvfp4-qwen3", "gguf-mxfp4-experts")
        ),
    ],
)
def test_qwen3_runs_with_and_without_experts(tmp_path, name):
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = KINDS[name]
    small_gguf.write_folder(tmp_path, kind)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).eval().requires_grad_(False)
    values = small_gguf.expected_in(kind, tmp_path)
    for parameter, tensor in model.named_parameters():
        tensor.copy_(torch.from_numpy(values[parameter]))
    net = steelyard.load(tmp_path)
    ids = torch.arange(24).reshape(1, 24)
    with torch.no_grad():
        found, expected = net(ids).logits, model(ids).logits
    assert (found - expected).norm() < 1e-4 * expected.norm()
    reasons = {row.layer: row.reason for row in net.explain().rows}
    quantized = {parameter.removesuffix(".weight") for parameter in kind.quantized}
    assert {layer for layer, reason in reasons.items() if not reason} == quantized


def test_a_stack_must_have_all_experts(tmp_path):
    small_gguf.write_folder(tmp_path, KINDS["gguf-mxfp4-experts"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_experts": 3}))
    with pytest.raises(
        CheckpointError, match=r"_exps\.weight in model\.gguf must have 3 experts, as config\.json says"
    ):
        steelyard.load(tmp_path)


def test_an_embedding_in_fp4_is_refused(tmp_path):
    write_gguf(tmp_path, small_llama(), Type.MXFP4, fp4="embed_tokens.weight")
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight in FP4.*keep embeddings plain"):
        steelyard.load(tmp_path)


def test_a_config_must_be_beside_the_file(tmp_path):
    write_gguf(tmp_path, small_llama(), Type.MXFP4)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"must have the config\.json of the model beside model\.gguf"):
        steelyard.load(tmp_path / "model.gguf")


def test_a_folder_must_have_one_file(tmp_path):
    write_gguf(tmp_path, small_llama(), Type.MXFP4)
    (tmp_path / "model-2.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match="must have one GGUF file, got 2"):
        steelyard.load(tmp_path)


def test_an_unknown_architecture_is_refused(tmp_path):
    write_gguf(tmp_path, small_llama(), Type.MXFP4)
    data = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(data.replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0gemma"))
    with pytest.raises(CheckpointError, match="architecture llama, qwen2, qwen3, qwen3moe, got 'gemma'"):
        steelyard.load(tmp_path)


HUGE = 2**63


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "header"),
        (b"GGUX" + b"\0" * 40, "must be a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 2 or 3, little-endian, got version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), f"room for the {HUGE} entries"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), f"room for the {HUGE} entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE) + b"\0" * 40, f"room for the {HUGE} entries"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"a", 77) + b"\0" * 40, "known types, got type 77"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"a", 9, 0, HUGE) + b"\0" * 40, f"the {HUGE} entries"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"a", 9) + struct.pack("<IQ", 9, 1) * 40, "known types"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 1, 0, 1, b"a", 99) + b"\0" * 40, "1 to 4 dims, got 99"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"a", 1, HUGE, 0, 0) + b"\0" * 40, "ends beyond it"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"a", 1, 32, 39, HUGE) + b"\0" * 40, "ends beyond it"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"\x7f", 1, 32, 0, 0) + b"\0" * 200, "printable characters"),
        (b"GGUF" + struct.pack("<IQQQcIQIQ", 3, 1, 0, 1, b"a", 1, 33, 39, 0) + b"\0" * 40, "whole blocks of 32"),
    ],
)
def test_absurd_headers_are_refused(tmp_path, data, message):
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_header(file)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file that is whole."""
    folder = tmp_path_factory.mktemp("whole")
    write_gguf(folder, small_llama(), Type.MXFP4)
    return folder


def test_a_file_that_is_cut_off_is_refused_wherever_it_ends(whole, tmp_path):
    data = (whole / "model.gguf").read_bytes()
    file = tmp_path / "model.gguf"
    for length in (*range(0, 4096, 61), len(data) // 2, len(data) - 64):
        file.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            read_header(file)


@settings(max_examples=100)
@given(place=st.integers(0, 6000), byte=st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(whole, tmp_path_factory, place, byte):
    data = bytearray((whole / "model.gguf").read_bytes())
    data[place] = byte
    file = tmp_path_factory.mktemp("changed") / "model.gguf"
    file.write_bytes(data)
    try:
        _, tensors = read_header(file)
    except SteelyardError:
        return
    assert all(each.offset >= 0 and each.offset + each.size <= len(data) for each in tensors)
