"""The tensors of a quantized checkpoint that transformers must not read, because Steelyard does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import WeightRenaming, rename_source_key

from steelyard.checkpoints.catalog import Catalog, read_catalog
from steelyard.checkpoints.loading import Record, fill, make_record, remember
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.checkpoints.models import find_targets, set_tensor
from steelyard.driver.saving import STATE_PREFIX, join
from steelyard.errors import CheckpointError

_FORMAT = ".format"
_TAKEN = "_steelyard_taken"


@dataclass
class Stored:
    """What Steelyard reads of a checkpoint."""

    catalog: Catalog
    record: Record | None = None
    """The quantized parameters of a published format."""
    own: dict[str, str] = field(default_factory=dict)
    """Those that a net wrote: their names in the files."""
    state: list[str] = field(default_factory=list)
    """The state of recipes."""
    taken: set[str] = field(default_factory=set)
    """The names of all these tensors in the files."""
    hidden: dict[str, nn.Parameter] = field(default_factory=dict)
    """Parameters of the model, as they were before they were hidden."""

    def hide(self, model: Any) -> None:
        """Hide what will be read from transformers: what is no parameter is neither missing nor initialized."""
        for name in self.record.targets if self.record is not None else self.own:
            path, _, attribute = name.rpartition(".")
            module = model.get_submodule(path)
            self.hidden[name] = module._parameters[attribute]
            module._parameters[attribute] = None
            module._is_hf_initialized = True
        model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), f"{_TAKEN}$"}

    def read_into(self, model: Any) -> None:
        """Read the quantized parameters into a model that has all others."""
        for name, parameter in self.hidden.items():
            set_tensor(model, name, parameter)
        if self.record is not None:
            fill(model, self.record.targets)
            remember(model, self.record)
        for name, stored in self.own.items():
            set_tensor(model, name, self._read_own(stored, self.hidden[name]))

    def read_state(self) -> dict[str, torch.Tensor]:
        """The state of recipes, by the names that a net has for it."""
        return {name.removeprefix(STATE_PREFIX): self.catalog[name].read() for name in self.state}

    def _read_own(self, name: str, expected: torch.Tensor) -> torch.Tensor:
        parts = {each: self.catalog[each].read() for each in self.catalog if _belongs(each, name)}
        found = join(parts)[name]
        if found.shape != expected.shape or found.dtype != expected.dtype:
            raise CheckpointError(
                f"{self.catalog[name].place} must hold {list(expected.shape)} in {expected.dtype}, got "
                f"{list(found.shape)} in {found.dtype}; load it with the config and the dtype that it was saved with"
            )
        return found


class TakenNames(WeightRenaming):
    """Renames tensors that transformers must not read to one that it ignores."""

    __slots__ = ("names",)

    def __init__(self, names: set[str]):
        super().__init__(_TAKEN, _TAKEN)
        self.names = names

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        """The name that transformers goes on with."""
        return (_TAKEN if source_key in self.names else source_key), None


def find_stored(model: Any, source: dict[str, Any] | None, files: Sequence[str] | None) -> Stored:
    """What Steelyard reads of a checkpoint with these files; `source` is its config if that is of another method."""
    if not files:
        raise CheckpointError("a quantized checkpoint must be a folder of safetensors files, got a state dict")
    catalog = read_catalog(Path(files[0]).parent)
    return _find_own(model, catalog) if source is None else _find_published(model, catalog, source)


def _find_published(model: Any, catalog: Catalog, source: dict[str, Any]) -> Stored:
    catalog.config = {**catalog.config, "quantization_config": source}
    plan = read_plan(catalog)
    targets = find_targets(model, catalog, plan, allows_extra=True)
    quantized = {name: target for name, target in targets.items() if target.weights}
    # Weights without a place in the model are left to transformers, which reports them.
    placed = {weight.name for target in quantized.values() for weight in target.weights}
    extra = {entry.name for name, weight in plan.weights.items() if name not in placed for entry in weight.entries}
    record = make_record(catalog, plan, quantized)
    return Stored(catalog, record, taken=plan.used() - extra)


def _find_own(model: Any, catalog: Catalog) -> Stored:
    known, stored = model.state_dict(), Stored(catalog)
    for name in (key.removesuffix(_FORMAT) for key in catalog if key.endswith(_FORMAT)):
        renamed, _ = rename_source_key(name, [], [], model.base_model_prefix, known)
        if name in catalog and renamed in known:
            stored.own[renamed] = name
            stored.taken.update(each for each in catalog if _belongs(each, name))
    stored.state = [name for name in catalog if name.startswith(STATE_PREFIX)]
    stored.taken.update(stored.state)
    return stored


def _belongs(part: str, name: str) -> bool:
    return part == name or part.startswith(f"{name}.")
