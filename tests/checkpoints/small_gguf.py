"""Small GGUF files, and what the package gguf reads from them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy
from gguf import GGMLQuantizationType as Type
from small_formats import Tensors, bytes_of
from tiny_models import Model, llama, qwen3, qwen3_moe

FILE = "model.gguf"
_LARGEST_SCALE = {Type.MXFP4: 130, Type.NVFP4: 0x7E}
_SCALES = {Type.MXFP4: 1, Type.NVFP4: 4}
"""Bytes of scales that a block begins with."""


@dataclass(frozen=True)
class Kind:
    """A type of GGUF, and a model of an architecture."""

    name: str
    type: Type
    architecture: str
    model: Model

    @property
    def quantized(self) -> set[str]:
        """The parameters that are quantized."""
        return self.model.quantized(has_layers=True)


def names_in(model: Model, architecture: str) -> dict[str, list[str]]:
    """The names of a model's tensors by those that files have, in which all experts of a layer are one tensor."""
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    known = gguf.get_tensor_name_map(numbers[architecture], 1)
    found: dict[str, list[str]] = {}
    for name in [*model.plain, *(f"{layer}.weight" for layer in model.layers)]:
        theirs = known.get_name(re.sub(r"\.experts\.\d+", ".experts", name), (".weight", ".bias"))
        found.setdefault(theirs, []).append(name)
    return found


def write_folder(folder: Path, kind: Kind, seed: int = 0) -> None:
    """Write random blocks of a type, with the config of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(kind.model.config, indent=1))
    rng = numpy.random.default_rng(seed)
    writer = gguf.GGUFWriter(folder / FILE, kind.architecture)
    writer.add_array("tokenizer.ggml.tokens", [f"token {index}" for index in range(100)])
    writer.add_block_count(1)
    for theirs, names in names_in(kind.model, kind.architecture).items():
        layer = names[0].removesuffix(".weight")
        if layer not in kind.model.layers:
            writer.add_tensor(theirs, rng.normal(size=kind.model.plain[names[0]]).astype(numpy.float32))
            continue
        stack = [len(names)] * (len(names) > 1)
        writer.add_tensor(theirs, _blocks(rng, kind.type, *stack, *kind.model.layers[layer]), raw_dtype=kind.type)
        if kind.type == Type.NVFP4:
            levels = numpy.float32(0.0123) * numpy.arange(1, len(names) + 1, dtype=numpy.float32)
            writer.add_tensor(theirs.replace(".weight", ".scale"), levels)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _blocks(rng: numpy.random.Generator, type: Type, *shape: int) -> numpy.ndarray:
    elements, size = gguf.GGML_QUANT_SIZES[type]
    blocks = bytes_of(rng, *shape[:-1], shape[-1] // elements, size)
    blocks[..., : _SCALES[type]] %= _LARGEST_SCALE[type]
    return blocks.reshape(*shape[:-1], -1)


def expected_in(kind: Kind, folder: Path) -> Tensors:
    """The parameters of the model, by what the package reads."""
    reader = gguf.GGUFReader(folder / FILE)
    architecture = reader.fields["general.architecture"].contents()
    tensors = {each.name: each for each in reader.tensors}
    heads = kind.model.config["num_attention_heads"]
    found: Tensors = {}
    for theirs, names in names_in(kind.model, architecture).items():
        values = _values(tensors[theirs], tensors.get(theirs.replace(".weight", ".scale")))
        is_permuted = architecture == "llama" and names[0].endswith(("q_proj.weight", "k_proj.weight"))
        values = _halves_in_turn(values, heads) if is_permuted else values
        found |= dict(zip(names, values if len(names) > 1 else [values], strict=True))
    return kind.model.join(found)


def _values(tensor: gguf.ReaderTensor, level: gguf.ReaderTensor | None) -> numpy.ndarray:
    """What a tensor means. A second level is multiplied by scales first, as in the files that GGUF is made from."""
    kind = tensor.tensor_type
    if kind != Type.NVFP4 or level is None:
        return gguf.quants.dequantize(tensor.data, kind).astype(numpy.float32)
    ones, units = (tensor.data.reshape(-1, 36).copy() for _ in range(2))
    ones[:, _SCALES[kind] :] = 0x22
    units[:, : _SCALES[kind]] = 0x38
    scales, codes = (gguf.quants.dequantize(each.reshape(tensor.data.shape), kind) for each in (ones, units))
    levels = gguf.quants.dequantize(level.data, level.tensor_type)
    return codes * (scales * levels.reshape(-1, *[1] * (codes.ndim - 1)))


def _halves_in_turn(rows: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Rows of each head in the order of transformers, whose rotary embedding has one half after the other."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


KINDS = [
    Kind("gguf-mxfp4", Type.MXFP4, "llama", llama()),
    Kind("gguf-nvfp4", Type.NVFP4, "llama", llama(128)),
    Kind("gguf-mxfp4-qwen3", Type.MXFP4, "qwen3", qwen3()),
    Kind("gguf-nvfp4-qwen3", Type.NVFP4, "qwen3", qwen3(128)),
    Kind("gguf-mxfp4-experts", Type.MXFP4, "qwen3moe", qwen3_moe()),
    Kind("gguf-nvfp4-experts", Type.NVFP4, "qwen3moe", qwen3_moe(64)),
]
