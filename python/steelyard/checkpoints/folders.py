"""Folders of checkpoints that are written whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from steelyard.checkpoints.catalog import CONFIG, INDEX
from steelyard.errors import CheckpointError
from steelyard.files import failure

ONE_FILE = "model.safetensors"
_COMPANIONS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "generation_config.json",
    "chat_template*",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
"""What a model needs beside its weights and its config."""


def check_new(folder: Path) -> None:
    """Refuse a folder that has something in it: a checkpoint is never mixed with another."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"'{folder}' must not exist or be an empty folder; choose another, or empty it")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name when everything is there; until then, nothing has it."""
    check_new(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise failure(f"cannot write '{folder}'", error) from error
    try:
        yield unfinished
        rename(unfinished, folder)
    except OSError as error:
        raise failure(f"cannot write '{folder}'", error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def rename(unfinished: Path, folder: Path) -> None:
    """Give a folder its name, in the place of an empty one."""
    unfinished.chmod(0o777 & ~_umask())
    if folder.exists():
        folder.rmdir()
    unfinished.rename(folder)


def write_shard(file: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, under another name until it is whole."""
    unfinished = file.with_name(f".{file.name}")
    # Files hold no memory twice, which tensors that share some would.
    alone = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in alone.items():
        address = tensor.data_ptr()
        alone[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    try:
        save_file(alone, unfinished, metadata={"format": "pt", **metadata})
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        unfinished.rename(file)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise failure(f"cannot write '{file}'", error) from error


def write_texts(folder: Path, config: Mapping[str, Any], weight_map: Mapping[str, str], size: int) -> None:
    """Write the config, and the index if there are several files."""
    _write_json(folder / CONFIG, config)
    if set(weight_map.values()) != {ONE_FILE}:
        _write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))})


def write_json_files(folder: Path, texts: Mapping[str, Mapping[str, Any]]) -> None:
    """Write further files of JSON."""
    for name, content in texts.items():
        _write_json(folder / name, content)


def copy_companions(source: Path, folder: Path, more: Iterable[str] = ()) -> None:
    """Copy what belongs to the model beside its weights, such as its tokenizer."""
    for pattern in (*_COMPANIONS, *more):
        for file in source.glob(pattern):
            if file.is_file() and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
