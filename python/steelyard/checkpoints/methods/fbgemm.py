"""The `fbgemm_fp8` of transformers: FP8 with one scale per out-feature of a weight, and per row of its input."""

from typing import Any

from steelyard.checkpoints.catalog import Catalog
from steelyard.checkpoints.plan import (
    DYNAMIC,
    FP8_ROW,
    ROWS,
    TRANSPOSED,
    LayerInput,
    Plan,
    layer_of,
    make_weight,
    read_bound,
)

METHOD = "fbgemm_fp8"
_CODES, _SCALE = ".weight", "_scale"
_STACKS = ("experts.gate_up_proj", "experts.down_proj")
"""Experts of Llama 4, in one tensor. Both have one scale per column of their results, [E, 1, N] or [E, N, 1]."""
_BOUND = 1200.0
"""What transformers takes if a config says nothing."""


def read_plan(catalog: Catalog, config: dict[str, Any]) -> Plan:
    """The plan of a checkpoint whose config has this `quantization_config`."""
    # A row's amax counts up to the bound: the same codes as those of values that are clamped to it.
    bound = read_bound(config.get("activation_scale_ub", _BOUND), "activation_scale_ub in config.json")
    layer_input = LayerInput(DYNAMIC["row"], bound=bound)
    plan = Plan(METHOD)
    for name in _weights(catalog):
        with catalog.problems.checking(layer_of(name)):
            codes = catalog.require(name, "its codes")
            scales = catalog.require(name + _SCALE, f"the scale of {name}")
            arrangement = TRANSPOSED if name.endswith(_STACKS) else ROWS
            plan.add(make_weight(name, FP8_ROW, codes, scales, arrangement=arrangement), layer_input)
    return plan


def _weights(catalog: Catalog) -> list[str]:
    """The weights that have codes or a scale."""
    codes = {name for name, entry in catalog.items() if entry.dtype == "F8_E4M3"}
    scaled = {name.removesuffix(_SCALE) for name in catalog if name.endswith(_SCALE)}
    return sorted(name for name in codes | scaled if name.endswith((_CODES, *_STACKS)))
