"""Files that somebody made to run code, to hang or to exhaust memory are refused, and the error says where."""

import json
import os
from pathlib import Path

import pytest
import small_folders
import torch

from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.errors import CheckpointError

KINDS = {kind.name: kind for kind in small_folders.KINDS}


def load(folder):
    catalog = read_catalog(folder)
    return load_model(catalog, read_plan(catalog))


def write(folder, name="ct-fp8-dynamic", **changes):
    small_folders.write_folder(folder, KINDS[name])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def nested(depth):
    found = {}
    for _ in range(depth):
        found = {"a": found}
    return found


CONFIGS = {
    "code": ({"auto_map": {"AutoConfig": "evil.Config"}}, "auto_map"),
    "code within": ({"text_config": {"auto_map": {}}}, "auto_map"),
    "another config": ({"configuration_files": ["config.5.0.0.json"]}, "configuration_files"),
    "kernel": ({"attn_implementation": "evil/kernels"}, "attn_implementation"),
    "kernel of experts": ({"_experts_implementation_internal": "evil/kernels:x"}, "_experts_implementation_internal"),
    "function": ({"architectures": ["pipeline"]}, "architectures"),
    "model of another config": ({"architectures": ["BertModel"]}, "architectures"),
    "no model": ({"architectures": [3]}, "architectures"),
    "no list": ({"architectures": {"a": 1}}, "architectures"),
    "dtype of codes": ({"dtype": "float8_e4m3fn"}, "dtype"),
    "no dtype": ({"dtype": "nn"}, "dtype"),
    "many layers": ({"num_hidden_layers": 10**10}, "num_hidden_layers"),
    "more layers than tensors": ({"num_hidden_layers": 90_000}, "more than .* parameters"),
    "wide": ({"hidden_size": 10**9}, "must fit into the files"),
    "many words": ({"vocab_size": 10**15}, "must fit into the files"),
    "many labels": ({"num_labels": 10**10}, "num_labels"),
    "deep": ({"x": nested(900)}, "recursion"),
    "list": ({"quantization_config": []}, "quantization_config"),
    "text": ({"quantization_config": "fp8"}, "quantization_config"),
    "number": ({"quantization_config": {"quant_method": 3}}, "quant_method"),
    "groups": ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": [1]}}, "config_groups"),
}


@pytest.mark.parametrize(("changes", "key"), CONFIGS.values(), ids=CONFIGS)
def test_configs_are_refused_by_key(changes, key, tmp_path):
    write(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=key):
        load(tmp_path)


def test_buffers_that_no_file_has_are_bounded(tmp_path):
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 8, "rotary_dim": 8, "n_inner": 16}
    config = {"architectures": ["GPTJModel"], "model_type": "gptj", "n_positions": 10**9, "dtype": "float32", **sizes}
    small_folders.write_folder(tmp_path, KINDS["plain"])
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"the buffers of GPTJModel by config.json must have at most"):
        load(tmp_path)


@pytest.mark.parametrize("pattern", ["re:(.|.|.)+[A-Z]", r"re:(?:.|[a-z]|\w)*?[A-Z]"])
def test_patterns_have_limited_time(pattern, tmp_path):
    small_folders.write_folder(tmp_path, KINDS["ct-fp8-dynamic"])
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["ignore"] = [pattern]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"ignore in config.json take too long"):
        read_plan(read_catalog(tmp_path))


def test_a_pipe_is_not_read(tmp_path):
    write(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="must be a file"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", ".."])
def test_names_of_files_lead_nowhere_else(name, tmp_path):
    write(tmp_path)
    index = {"weight_map": {"model.norm.weight": name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="must be the name of a safetensors file in that folder"):
        load(tmp_path)


def test_links_are_followed_as_in_the_cache_of_the_hub(tmp_path):
    write(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(Path("..", "blobs", file.name))
    assert len(list(load(tmp_path / "snapshot").parameters())) == 12


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "x" * 600])
def test_names_of_tensors_can_be_shown(name, tmp_path):
    write(tmp_path)
    tensors = small_folders.tensors_of(KINDS["ct-fp8-dynamic"])
    tensors[name] = tensors["model.norm.weight"]
    (tmp_path / "model.safetensors").write_bytes(small_folders.file_of(tensors))
    with pytest.raises(CheckpointError, match="printable") as error:
        load(tmp_path)
    assert str(error.value).isprintable()


def test_a_tensor_that_a_header_has_twice_is_refused(tmp_path):
    write(tmp_path)
    file = tmp_path / "model.safetensors"
    header, data = small_folders.split_file(file.read_bytes())
    text = json.dumps(header)
    text = '{"model.norm.weight": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, ' + text[1:]
    file.write_bytes(len(text).to_bytes(8, "little") + text.encode() + data)
    with pytest.raises(CheckpointError, match="twice"):
        load(tmp_path)


def test_codes_without_a_config_are_not_taken_for_weights(tmp_path):
    write(tmp_path, "modelopt-fp8", quantization_config=None)
    with pytest.raises(CheckpointError, match=r"must be a tensor of LlamaForCausalLM|must be F32 or BF16"):
        load(tmp_path)
    tensors = {
        name: each for name, each in small_folders.tensors_of(KINDS["modelopt-fp8"]).items() if "scale" not in name
    }
    (tmp_path / "model.safetensors").write_bytes(small_folders.file_of(tensors))
    with pytest.raises(CheckpointError, match=r"q_proj.weight in model.safetensors must be F32 or BF16 .* got F8_E4M3"):
        load(tmp_path)


def test_a_failure_leaves_nothing_changed(tmp_path):
    write(tmp_path, hidden_size=10**9)
    with pytest.raises(CheckpointError):
        load(tmp_path)
    assert torch.get_default_dtype() == torch.float32
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"
