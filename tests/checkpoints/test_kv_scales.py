"""Static scales of KV caches in checkpoints: read, used as they say, turned off, and written again."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig
from published import bf16_llama, write_compressed, write_modelopt
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

import steelyard
from steelyard.checkpoints.survey import survey
from steelyard.errors import CheckpointError

ATTENTION = "model.layers.0.self_attn"
STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
IDS = torch.arange(16).reshape(1, 16)


@pytest.fixture(scope="module")
def compressed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("compressed") / "published"
    return write_compressed(folder, {"FP8_DYNAMIC": ["Linear"]}, kv_cache_scheme=STATIC)


@pytest.fixture(scope="module")
def modelopt(tmp_path_factory) -> Path:
    pytest.importorskip("modelopt", reason="nvidia-modelopt is not installed")
    return write_modelopt(tmp_path_factory.mktemp("modelopt") / "published", "FP8_DEFAULT_CFG", "FP8_KV_CFG")


def changed(source: Path, folder: Path, tensors: dict[str, torch.Tensor | None], **config: Any) -> Path:
    """A copy of a folder with other tensors, None for none, and another quantization config."""
    folder.mkdir()
    found = json.loads((source / "config.json").read_text())
    found["quantization_config"] |= config
    (folder / "config.json").write_text(json.dumps(found))
    every = load_file(source / "model.safetensors") | tensors
    save_file({name: tensor for name, tensor in every.items() if tensor is not None}, folder / "model.safetensors")
    return folder


@torch.no_grad()
def cached(net: Any) -> Any:
    """The layer of a cache that a call of a net fills."""
    cache = DynamicCache()
    net(IDS, past_key_values=cache)
    return cache.layers[0]


def rounded(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """E4M3 codes by a scale, decoded; by ml_dtypes."""
    number = np.float32(scale.float().item())
    scaled = np.clip(x.float().numpy() * (np.float32(1) / number), -448, 448)
    codes = scaled.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return torch.from_numpy(codes * number).to(x.dtype)


def check_scales(folder: Path, names: tuple[str, str]) -> None:
    """Caches must hold what the scales of a folder's file hold, and a copy must have its bytes."""
    tensors = load_file(folder / "model.safetensors")
    net = steelyard.load(folder)
    found, exact = cached(net), cached(steelyard.load(folder, kv_cache=None))
    for name, states, plain in zip(names, (found.keys, found.values), (exact.keys, exact.values), strict=True):
        assert torch.equal(states, rounded(plain, tensors[name])), name
        assert not torch.equal(states, plain), name
    # A byte for each element, and nothing else.
    assert found.nbytes == found.keys.numel() + found.values.numel()
    steelyard.save(net, folder.with_name("again"))
    for file in ("model.safetensors", "config.json"):
        before, after = (path / file for path in (folder, folder.with_name("again")))
        if file.endswith(".json"):
            assert json.loads(after.read_text()) == json.loads(before.read_text())
        else:
            assert _bytes(after) == _bytes(before)


def _bytes(file: Path) -> dict[str, tuple[torch.dtype, bytes]]:
    return {name: (t.dtype, t.reshape(-1).view(torch.uint8).numpy().tobytes()) for name, t in load_file(file).items()}


def test_those_of_compressed_tensors_are_used(compressed: Path):
    check_scales(compressed, (f"{ATTENTION}.k_scale", f"{ATTENTION}.v_scale"))


def test_those_of_modelopt_are_used(modelopt: Path):
    check_scales(modelopt, (f"{ATTENTION}.k_proj.k_scale", f"{ATTENTION}.v_proj.v_scale"))


