"""Lowered programs in the disk cache: what their key is made of, and what is kept of each.

An entry is data: the bytecode of each stage after the traced one, and what a net tells about it. It holds names, sizes
and source lines, and no values of tensors: those are arguments of every program.
"""

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch_mlir import ir

import steelyard
from steelyard import codegen, dialect, driver, formats, passes, recipes, targets
from steelyard import ir as own_ir
from steelyard.cache_folder import CacheFolder, find_cache
from steelyard.driver.explanation import Row
from steelyard.driver.settings import Settings
from steelyard.driver.user_warnings import warn
from steelyard.errors import FileError, RecipeError, SteelyardError, SteelyardWarning
from steelyard.recipes import Overrides, Recipe
from steelyard.runtime import cpu

_FORMAT = 1
_SIZE_BYTES = 8

_said: set[str] = set()
"""The warnings so far: each is given once per process."""


@dataclass(frozen=True)
class Lowering:
    """What the passes make of a traced module."""

    stages: Mapping[str, bytes]
    """The bytecode of each stage, from raised to lowered."""
    rows: list[Row]
    shortened: list[tuple[str, str]]
    kept: Counter[str]
    eager_kept: Counter[str]


class CachedLowering:
    """The place of one lowering in the disk cache."""

    def __init__(self, traced: bytes, settings: Settings):
        self._folder = _find_folder()
        self._key = None if self._folder is None else _key(traced, settings)

    def load(self, context: ir.Context) -> tuple[Lowering, ir.Module] | None:
        """The lowering and its last module, if they are there; warns of a file that is not used."""
        if self._folder is None or self._key is None:
            return None
        try:
            data = self._folder.read(self._key)
            if data is None:
                return None
            try:
                lowering = _decode(data)
                return lowering, ir.Module.parse(lowering.stages["lowered"], context)
            except (ir.MLIRError, KeyError, TypeError, ValueError, zlib.error) as error:
                raise self._folder.refused(self._key, f"it cannot be read: {type(error).__name__}") from None
        except FileError as error:
            _warn_once(str(error))
            return None

    def store(self, lowering: Lowering) -> None:
        """Keep a lowering; warns where this cannot be done."""
        if self._folder is None or self._key is None:
            return
        try:
            self._folder.write(self._key, _encode(lowering))
        except FileError as error:
            _warn_once(str(error))


def _find_folder() -> CacheFolder | None:
    try:
        return find_cache()
    except SteelyardError as error:
        _warn_once(str(error))
        return None


def _warn_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        try:
            warn(message)
        except SteelyardWarning as error:
            # The user turns warnings into errors: this one is not a fault of the compiler's.
            raise FileError(message) from error


def _key(traced: bytes, settings: Settings) -> str | None:
    """A hash of all that a lowering depends on; None if code of the user's own is part of that.

    The bytecode of a traced module has its ops with their layers and source lines, and the names of its parameters.
    """
    try:
        chosen = {field.name: _plain(getattr(settings, field.name)) for field in fields(settings) if field.compare}
    except RecipeError:
        return None
    described = json.dumps([_FORMAT, _versions(), cpu.isa(), chosen]).encode()
    return hashlib.sha256(len(described).to_bytes(_SIZE_BYTES) + described + traced).hexdigest()


def _plain(setting: Any) -> Any:
    """A setting as data; raises `RecipeError` for a recipe that is not one of ours, or that holds a function."""
    if isinstance(setting, Overrides):
        return [(pattern, None if recipe is None else _plain(recipe)) for pattern, recipe in setting.items()]
    if not isinstance(setting, Recipe):
        return setting
    if type(recipes.get(setting.name)) is not type(setting):
        raise RecipeError(f"{type(setting).__name__} must be one of this package's recipes")
    return setting.to_dict()


@cache
def _versions() -> list[str]:
    return [steelyard.__version__, torch.__version__, version("torch-mlir"), _sources()]


def _sources() -> str:
    """A hash of the sources that make a lowering: where they are worked on, the version stays."""
    files = [Path(recipes.__file__)]
    for room in (codegen, dialect, driver, formats, own_ir, passes, targets):
        files += sorted(Path(room.__path__[0]).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _encode(lowering: Lowering) -> bytes:
    told = {
        "stages": [(stage, len(bytecode)) for stage, bytecode in lowering.stages.items()],
        "rows": [asdict(row) for row in lowering.rows],
        "shortened": lowering.shortened,
        "kept": lowering.kept,
        "eager_kept": lowering.eager_kept,
    }
    text = json.dumps(told).encode()
    return zlib.compress(b"".join([len(text).to_bytes(_SIZE_BYTES), text, *lowering.stages.values()]), 1)


def _decode(data: bytes) -> Lowering:
    data = zlib.decompress(data)
    end = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES])
    told = json.loads(data[_SIZE_BYTES:end])
    stages = {}
    for stage, size in told["stages"]:
        stages[stage] = data[end : end + size]
        end += size
    rows = [Row(**row) for row in told["rows"]]
    shortened = [(layer, what) for layer, what in told["shortened"]]
    return Lowering(stages, rows, shortened, Counter(told["kept"]), Counter(told["eager_kept"]))
