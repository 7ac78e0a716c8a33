"""The catalog of a GGUF file: its tensors under the names and in the order of rows that transformers' models have."""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from steelyard.checkpoints.catalog import CONFIG, DTYPES, Catalog, Entry, read_catalog, read_json, refuse_code
from steelyard.checkpoints.gguf_files import MXFP4, NVFP4, Found, read_header
from steelyard.checkpoints.models import check_proportions, make_empty_model, read_config
from steelyard.checkpoints.problems import Problems
from steelyard.errors import CheckpointError, shown

METHOD, BLOCK_SCALES = "gguf", ".block_scales"
_END = ".gguf"
_PERMUTED = {"llama": True, "qwen2": False, "qwen3": False, "qwen3moe": False}
"""Architectures, and whether the rows of their queries and keys are in the order of another rotary embedding."""
_COMPUTED = ("rope_freqs.weight",)
"""Tensors that models compute from their config."""
_LEVELS = (".scale", ".input_scale")
_FIRST, _ALL = ".experts.0.", ".experts."
"""In the name of an expert, and of all of them."""
_NAN_SCALE = 0x7F
"""Among E4M3 scales of GGUF: zero."""

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Part(Entry):
    """A tensor that is computed from bytes of a file, which begin at `offset`."""

    length: int
    """How many bytes it is computed from."""
    compute: Change

    def read(self) -> torch.Tensor:
        """The tensor, in memory of its own."""
        data = Entry(self.name, "U8", (self.length,), self.file, self.offset, self.length).read()
        return self.compute(data).contiguous()


def open_catalog(path: str | Path, problems: Problems | None = None) -> Catalog:
    """The catalog of a folder with safetensors files or one GGUF file, or of a GGUF file beside its config.json."""
    path, problems = Path(path), problems or Problems()
    file = path if path.suffix == _END and path.is_file() else None
    with problems.checking(path.name):
        file = file or _only_file(path)
    if file is None:
        return read_catalog(path, problems)
    with problems.checking(file.name):
        return _read_gguf(file, problems)
    return Catalog(file.parent, {}, {}, {}, problems)


def _only_file(path: Path) -> Path | None:
    """The GGUF file of a folder that has no safetensors files."""
    files = sorted(path.glob(f"*{_END}")) if path.is_dir() and not any(path.glob("*.safetensors")) else []
    if len(files) > 1:
        raise CheckpointError(
            f"'{path}' must have one GGUF file, got {len(files)}; name the one to load, and merge a model in several"
        )
    return files[0] if files else None


def _read_gguf(file: Path, problems: Problems) -> Catalog:
    folder = file.parent
    if not (folder / CONFIG).exists():
        raise CheckpointError(
            f"'{folder}' must have the {CONFIG} of the model beside {file.name}, and has none; fetch it from the "
            "model's own page"
        )
    config = {**read_json(folder / CONFIG), "quantization_config": {"quant_method": METHOD}}
    refuse_code(folder / CONFIG, config)
    fields, tensors = read_header(file)
    architecture = fields.get("general.architecture")
    if architecture not in _PERMUTED:
        known = ", ".join(_PERMUTED)
        raise CheckpointError(
            f"{file.name} must be a model of the architecture {known}, got {shown(architecture)}; take its safetensors"
        )
    own = read_config(folder, config)
    raw = {found.name: Entry(found.name, found.kind, found.shape, file, found.offset, found.size) for found in tensors}
    check_proportions(own, torch.float32, Catalog(folder, config, raw, {}))
    names = _names(own, str(architecture), file)
    entries: dict[str, Entry] = {}
    for found in tensors:
        if found.name in _COMPUTED:
            continue
        owners = _owners_of(found, names, file)
        heads = _heads(found.name, own) if _PERMUTED[str(architecture)] else None
        for name, piece in zip(owners, _pieces(found, len(owners), file), strict=True):
            entries.update({each.name: each for each in _entries(name, piece, file, _order(piece, heads, file))})
    return Catalog(folder, config, entries, {}, problems)


def _names(config: Any, architecture: str, file: Path) -> dict[str, list[str]]:
    """What tensors are called in files of transformers, by what GGUF calls them: a stack is one tensor per expert."""
    try:
        gguf = importlib.import_module("gguf")
    except ImportError as error:
        raise CheckpointError(f"loading {file.name} needs the package gguf; install it by pip install gguf") from error
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    known = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    model = make_empty_model(config, torch.float32)
    every = [[name] for name in model.state_dict()] + _experts(model)
    found = {known.get_name(names[0].replace(_FIRST, _ALL), (".weight", ".bias")): names for names in every}
    return {theirs: names for theirs, names in found.items() if theirs is not None}


