"""Small models in folders, each tensor written as a publisher writes it and decoded by hand."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import steelyard
from steelyard.checkpoints.gguf_catalog import open_catalog
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
Tensors = dict[str, torch.Tensor]
Made = tuple[Tensors, np.ndarray]
"""The tensors of a weight by the end of their names, and its values."""


def small_llama(**changes: Any) -> LlamaForCausalLM:
    """One layer whose widths are no multiples of 128, in float32."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    config = LlamaConfig(**{**sizes, **heads, "tie_word_embeddings": False, "dtype": "float32", **changes})
    config.architectures = ["LlamaForCausalLM"]
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    return model


def write_quantized(
    folder: Path,
    model: LlamaForCausalLM,
    config: dict[str, Any],
    quantize: Callable[[str, torch.Tensor], Made],
    metadata: Mapping[str, str] | None = None,
    prefix: str = "",
) -> dict[str, np.ndarray]:
    """Write a model whose layers `quantize` quantizes, let it have the values that they decode to, and return those."""
    tensors: Tensors = {}
    values: dict[str, np.ndarray] = {}
    for name, plain in model.state_dict().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = plain
            continue
        layer = name.removesuffix(".weight")
        parts, values[name] = quantize(layer, plain)
        tensors.update({f"{layer}.{prefix}{end}": part for end, part in parts.items()})
        plain.copy_(torch.from_numpy(values[name]))
    write_folder(folder, {**model.config.to_dict(), "quantization_config": config}, tensors, metadata)
    return values


def write_folder(
    folder: Path, config: dict[str, Any], tensors: Tensors, metadata: Mapping[str, str] | None = None
) -> Path:
    """A folder with config.json and one safetensors file."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(kept, folder / "model.safetensors", {"format": "pt", **(metadata or {})})
    return folder


def assert_loaded(path: Path, values: Mapping[str, np.ndarray]) -> None:
    """The parameters of the model in a folder must decode to these values, bit for bit."""
    catalog = open_catalog(path)
    model = load_model(catalog, read_plan(catalog))
    for name, expected in values.items():
        found = model.get_parameter(name).dequantize()
        np.testing.assert_array_equal(found.numpy(), expected, err_msg=name)


def assert_same_bytes(folder: Path, again: Path) -> None:
    """The tensors of two folders must be the same, byte for byte."""
    before, after = (load_file(each / "model.safetensors") for each in (folder, again))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert (tensor.dtype, tensor.shape) == (after[name].dtype, after[name].shape)
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), after[name].reshape(-1).view(torch.uint8)), name


def assert_runs(path: Path, decoded: LlamaForCausalLM, round_input: Callable[[np.ndarray], np.ndarray] | None) -> Any:
    """A net of a folder must give the logits of the decoded model in float32 whose layers round their inputs so.

    Sums in another order may move an input across a border between two codes; nothing else differs.
    """
    ids = torch.arange(24).reshape(1, 24) * 7 % decoded.config.vocab_size
    net = steelyard.load(path)

    def rounded(_: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        (values,) = inputs
        assert round_input is not None
        rows = round_input(values.reshape(-1, values.shape[-1]).numpy())
        return (torch.from_numpy(rows).reshape(values.shape),)

    layers = [module for name, module in decoded.named_modules() if name.endswith("_proj") and round_input]
    hooks = [module.register_forward_pre_hook(rounded) for module in layers]
    with torch.no_grad():
        expected, found = decoded(ids).logits, net(ids).logits
    for hook in hooks:
        hook.remove()
    assert (found - expected).norm() <= 2e-3 * expected.norm()
    return net


def rounded_to_e4m3(block: tuple[int, int], *, is_power_of_two: bool = False) -> Callable[[np.ndarray], np.ndarray]:
    """What rounds an input to E4M3 by the amax of each block."""

    def round_input(rows: np.ndarray) -> np.ndarray:
        height, width = (size or whole for size, whole in zip(block, rows.shape, strict=True))
        scales = block_amax(rows, (height, width)) / np.float32(448)
        if is_power_of_two:
            scales = np.exp2(np.ceil(np.log2(scales))).astype(np.float32)
        spread = in_blocks(scales, (height, width), rows.shape)
        return from_e4m3(e4m3(rows / spread)) * spread

    return round_input


def rounded_to_e4m3_rows(bound: float) -> Callable[[np.ndarray], np.ndarray]:
    """What rounds an input as FBGEMM does: the scale of a row is min(amax, bound) / 448, and codes saturate."""

    def round_input(rows: np.ndarray) -> np.ndarray:
        scales = np.minimum(np.abs(rows).max(-1, keepdims=True), np.float32(bound)) / np.float32(448)
        return from_e4m3(e4m3(rows / scales)) * scales

    return round_input


def rounded_to_mxfp8(rows: np.ndarray) -> np.ndarray:
    """An input in MXFP8, each scale rounded up so that the amax of 32 elements is at most 448."""
    scales = np.exp2(np.ceil(np.log2(block_amax(rows, (1, 32)) / np.float32(448)))).astype(np.float32)
    spread = in_blocks(scales, (1, 32), rows.shape)
    return from_e4m3(e4m3(rows / spread)) * spread


def e4m3(values: np.ndarray) -> np.ndarray:
    """E4M3 codes of values, as bytes."""
    return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def from_e4m3(codes: np.ndarray) -> np.ndarray:
    """What E4M3 codes mean."""
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def e2m1(values: np.ndarray) -> np.ndarray:
    """E2M1 codes of values, one per byte."""
    return values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


def pairs(codes: np.ndarray) -> np.ndarray:
    """Two codes per byte, the first in the low half."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def fp8_tensor(codes: np.ndarray) -> torch.Tensor:
    """Codes as torch has them."""
    return torch.from_numpy(codes).view(torch.float8_e4m3fn)


