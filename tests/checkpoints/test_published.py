"""Checkpoints of compressed-tensors and ModelOpt: their own files, against the values that they read themselves."""

import json
from pathlib import Path

import pytest
import torch
from published import (
    compressed_values,
    modelopt_values,
    write_compressed,
    write_modelopt,
)
from safetensors.torch import load_file

import steelyard
from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan

pytest.importorskip("modelopt", reason="nvidia-modelopt is not installed")
ALL = ["Linear"]
COMPRESSED = {
    "fp8": {"FP8": ALL},
    "fp8-dynamic": {"FP8_DYNAMIC": ALL},
    "fp8-block": {"FP8_BLOCK": ALL},
    "nvfp4": {"NVFP4": ALL},
    "nvfp4a16": {"NVFP4A16": ALL},
    "mxfp4": {"MXFP4": ALL},
    "mxfp8": {"MXFP8": ALL},
    "mixed": {"NVFP4": ["re:.*mlp.*"], "FP8_DYNAMIC": ["re:.*self_attn.*"]},
}
MODELOPT = [
    "NVFP4_DEFAULT_CFG",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "FP8_DEFAULT_CFG",
            "MXFP8_DEFAULT_CFG",
            "FP8_PER_CHANNEL_PER_TOKEN_CFG",
            "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
            "MXFP4_DEFAULT_CFG",
            "W4A8_NVFP4_FP8_CFG",
        )
    ),
]
IDS = torch.arange(16).reshape(1, 16)


def loaded_values(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    catalog = read_catalog(folder)
    plan = read_plan(catalog)
    model = load_model(catalog, plan)
    return {name: model.get_parameter(name).dequantize(dtype=dtype) for name in plan.weights}


def files_bytes(folder: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    tensors = load_file(folder / "model.safetensors")
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    }


def check_round_trip(folder: Path, again: Path) -> None:
    """What is loaded, run and saved must have the bytes of the files."""
    net = steelyard.load(folder)
    with torch.no_grad():
        assert net(IDS).logits.isfinite().all()
    quantized = [row for row in net.explain().rows if "proj" in row.layer]
    assert quantized
    assert not [row.reason for row in quantized if row.reason]
    steelyard.save(net, again)
    assert files_bytes(again) == files_bytes(folder)
    assert json.loads((again / "config.json").read_text()) == json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors_decode_as_their_own_reader_does(name: str, tmp_path: Path):
    folder = write_compressed(tmp_path / "published", COMPRESSED[name])
    expected = compressed_values(folder)
    found = loaded_values(folder, torch.bfloat16)
    assert found.keys() == expected.keys()
    for weight, values in expected.items():
        assert torch.equal(found[weight], values.to(torch.bfloat16)), weight


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "name", ["nvfp4", "mixed", *(pytest.param(each, marks=pytest.mark.slow) for each in COMPRESSED if each != "mixed")]
)
def test_compressed_tensors_are_saved_with_the_same_bytes(name: str, tmp_path: Path):
    folder = write_compressed(tmp_path / "published", COMPRESSED[name])
    check_round_trip(folder, tmp_path / "again")


@pytest.mark.parametrize("name", MODELOPT)
def test_modelopt_decodes_as_its_own_reader_does_and_is_saved_with_the_same_bytes(name: str, tmp_path: Path):
    folder = write_modelopt(tmp_path / "published", name)
    expected = modelopt_values(folder)
    found = loaded_values(folder, torch.float32)
    assert found.keys() == expected.keys()
    for weight, values in expected.items():
        assert torch.equal(found[weight], values), weight
    check_round_trip(folder, tmp_path / "again")


def test_static_scales_of_inputs_are_those_of_the_file(tmp_path: Path):
    folder = write_compressed(tmp_path / "published", COMPRESSED["fp8"])
    tensors = load_file(folder / "model.safetensors")
    net = steelyard.load(folder)
    with torch.no_grad():
        net(IDS)
    scales = {name: tensor for name, tensor in net.state_dict().items() if name.endswith(".input.scale")}
    assert len(scales) == 7
    for name, scale in scales.items():
        layer = name.removeprefix("_steelyard.").removesuffix(".input.scale")
        assert float(scale) == float(tensors[f"{layer}.input_scale"])
