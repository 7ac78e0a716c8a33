"""NVFP4 that was quantized here: other programs decode what is saved to the same values."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from folders import small_llama
from published import WIDTHS, bf16_llama, compressed_values, modelopt_values
from safetensors.torch import load_file

import steelyard
from steelyard.checkpoints.conversion import convert
from steelyard.checkpoints.second_levels import convert as convert_weight
from steelyard.formats.schemes import Scheme
from steelyard.tensor import NVFP4Quantizer

IDS = torch.arange(16).reshape(1, 16)
PROJECTIONS = [f"model.layers.0.{name}_proj.weight" for name in ("self_attn.q", "self_attn.o", "mlp.up", "mlp.down")]
CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
DIVISOR, MULTIPLIER = (
    Scheme("f4E2M1FN", "1x16", "f8E4M3FN", source=source, second_level="tensor") for source in ("divisor", "static")
)


def decoded(codes: torch.Tensor, scales: torch.Tensor, level: torch.Tensor, *, is_divisor: bool) -> np.ndarray:
    """What files mean, in float32: a code times its block scale, multiplied or divided by the second one first."""
    bytes_ = codes.numpy()
    values = CODES[np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(len(bytes_), -1)]
    blocks = scales.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    number = np.float32(level.item())
    return values * np.repeat(blocks / number if is_divisor else blocks * number, 16, axis=1)


def test_plain_weights_are_quantized_as_the_format_has_them(tmp_path: Path):
    """A folder that is converted, and one that is saved, decode to the same float32 values here and elsewhere."""
    bf16_llama().save_pretrained(tmp_path / "plain")
    list(convert(tmp_path / "plain", tmp_path / "converted", "nvfp4/none"))
    options = {"overrides": {"lm_head": None}}
    steelyard.save(steelyard.compile(bf16_llama(), "nvfp4/none", **options), tmp_path / "saved", format="modelopt")
    for folder in (tmp_path / "converted", tmp_path / "saved"):
        is_divisor = folder.name == "converted"
        net, files = steelyard.load(folder), load_file(folder / "model.safetensors")
        others = compressed_values(folder) if is_divisor else modelopt_values(folder)
        for name in PROJECTIONS:
            found = net.get_parameter(name).dequantize(dtype=torch.float32)
            codes, level = ("_packed", "_global_scale") if is_divisor else ("", "_scale_2")
            parts = files[f"{name}{codes}"], files[f"{name}_scale"], files[f"{name}{level}"]
            np.testing.assert_array_equal(found.numpy(), decoded(*parts, is_divisor=is_divisor))
            assert torch.equal(found.to(others[name].dtype), others[name])


@pytest.mark.every(2)
@torch.no_grad()
@pytest.mark.parametrize("format", ["compressed-tensors", "modelopt"])
def test_quantized_weights_decode_to_their_values(format: str, tmp_path: Path, recwarn):
    net = steelyard.compile(bf16_llama(), "nvfp4/none", overrides={"lm_head": None}, weights="quantized")
    net(IDS)
    expected = {name: net.get_parameter(name).dequantize() for name in PROJECTIONS}
    steelyard.save(net, tmp_path / "out", format=format)
    others = (compressed_values if format == "compressed-tensors" else modelopt_values)(tmp_path / "out")
    for name, values in expected.items():
        assert values.dtype == torch.bfloat16
        assert torch.equal(others[name].to(torch.bfloat16), values), name
    assert not [each for each in recwarn if "decode to other values" in str(each.message)]


@torch.no_grad()
def test_float32_values_that_no_level_gives_are_told(tmp_path: Path):
    model = small_llama(**WIDTHS | {"dtype": "float32"})
    net = steelyard.compile(model, "nvfp4/none", overrides={"lm_head": None}, weights="quantized")
    net(IDS)
    expected = {name: net.get_parameter(name).dequantize() for name in PROJECTIONS}
    with pytest.warns(
        match=r"decode to other values: model.layers.0.\S+ differs most, by [12]\.\de-07 of a value; save"
    ):
        steelyard.save(net, tmp_path / "out", format="modelopt")
    for name, values in modelopt_values(tmp_path / "out").items():
        if name in expected:
            torch.testing.assert_close(values, expected[name], rtol=2.4e-7, atol=0)


def amax_that_a_level_gives(is_divisor: bool) -> np.float32:
    """An amax for which one float32 level gives the same float32 values, found by trying all codes and scales."""
    random = np.random.default_rng(0)
    scales = np.arange(8, 16, dtype=np.float32) / 8
    for amax in random.uniform(2, 4, 20_000).astype(np.float32):
        exact = [code * scales * amax * np.float32(1 / 2688) for code in (np.float32(1), np.float32(1.5))]
        start = np.float32(2688) / amax if is_divisor else amax / np.float32(2688)
        for level in (start, np.nextafter(start, np.float32(0)), np.nextafter(start, np.float32(1e9))):
            blocks = scales / level if is_divisor else scales * level
            if all(
                np.array_equal(code * blocks, values) for code, values in zip((1, np.float32(1.5)), exact, strict=True)
            ):
                return amax
    raise AssertionError("no amax has such a level")


@pytest.mark.parametrize("is_divisor", [True, False], ids=["divisor", "multiplier"])
def test_a_level_that_gives_the_same_values_is_found(is_divisor: bool):
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    weight[0, 0] = float(amax_that_a_level_gives(is_divisor))
    largest = float(weight[0, 0])
    weight.clamp_(-largest, largest)
    quantized = NVFP4Quantizer(rowwise=True, columnwise=False)(weight)
    parts, difference = convert_weight(DIVISOR if is_divisor else MULTIPLIER, quantized, "layer")
    assert difference == 0
    values = decoded(*parts, is_divisor=is_divisor)
    np.testing.assert_array_equal(values, quantized.dequantize().numpy())
