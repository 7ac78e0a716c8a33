"""What lies where in the folder of a checkpoint.

Only headers of safetensors files and JSON are parsed. Nothing in a folder is ever run, and no name leads out of it. A
link may: the cache of the hub consists of links. What it leads to is read as weights or JSON, or refused.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from steelyard.checkpoints.problems import Problems
from steelyard.errors import CheckpointError, shown
from steelyard.files import failure

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
_LARGEST_CONFIG, _LARGEST_INDEX = 2**24, 2**28
"""Bytes: the index of the largest models has a few dozen megabytes."""
_HEADER_LENGTH = 8
_LONGEST_NAME = 500
_CODE_KEYS = ("auto_map", "custom_pipelines", "configuration_files")
"""What names code to be run, or another config, which may."""
_IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
"""What may name a kernel, which transformers would fetch and run."""

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4": torch.float4_e2m1fn_x2,
}
"""The spellings of safetensors."""


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies."""

    name: str
    dtype: str
    """As safetensors spells it."""
    shape: tuple[int, ...]
    """As torch counts it: two F4 codes are one element."""
    file: Path
    offset: int
    size: int
    """Bytes."""

    @property
    def place(self) -> str:
        """The tensor and its file, as errors name them."""
        return f"{self.name} in {self.file.name}"

    def read(self) -> torch.Tensor:
        """The tensor, in memory of its own."""
        # Not mapped: a file that is cut off while a program reads its mapping ends the process.
        data = self._memory()
        rest = memoryview(data.numpy())  # pyright: ignore[reportArgumentType]
        try:
            with self.file.open("rb", buffering=0) as file:
                file.seek(self.offset)
                while rest and (count := file.readinto(rest)):
                    rest = rest[count:]
        except OSError as error:
            raise failure(f"cannot read {self.place}", error) from error
        if rest:
            raise CheckpointError(f"{self.place} ends {len(rest)} bytes early; fetch the file again")
        return data.view(DTYPES[self.dtype]).reshape(self.shape)

    def _memory(self) -> torch.Tensor:
        try:
            return torch.empty(self.size, dtype=torch.uint8, device="cpu")  # wherever the caller makes its tensors
        except RuntimeError as error:
            raise CheckpointError(f"{self.place} needs {self.size} bytes of memory, which there are not") from error


