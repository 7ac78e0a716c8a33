"""Static scales of KV caches: the tensors of a checkpoint, and the attention modules of a model that they belong to."""

from collections.abc import Mapping
from typing import Any

from steelyard.checkpoints.catalog import Catalog, Entry
from steelyard.checkpoints.layers import read_number
from steelyard.checkpoints.models import Target
from steelyard.checkpoints.plan import Plan
from steelyard.errors import CheckpointError

_ENDS = ("k_scale", "v_scale")
_COMPRESSED = "kv_lora_rank"
"""What attention has whose cache other programs keep compressed."""


def find_scales(catalog: Catalog) -> dict[str, tuple[Entry, Entry]]:
    """The scales of keys and of values by attention: compressed-tensors has them there, ModelOpt at its projections."""
    found: dict[str, dict[str, Entry]] = {}
    for name, entry in catalog.items():
        path, _, end = name.rpartition(".")
        if end in _ENDS:
            found.setdefault(path.removesuffix(f".{end[0]}_proj"), {})[end] = entry
    for attention, own in found.items():
        if len(own) < len(_ENDS):
            missing = next(end for end in _ENDS if end not in own)
            place = next(iter(own.values())).place
            raise CheckpointError(
                f"{place} must have a {missing} beside it in {attention}, and has none; fetch it again"
            )
    return {attention: (own["k_scale"], own["v_scale"]) for attention, own in found.items()}


def read_scales(model: Any, targets: Mapping[str, Target], plan: Plan) -> dict[str, tuple[float, float]]:
    """What `steelyard.compile` is told: the scales by attention modules of a model."""
    modules = _modules(targets, plan)
    found: dict[str, tuple[float, float]] = {}
    for attention, (key, value) in plan.kv_scales.items():
        module = modules.get(attention, attention)
        if hasattr(model.get_submodule(module), _COMPRESSED):
            plan.not_run.append(
                f"scales of KV caches are those of compressed keys and values in {attention}, which transformers keeps "
                "expanded; they are not used"
            )
            return {}
        found[module] = read_number(key, is_divisor=False), read_number(value, is_divisor=False)
    return found


def _modules(targets: Mapping[str, Target], plan: Plan) -> dict[str, str]:
    """Modules by the names that they have in the checkpoint, told by where a tensor below them goes."""
    found: dict[str, str] = {}
    for placed, target in targets.items():
        for name in (name for sources in target.sources.values() for name, _ in sources):
            attention = next((path for path in _around(name) if path in plan.kv_scales), None)
            end = "" if attention is None else name.removeprefix(attention)
            if attention is not None and placed.endswith(end):
                found[attention] = placed.removesuffix(end)
    return found


def _around(name: str) -> list[str]:
    """The modules around a tensor, the nearest first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
