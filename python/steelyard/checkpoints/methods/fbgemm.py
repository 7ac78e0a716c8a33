"""The `fbgemm_fp8` of transformers: FP8 with one scale per row of a weight, and per row of its input."""

import math
from typing import Any

from steelyard.checkpoints.catalog import Catalog
from steelyard.checkpoints.plan import DYNAMIC, FP8_ROW, LayerInput, Plan, make_weight, refuse
from steelyard.errors import CheckpointError, shown

METHOD = "fbgemm_fp8"
_CODES, _SCALE = ".weight", ".weight_scale"
_STACKS = ("experts.gate_up_proj", "experts.down_proj")
_BOUND = 1200.0
"""What transformers takes if a config says nothing."""


def read_plan(catalog: Catalog, config: dict[str, Any]) -> Plan:
    """The plan of a checkpoint whose config has this `quantization_config`."""
    # A row's amax counts up to the bound: the same codes as those of values that are clamped to it.
    layer_input = LayerInput(DYNAMIC["row"], bound=_bound(config))
    plan = Plan(METHOD)
    for layer in _layers(catalog):
        with catalog.problems.checking(layer):
            codes = catalog.require(layer + _CODES, "its codes")
            scales = catalog.require(layer + _SCALE, f"the scale of {codes.name}")
            plan.add(make_weight(codes.name, FP8_ROW, codes, scales), layer_input)
    return plan


def _bound(config: dict[str, Any]) -> float:
    found = config.get("activation_scale_ub", _BOUND)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or not 0 < found < math.inf:
        raise CheckpointError(f"activation_scale_ub in config.json must be a positive number, got {shown(found)}")
    return float(found)


def _layers(catalog: Catalog) -> list[str]:
    """The layers that have codes or a scale."""
    found = set()
    for name, entry in catalog.items():
        if name.endswith(_STACKS) and entry.dtype == "F8_E4M3":
            raise refuse(
                f"experts of FBGEMM in one tensor ({name})",
                catalog,
                "take the model in the format of compressed-tensors or ModelOpt, or its plain weights",
            )
        if name.endswith(_SCALE):
            found.add(name.removesuffix(_SCALE))
        elif name.endswith(_CODES) and entry.dtype == "F8_E4M3":
            found.add(name.removesuffix(_CODES))
    return sorted(found)
