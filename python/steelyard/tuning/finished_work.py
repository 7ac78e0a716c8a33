"""Finished work of `steelyard.tune` in a folder: what it depends on, and how it is kept."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from steelyard.files import failure, write_file
from steelyard.recipes import Recipe
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tuning.batches import Batch
from steelyard.tuning.gptq import Options

_DIGITS = 32
NAME = f"[0-9a-f]{{{_DIGITS}}}"
"""A pattern of the names of the folders that are made."""


def work_folder(
    folder: Path | None,
    model: nn.Module,
    batches: Sequence[Batch],
    formats: Mapping[str, Recipe | None],
    settings: Mapping[str, Any],
) -> Path | None:
    """The folder of calls with this model, these batches, formats and settings among those of others."""
    if folder is None:
        return None
    recipes = {name: recipe and recipe.to_dict() for name, recipe in sorted(formats.items())}
    digest = hashlib.sha256(json.dumps([recipes, settings], sort_keys=True, default=repr).encode())
    for name, module in model.named_modules():
        digest.update(f"\n{name} {type(module).__module__}.{type(module).__qualname__}".encode())
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        _add(digest, name, tensor)
    leaves, structure = tree_flatten(list(batches))
    digest.update(f"\n{structure}".encode())
    for leaf in leaves:
        _add(digest, "batch", leaf)
    return _made(folder / digest.hexdigest()[:_DIGITS])


def _add(digest: Any, name: str, value: Any) -> None:
    """Count a value with its kind and its size, so that no two sequences of them look alike."""
    if not isinstance(value, torch.Tensor):
        digest.update(f"\n{name} {type(value).__qualname__} {value!r}".encode())
        return
    plain = value.dequantize() if isinstance(value, QuantizedTensor) else value
    digest.update(f"\n{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
    digest.update(plain.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def choice_folder(work: Path | None, choice: Mapping[str, str], options: Options) -> Path | None:
    """The folder of one choice of formats."""
    if work is None:
        return None
    digest = hashlib.sha256(json.dumps([dict(choice), asdict(options)], sort_keys=True).encode())
    return _made(work / digest.hexdigest()[:_DIGITS])


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failure(f"cannot keep finished work in '{folder}'", error) from error
    return folder


def remembered(work: Path | None, name: str, make: Callable[[], Any]) -> Any:
    """What an earlier call has made, or what is made now. What cannot be read is made again."""
    if work is None:
        return make()
    file = work / f"{name}.json"
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        made = make()
    write_file(file, json.dumps(made).encode())
    return made


def write_codes(file: Path, codes: Mapping[str, torch.Tensor]) -> None:
    """Keep the tensors of a finished block."""
    unfinished = file.with_suffix(".unfinished")
    try:
        torch.save(dict(codes), unfinished)
        unfinished.replace(file)
    except OSError as error:
        raise failure(f"cannot write '{file}'", error) from error


def read_codes(file: Path | None) -> dict[str, torch.Tensor] | None:
    """The tensors of a finished block; None if there are none that can be read."""
    if file is None or not file.exists():
        return None
    try:
        return torch.load(file, weights_only=True)
    except Exception:
        # A file that was cut off can fail in many ways; the block is done again.
        return None
