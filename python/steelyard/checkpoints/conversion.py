"""Quantize a checkpoint file by file, with no more in memory than one file and one weight."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from steelyard import recipes
from steelyard.checkpoints import folders
from steelyard.checkpoints.catalog import Catalog, Entry, read_catalog, read_entries
from steelyard.checkpoints.layer_formats import LayerFormat, format_of, fused_names, parts_in
from steelyard.checkpoints.loading import empty_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.checkpoints.models import find_targets
from steelyard.checkpoints.saving import WRITERS
from steelyard.checkpoints.selection import Selection, fits
from steelyard.errors import CheckpointError, shown
from steelyard.files import failure
from steelyard.recipes import Overrides

DEFAULT_IGNORED = ("lm_head",)
_STATE = "conversion.json"
"""In an unfinished folder: what it is a conversion of, so that it goes on only with the same."""


def convert(
    source: str | Path,
    folder: str | Path,
    recipe: str | recipes.Recipe,
    *,
    format: str = "compressed-tensors",
    ignore: Iterable[str] = DEFAULT_IGNORED,
) -> Iterator[int]:
    """Quantize the weights of a plain checkpoint by a recipe, and write it in a format.

    Yields the bytes of each tensor that was read, and of each file that is there already: `total_size` are all. A
    conversion that was interrupted goes on after its last whole file if it is started again with the same arguments.
    The folder has its name when everything is there; before, it ends in `.unfinished`.
    """
    source, folder = Path(source), Path(folder)
    if format not in WRITERS:
        raise CheckpointError(f"format must be one of {', '.join(WRITERS)}, got {shown(format)}")
    folders.check_new(folder)
    work = _Conversion(read_catalog(source), recipes.get(recipe).settled(trains=False), format, list(ignore))
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    work.begin(unfinished)
    for file, entries in work.files().items():
        if (unfinished / file).exists():
            yield sum(entry.size for entry in entries)
            continue
        found: dict[str, torch.Tensor] = {}
        for entry in entries:
            found.update(work.tensors(entry))
            yield entry.size
        folders.write_shard(unfinished / file, found, {})
    work.end(unfinished)
    folders.rename(unfinished, folder)


def total_size(source: str | Path) -> int:
    """The bytes of all tensors of a checkpoint."""
    return sum(entry.size for entry in read_catalog(source).values())


class _Conversion:
    """One checkpoint, and how its layers are written."""

    def __init__(self, catalog: Catalog, recipe: recipes.Recipe, format: str, ignore: list[str]):
        plan = read_plan(catalog)
        if plan.weights:
            raise CheckpointError(
                f"'{catalog.folder}' is quantized already ({plan.method}); convert the plain checkpoint of the model, "
                "or load this one and save it in another format"
            )
        self._catalog, self._format, self._writer = catalog, format, WRITERS[format]
        self._model = empty_model(catalog, None)
        overrides = Overrides(dict.fromkeys(ignore))
        self._selection = Selection(self._model, recipe, overrides)
        self._about = {"recipe": recipe.to_dict(), "format": format, "ignore": ignore}
        self._layers: dict[str, LayerFormat] = {}
        """By the names of weights."""
        for name, target in find_targets(self._model, catalog, plan).items():
            own = self._selection.recipe_of(name)
            for entry in target.entries if own is not None else []:
                self._add(entry, name, own)
        if not self._layers:
            raise CheckpointError(f"'{catalog.folder}' must have linear layers to quantize, and has none")
        self._amaxes: dict[str, float] = {}

    def _add(self, entry: Entry, parameter: str, recipe: Any) -> None:
        """Note a weight that is quantized, if it is a matrix that its format can hold."""
        layer = entry.name.removesuffix(".weight")
        format = format_of(layer, parameter.removesuffix(".weight"), recipe)
        if len(entry.shape) == 2 and entry.name != layer and fits(self._writer.stored_scheme(format), entry.shape):
            self._layers[entry.name] = format

    def files(self) -> dict[str, list[Entry]]:
        """The tensors of each file, in the order in which they lie there."""
        found: dict[str, list[Entry]] = {}
        for entry in sorted(self._catalog.values(), key=lambda entry: (entry.file.name, entry.offset)):
            found.setdefault(entry.file.name, []).append(entry)
        return found

    def begin(self, unfinished: Path) -> None:
        """Make the folder, or go on with one of the same conversion."""
        sizes = {entry.file.name: entry.file.stat().st_size for entry in self._catalog.values()}
        about = {**self._about, "files": sizes}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        state = unfinished / _STATE
        if unfinished.exists():
            known = state.read_text() if state.exists() else ""
            if known != digest:
                raise CheckpointError(
                    f"'{unfinished}' is an unfinished conversion of something else; remove it, or choose another folder"
                )
            return
        try:
            unfinished.mkdir(parents=True)
            state.write_text(digest)
        except OSError as error:
            raise failure(f"cannot write '{unfinished}'", error) from error

    def tensors(self, entry: Entry) -> dict[str, torch.Tensor]:
        """What is written of a tensor."""
        format = self._layers.get(entry.name)
        if format is None:
            return {entry.name: entry.read()}
        scheme = self._writer.stored_scheme(format)
        amax = self._amax(format.name) if scheme.family == "nvfp4" else 0.0
        return self._writer.layer_tensors(format, parts_in(scheme, entry.read(), amax, format))

    def _amax(self, layer: str) -> float:
        """The largest magnitude of all layers that share their second level with one."""
        names = [f"{each}.weight" for each in fused_names(layer)]
        for name in names:
            if name in self._layers and name not in self._amaxes:
                self._amaxes[name] = float(self._catalog[name].read().abs().amax())
        return max(self._amaxes.get(name, 0.0) for name in names)

    def end(self, unfinished: Path) -> None:
        """Write what describes the files, which are all there."""
        layers = list(self._layers.values())
        about, texts = self._writer.describe(layers, self._selection.ignored(layer.name for layer in layers))
        written = read_entries(sorted(unfinished.glob("*.safetensors")))
        size = sum(entry.size for entry in written.values())
        config = {**self._catalog.config, "quantization_config": about}
        folders.write_texts(unfinished, config, {name: entry.file.name for name, entry in written.items()}, size)
        folders.write_json_files(unfinished, texts)
        folders.copy_companions(self._catalog.folder, unfinished)
        (unfinished / _STATE).unlink()