def _experts(model: Any) -> list[list[str]]:
    """The names of the weights of experts that transformers makes stacks of, those of each stack together."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    converters = [rule for rule in get_model_conversion_mapping(model) if isinstance(rule, WeightConverter)]
    stacks = [(name, len(each)) for name, each in model.named_parameters() if each.dim() == 3]
    return [
        [name.removesuffix(target) + source.replace("*", str(index)) for index in range(count)]
        for name, count in stacks
        for converter in converters
        for target in converter.target_patterns
        for source in converter.source_patterns
        if name.endswith(target)
    ]


def _owners_of(found: Found, names: dict[str, list[str]], file: Path) -> list[str]:
    """What a tensor holds: parameters of the model, or a level above the scales of each."""
    if found.name in names:
        return names[found.name]
    level = next((end for end in _LEVELS if found.name.endswith(end)), "")
    weights = names.get(found.name.removesuffix(level) + ".weight")
    if not level or weights is None:
        raise CheckpointError(
            f"{found.name} in {file.name} must be a tensor of the model in {CONFIG}, which has none of that name; the "
            "config may be that of another model"
        )
    return [weight + level for weight in weights]


def _pieces(found: Found, count: int, file: Path) -> list[Found]:
    """The matrices of a stack, or the tensor itself if it is none."""
    if count == 1:
        return [found]
    if found.shape[0] != count:
        raise CheckpointError(
            f"{found.name} in {file.name} must have {count} experts, as {CONFIG} says, got {list(found.shape)}"
        )
    size = found.size // count
    return [
        replace(found, shape=found.shape[1:], offset=found.offset + index * size, size=size) for index in range(count)
    ]


def _heads(name: str, config: Any) -> int | None:
    """In how many heads the rows of a tensor are permuted."""
    if ".attn_q." in name:
        return config.num_attention_heads
    return config.num_key_value_heads if ".attn_k." in name else None


def _order(found: Found, heads: int | None, file: Path) -> torch.Tensor | None:
    """Where each row lies: GGUF has the halves of a head, which are rotated together, in turns."""
    if heads is None or not (found.name.endswith(".weight") or found.name.endswith(".bias")):
        return None
    rows = found.shape[0]
    if heads < 1 or rows % (2 * heads):
        raise CheckpointError(f"{found.name} in {file.name} must have rows in {heads} heads, got {list(found.shape)}")
    return torch.arange(rows).reshape(heads, -1, 2).mT.reshape(-1)


def _entries(name: str, found: Found, file: Path, order: torch.Tensor | None) -> list[Entry]:
    """The entries of a tensor: codes and scales are two."""
    plain = Entry(name, found.kind, found.shape, file, found.offset, found.size)
    rows = found.shape[0] if found.shape else 1

    def in_order(data: torch.Tensor) -> torch.Tensor:
        lines = data.reshape(rows, -1)
        return lines if order is None else lines[order]

    if found.kind not in _LAYOUTS:
        if order is None:
            return [plain]
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[found.kind]
        return [_part(plain, lambda data: in_order(data).view(dtype).reshape(found.shape))]
    if len(found.shape) != 2:
        raise CheckpointError(f"{plain.place} must be a matrix to be {found.kind}, got {list(found.shape)}")
    columns = found.shape[1]
    layout = _LAYOUTS[found.kind]
    codes = replace(plain, dtype="U8", shape=(rows, columns // 2))
    scales = replace(plain, name=name + BLOCK_SCALES, dtype=layout.scale, shape=(rows, columns // layout.block))
    return [
        _part(codes, lambda data: layout.codes(in_order(data))),
        _part(scales, lambda data: layout.scales(in_order(data))),
    ]


def _part(entry: Entry, compute: Change) -> Part:
    """A part of the bytes of an entry, with the dtype and the shape that the entry has."""
    size = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
    return Part(entry.name, entry.dtype, entry.shape, entry.file, entry.offset, size, entry.size, compute)


@dataclass(frozen=True)
class _Layout:
    """How blocks lie: scales, then codes of each block, its first half in low nibbles and its second in high ones."""

    block: int
    """Elements that share a scale."""
    together: int
    """Blocks whose scales lie together."""
    scale: str

    def codes(self, rows: torch.Tensor) -> torch.Tensor:
        """Pairs of neighbours, the first in the low nibble."""
        blocks = self._groups(rows)[..., self.together :].reshape(len(rows), -1, self.block // 2)
        each = torch.cat([blocks & 15, blocks >> 4], -1)
        return (each[..., ::2] | each[..., 1::2] << 4).reshape(len(rows), -1)

    def scales(self, rows: torch.Tensor) -> torch.Tensor:
        """One byte per block."""
        found = self._groups(rows)[..., : self.together].reshape(len(rows), -1)
        if self.scale != "F8_E4M3":
            return found
        return torch.where(found == _NAN_SCALE, 0, found).view(torch.float8_e4m3fn)

    def _groups(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(len(rows), -1, self.together * (1 + self.block // 2))


_LAYOUTS = {MXFP4: _Layout(32, 1, "U8"), NVFP4: _Layout(16, 4, "F8_E4M3")}