class Catalog(Mapping[str, Entry]):
    """The tensors of a checkpoint by name, with its config."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        entries: dict[str, Entry],
        metadata: dict[str, str],
        problems: Problems | None = None,
    ):
        self.folder, self.config, self.metadata = folder, config, metadata
        self.problems = problems or Problems()
        self._entries = entries

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def require(self, name: str, why: str) -> Entry:
        """The entry of a tensor that must be there."""
        if name not in self._entries:
            raise CheckpointError(f"{self.folder.name} must have a tensor {name}, {why}, and has none; fetch it again")
        return self._entries[name]


def read_catalog(folder: str | Path, problems: Problems | None = None) -> Catalog:
    """The catalog of a folder with config.json and safetensors files."""
    folder, problems = Path(folder), problems or Problems()
    if not folder.is_dir():
        raise CheckpointError(f"a checkpoint must be a folder on this machine, got '{folder}'; download it first")
    config: dict[str, Any] = {}
    with problems.checking(CONFIG):
        config = read_json(folder / CONFIG, _LARGEST_CONFIG)
        refuse_code(folder / CONFIG, config)
    weight_map = None
    with problems.checking(INDEX):
        weight_map = _read_weight_map(folder)
    entries: dict[str, Entry] = {}
    metadata: dict[str, str] = {}
    for file in _shards(folder, weight_map, problems):
        with problems.checking(file.name):
            found, own = _read_header(file)
            _refuse_twice(entries, found)
            entries.update(found)
            metadata.update(own)
    broken = {problem.place for problem in problems.found}
    for name, file in (weight_map or {}).items():
        with problems.checking(file):
            if file not in broken:
                _check_index(name, file, entries)
    return Catalog(folder, config, entries, metadata, problems)


def read_entries(files: Iterable[Path]) -> dict[str, Entry]:
    """The tensors of safetensors files by name."""
    return {name: entry for file in files for name, entry in _read_header(file)[0].items()}


def read_json(file: Path, largest: int = _LARGEST_CONFIG) -> dict[str, Any]:
    """The object that a JSON file of at most so many bytes holds."""
    try:
        # A pipe or a device could be read forever.
        if file.exists() and not file.is_file():
            raise CheckpointError(f"'{file}' must be a file")
        if file.stat().st_size > largest:
            raise CheckpointError(f"'{file}' must have at most {largest} bytes, got {file.stat().st_size}")
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise failure(f"cannot read '{file}'", error) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"'{file}' must be JSON: {error}; fetch it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"'{file}' must hold a JSON object, got {shown(found)}; fetch it again")
    return found


def refuse_code(file: Path, config: dict[str, Any]) -> None:
    """Refuse a config that asks for code to be fetched or run, at any depth of it."""
    rest: list[Any] = [config]
    while rest:
        value = rest.pop()
        rest += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for key in value if isinstance(value, dict) else ():
            if key in _CODE_KEYS:
                raise CheckpointError(
                    f"'{file}' asks for code of its own ({key}), which is never run; take a checkpoint whose model is "
                    f"part of transformers, or remove {key} if it is"
                )
            if key.strip("_").removesuffix("_internal") in _IMPLEMENTATIONS and "/" in str(value[key]):
                raise CheckpointError(f"{key} in '{file}' names code on the hub, which is never run; remove {key}")


def _shards(folder: Path, weight_map: dict[str, str] | None, problems: Problems) -> list[Path]:
    """The safetensors files of a folder: those of its index, or else all."""
    if weight_map is not None:
        found = []
        for name in sorted(set(weight_map.values())):
            with problems.checking(name):
                found.append(folder / _inside(folder, name))
        return found
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return files
    with problems.checking(folder.name):
        _refuse_pickles(folder)
        raise CheckpointError(f"'{folder}' must have safetensors files, and has none; fetch them")
    return []


def _refuse_pickles(folder: Path) -> None:
    pickles = sorted(file.name for kind in ("*.bin", "*.pt", "*.pth") for file in folder.glob(kind))
    if pickles:
        raise CheckpointError(
            f"'{folder}' has its weights in {pickles[0]}, a pickle, which can run any code and is never read; save "
            "the model as safetensors first"
        )


def _read_weight_map(folder: Path) -> dict[str, str] | None:
    """The file of each tensor by the index, if there is one."""
    if not (folder / INDEX).exists():
        return None
    found = read_json(folder / INDEX, _LARGEST_INDEX).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise CheckpointError(f"weight_map in '{folder / INDEX}' must give a file for each tensor; fetch it again")
    return found


def _inside(folder: Path, name: str) -> str:
    """The name of a shard, if it is that of a file in the folder itself."""
    if not name.endswith(".safetensors") or name != Path(name).name or "\\" in name or "\0" in name:
        raise CheckpointError(
            f"a file in '{folder / INDEX}' must be the name of a safetensors file in that folder, got {shown(name)}"
        )
    if not _is_file(folder / name):
        raise CheckpointError(f"'{folder}' must have the file {name}, which its index names, and has none; fetch it")
    return name


def _is_file(file: Path) -> bool:
    # A name may be longer than names of files can be.
    try:
        return file.is_file()
    except OSError:
        return False


def _check_index(name: str, file: str, entries: dict[str, Entry]) -> None:
    """Refuse an index that does not agree with the files."""
    found = entries.get(name)
    if found is None or found.file.name != file:
        has = "no file has it" if found is None else f"it is in {found.file.name}"
        where = f"must be in {file}, as {INDEX} says, and {has}"
        raise CheckpointError(f"{printable(name)} {where}; fetch the folder again")


def _refuse_twice(entries: dict[str, Entry], found: dict[str, Entry]) -> None:
    for name in found.keys() & entries.keys():
        both = f"{entries[name].file.name} and {found[name].file.name}"
        raise CheckpointError(f"{name} must be in one file, got {both}; fetch the folder again")


def _read_header(file: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors of a safetensors file and its metadata."""
    try:
        if not file.is_file() or not file.name.isprintable():
            raise CheckpointError(f"{shown(file.name)} must be a file with a printable name")
        # The library's own reader checks sizes, offsets and dtypes; what it does not tell is where tensors lie.
        with safe_open(str(file), framework="pt"):
            pass
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_HEADER_LENGTH), "little")
            header = json.loads(opened.read(length), object_pairs_hook=_object)
    except OSError as error:
        raise failure(f"cannot read '{file}'", error) from error
    except CheckpointError:
        raise
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"'{file}' must be a safetensors file: {error}; fetch it again") from error
    metadata = header.pop("__metadata__", None) or {}
    start = _HEADER_LENGTH + length
    return {name: _entry(printable(name), about, file, start) for name, about in header.items()}, metadata


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, each key of which is there once: of two, readers would take different ones."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def printable(name: str) -> str:
    """The name of a tensor, if it can be shown: others could write anything into a terminal."""
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        raise CheckpointError(
            f"names of tensors must be at most {_LONGEST_NAME} printable characters, got {shown(name)}"
        )
    return name


def _entry(name: str, about: Any, file: Path, start: int) -> Entry:
    # The library's reader takes lists of the same values, too.
    if not isinstance(about, dict):
        raise CheckpointError(f"{name} in {file.name} must have an object in the header, got {shown(about)}")
    begin, end = about["data_offsets"]
    dtype, shape = about["dtype"], tuple(about["shape"])
    if dtype not in DTYPES:
        known = ", ".join(DTYPES)
        raise CheckpointError(f"{name} in {file.name} must have one of the dtypes {known}, got {dtype}")
    if dtype == "F4" and shape:
        shape = *shape[:-1], shape[-1] // 2
    if math.prod(shape) * DTYPES[dtype].itemsize != end - begin or max(shape, default=0) >= 2**62:
        raise CheckpointError(f"{name} in {file.name} must have whole bytes in each row, got {dtype} {about['shape']}")
    return Entry(name, dtype, shape, file, start + begin, end - begin)
