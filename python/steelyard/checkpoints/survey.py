"""What is in the folder of a checkpoint, and what is wrong with it, from headers and scales alone."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from steelyard.checkpoints.catalog import CONFIG, Catalog
from steelyard.checkpoints.gguf_catalog import open_catalog
from steelyard.checkpoints.layers import read_number
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.checkpoints.plan import LayerInput, Plan, StoredWeight, layer_of
from steelyard.checkpoints.problems import Problem, Problems
from steelyard.checkpoints.tensors import read_scales
from steelyard.driver import progress
from steelyard.driver.explanation import format_name
from steelyard.errors import CheckpointError

_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("q_a_proj", "kv_a_proj_with_mqa"))
"""Layers with one input, which other programs run as one, with one second level."""
_PLAIN_DTYPES = ("F64", "F32", "BF16", "F16", "I64", "I32", "BOOL")
_SCALE_WORDS = ("scale", "zero_point", "packed", "qdata", "g_idx")
"""Words in the ends of names that only tensors of quantized layers have."""


@dataclass(frozen=True)
class SurveyedLayer:
    """A layer that is quantized."""

    layer: str
    weights: str
    """The format, as `explain()` names it."""
    inputs: str
    """The format of its input; empty if the input stays as it is."""
    shape: tuple[int, ...]
    size: int
    """Bytes of all tensors of the weight."""

    @property
    def elements(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass
class Survey:
    """What a checkpoint holds."""

    folder: Path
    method: str
    layers: list[SurveyedLayer] = field(default_factory=list)
    plain: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Tensors that are not quantized: how many, and their bytes, by dtype."""
    kept: tuple[int, int] = 0, 0
    """Scales of inputs and caches: how many, and their bytes."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        plain = sum(size for _, size in self.plain.values())
        return sum(layer.size for layer in self.layers) + plain + self.kept[1]

    @property
    def bits_per_weight(self) -> float | None:
        """The average of quantized weights, their scales included."""
        elements = sum(layer.elements for layer in self.layers)
        return 8 * sum(layer.size for layer in self.layers) / elements if elements else None


def survey(folder: str | Path) -> Survey:
    """Look at a folder; what is wrong with it is part of the result."""
    with progress.doing(lambda: f"reading {folder}"):
        problems = Problems(is_collecting=True)
        catalog = open_catalog(folder, problems)
        plan = None
        with problems.checking(CONFIG):
            plan = read_plan(catalog)
        found = Survey(catalog.folder, "" if plan is None else plan.method, problems=problems.found)
        if plan is not None:
            _check_scales(plan, problems)
            _check_unexplained(catalog, plan, problems)
            found.notes = plan.odd + plan.not_run
        _describe(found, catalog, plan or Plan(""))
        return found


def _describe(found: Survey, catalog: Catalog, plan: Plan) -> None:
    found.layers = [
        _surveyed(weight, plan.inputs.get(layer_of(weight.name), LayerInput(None))) for weight in plan.weights.values()
    ]
    in_weights = {entry.name for weight in plan.weights.values() for entry in weight.entries}
    kept = [catalog[name] for name in plan.used() - in_weights]
    found.kept = len(kept), sum(entry.size for entry in kept)
    plain = [entry for name, entry in catalog.items() if name not in plan.used()]
    counts, sizes = Counter(entry.dtype for entry in plain), Counter[str]()
    for entry in plain:
        sizes[entry.dtype] += entry.size
    found.plain = {dtype: (counts[dtype], sizes[dtype]) for dtype in sorted(counts)}


def _surveyed(weight: StoredWeight, layer_input: LayerInput) -> SurveyedLayer:
    size = sum(entry.size for entry in weight.entries)
    name = layer_of(weight.name)
    return SurveyedLayer(name, format_name(weight.scheme), _input_name(layer_input), weight.shape, size)


def _input_name(layer_input: LayerInput) -> str:
    if layer_input.recipe is None:
        return ""
    scheme, _ = layer_input.recipe.schemes("input")
    name = "" if scheme is None else format_name(scheme)
    return name + " static" * (layer_input.scale is not None) + ", scaled first" * (layer_input.factor is not None)


def _check_scales(plan: Plan, problems: Problems) -> None:
    """Read the scales of every layer, and note those that are wrong."""
    levels: dict[str, torch.Tensor] = {}
    for count, weight in enumerate(plan.weights.values(), 1):
        layer = layer_of(weight.name)
        progress.step(f"scales of {count} of {len(plan.weights)} layers")
        with problems.checking(layer):
            _, level = read_scales(weight)
            if level is not None:
                levels[layer] = level
        with problems.checking(layer):
            each = plan.inputs.get(layer)
            if each is not None and each.scale is not None:
                read_number(each.scale, is_divisor=each.is_divisor)
    for attention, scales in plan.kv_scales.items():
        with problems.checking(attention):
            for scale in scales:
                read_number(scale, is_divisor=False)
    for layers in _fused(levels):
        with problems.checking(layers[0]):
            _refuse_different(plan, layers, levels)


def _fused(levels: dict[str, torch.Tensor]) -> Iterator[list[str]]:
    """The layers with a second level that other programs run as one."""
    parents = {layer.rpartition(".")[0] for layer in levels}
    for parent in sorted(parents):
        for names in _FUSED:
            found = [layer for name in names if (layer := f"{parent}.{name}") in levels]
            if len(found) > 1:
                yield found


def _refuse_different(plan: Plan, layers: list[str], levels: dict[str, torch.Tensor]) -> None:
    values = [levels[layer].tolist() for layer in layers]
    if any(value != values[0] for value in values):
        entries = [plan.weights[f"{layer}.weight"].second_level for layer in layers]
        places = ", ".join(entry.place for entry in entries if entry is not None)
        raise CheckpointError(
            f"{places} should be one number, got {values}: vLLM takes the largest for all of them, without changing "
            "the others' scales"
        )


def _check_unexplained(catalog: Catalog, plan: Plan, problems: Problems) -> None:
    """Note tensors of quantized layers that the config says nothing about."""
    known = {problem.place for problem in problems.found}
    used = plan.used()
    for name, entry in catalog.items():
        if name in used or any(around in known for around in _around(name)):
            continue
        last = name.rpartition(".")[2]
        if entry.dtype in _PLAIN_DTYPES and not any(word in last for word in _SCALE_WORDS):
            continue
        with problems.checking(name):
            raise CheckpointError(f"{entry.place} ({entry.dtype} {list(entry.shape)}) is not explained by config.json")


def _around(name: str) -> list[str]:
    """The layers that a tensor may belong to."""
    layer = name.rpartition(".")[0]
    return [layer, *(f"{layer}.{end}" for end in ("gate_up_proj", "down_proj"))]