def in_blocks(scales: np.ndarray, block: tuple[int, int], shape: tuple[int, ...]) -> np.ndarray:
    """One scale per element, of blocks that may be cut off."""
    rows, columns = shape
    return scales.repeat(block[0], 0).repeat(block[1], 1)[:rows, :columns]


def block_amax(matrix: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """The largest magnitude in each block."""
    (rows, columns), (height, width) = matrix.shape, block
    padded = np.pad(np.abs(matrix), ((0, -rows % height), (0, -columns % width)))
    return padded.reshape(-(-rows // height), height, -1, width).max((1, 3))


def fp8_rows(plain: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E4M3 codes of matrices, one scale per row, and the values."""
    matrices = plain.numpy()
    scales = np.abs(matrices).max(-1, keepdims=True) / np.float32(448)
    codes = e4m3(matrices / scales)
    return codes, scales, from_e4m3(codes) * scales


def fp8_blocks(plain: torch.Tensor, *, is_power_of_two: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E4M3 codes in tiles of 128x128, their scales, and the values."""
    matrix = plain.numpy()
    scales = block_amax(matrix, (128, 128)) / np.float32(448)
    if is_power_of_two:
        scales = np.exp2(np.ceil(np.log2(scales))).astype(np.float32)
    spread = in_blocks(scales, (128, 128), matrix.shape)
    codes = e4m3(matrix / spread)
    return codes, scales, from_e4m3(codes) * spread


def mx_blocks(plain: torch.Tensor, largest_exponent: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Elements, the bytes of E8M0 scales of 32 of them, and the scales: those of a format with this exponent."""
    matrix = plain.numpy()
    exponents = np.floor(np.log2(block_amax(matrix, (1, 32)))) - largest_exponent
    spread = in_blocks(np.exp2(exponents).astype(np.float32), (1, 32), matrix.shape)
    return matrix / spread, (exponents + 127).astype(np.uint8), spread


def mxfp4(plain: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of E2M1 codes, bytes of scales, and the values."""
    elements, scales, spread = mx_blocks(plain, 2)
    codes = e2m1(elements)
    return pairs(codes), scales, E2M1[codes] * spread


def mxfp8(plain: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E4M3 codes, bytes of scales, and the values."""
    elements, scales, spread = mx_blocks(plain, 8)
    codes = e4m3(elements)
    return codes, scales, from_e4m3(codes) * spread


def nvfp4(plain: torch.Tensor, second: np.float32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of codes, bytes of E4M3 scales, and the values, under a second level."""
    matrix = plain.numpy()
    scales = e4m3(block_amax(matrix, (1, 16)) / 6 / second)
    spread = in_blocks(from_e4m3(scales) * second, (1, 16), matrix.shape)
    codes = e2m1(matrix / spread)
    return pairs(codes), scales, E2M1[codes] * spread