def test_a_scale_that_is_too_small_saturates_and_is_counted(compressed: Path, tmp_path: Path):
    small = {f"{ATTENTION}.k_scale": torch.tensor([1e-5])}
    net, exact = (
        steelyard.load(folder, kv_cache=cache)
        for folder, cache in ((changed(compressed, tmp_path / "small", small), "stored"), (compressed, None))
    )
    keys, factor = cached(exact).keys.float(), np.float32(1) / np.float32(1e-5)
    saturated = int(((keys * float(factor)).abs() > 448).sum())
    assert saturated > 100
    assert cached(net).keys.float().abs().max() == torch.tensor(448 * np.float32(1e-5)).bfloat16().float()
    assert f"{ATTENTION}.key: {saturated}" in net.explain().notes


def test_caches_are_as_the_caller_says(compressed: Path):
    assert type(cached(steelyard.load(compressed, kv_cache=None))).__name__ == "DynamicLayer"
    layer = cached(steelyard.load(compressed, kv_cache="fp8"))
    rows = 2 * layer.keys.shape[:-1].numel()
    assert layer.nbytes == rows * (layer.keys.shape[-1] + 4)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("scheme", "warning"),
    [
        ({**STATIC, "dynamic": True}, None),
        ({**STATIC, "strategy": "attn_head"}, "meant to be by 'attn_head'; caches have one per token and head"),
    ],
    ids=["dynamic", "per head"],
)
def test_other_scales_are_measured(scheme, warning, compressed: Path, tmp_path: Path, recwarn):
    folder = changed(compressed, tmp_path / "other", {}, kv_cache_scheme=scheme)
    layer = cached(steelyard.load(folder))
    assert layer.nbytes == 2 * layer.keys.shape[:-1].numel() * (layer.keys.shape[-1] + 4)
    said = [str(each.message) for each in recwarn if "KV caches" in str(each.message)]
    assert said == ([] if warning is None else [f"scales of KV caches are {warning}"])


def test_caches_in_nvfp4_are_not_run(modelopt: Path, tmp_path: Path):
    folder = changed(modelopt, tmp_path / "nvfp4", {}, kv_cache_scheme="NVFP4")
    with pytest.warns(
        match="KV caches are meant to be 'NVFP4'; they stay in high precision, unless .* kv_cache=\"fp8\""
    ):
        net = steelyard.load(folder)
    assert type(cached(net)).__name__ == "DynamicLayer"
    assert any("NVFP4" in note for note in survey(folder).notes)
    steelyard.save(net, tmp_path / "again")
    assert _bytes(tmp_path / "again" / "model.safetensors") == _bytes(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{ATTENTION}.v_scale": None}, f"k_scale .*must have a v_scale beside it in {ATTENTION}, and has none"),
        ({f"{ATTENTION}.k_scale": torch.zeros(1)}, "k_scale .*must be one positive, finite number, got"),
        ({f"{ATTENTION}.v_scale": torch.ones(2)}, "v_scale .*must be one positive, finite number, got"),
    ],
    ids=["missing", "zero", "two"],
)
def test_wrong_scales_are_refused(tensors, message, compressed: Path, tmp_path: Path):
    folder = changed(compressed, tmp_path / "wrong", tensors)
    with pytest.raises(CheckpointError, match=message):
        steelyard.load(folder)
    assert len(survey(folder).problems) == 1


@pytest.mark.parametrize("format", ["compressed-tensors", "modelopt", "steelyard"])
def test_scales_of_a_net_are_written(format: str, tmp_path: Path):
    scales = {ATTENTION: (0.015625, 0.005859375)}
    options = {"overrides": {"lm_head": None}, "kv_cache": "fp8", "kv_scales": scales}
    net = steelyard.compile(bf16_llama(), "fp8-row", **options)
    steelyard.save(net, tmp_path / "out", format=format)
    about = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    if format == "compressed-tensors":
        read = QuantizationConfig(**about).kv_cache_scheme
        assert read is not None
        assert (read.num_bits, str(read.type), str(read.strategy), read.dynamic) == (8, "float", "tensor", False)
    again = steelyard.load(tmp_path / "out")
    assert again._steelyard.backend.settings.kv_scales == scales
