"""The `mxfp4` of transformers, in which gpt-oss is published: the experts of each layer in two stacks."""

from typing import Any

from steelyard.checkpoints.catalog import Catalog
from steelyard.checkpoints.plan import BLOCKS, MXFP4, LayerInput, Plan, make_weight, require_dtype

METHOD = "mxfp4"
CODES, SCALES = "_blocks", "_scales"


def read_plan(catalog: Catalog, config: dict[str, Any]) -> Plan:
    """The plan of a checkpoint whose config has this `quantization_config`."""
    plan = Plan(METHOD)
    ends = (CODES, SCALES)
    names = {name.removesuffix(end) for name in catalog for end in ends if name.endswith(f"_proj{end}")}
    for name in sorted(names):
        with catalog.problems.checking(name):
            codes = catalog.require(name + CODES, f"the codes of {name}")
            # Models that transformers decoded and saved have plain values under the names of codes.
            require_dtype(codes, "U8")
            scales = catalog.require(name + SCALES, f"the scales of {codes.name}")
            weight = make_weight(name, MXFP4, codes, scales, arrangement=BLOCKS)
            # Only weights are quantized: the model was trained with inputs in high precision.
            plan.add(weight, LayerInput(None))
    return plan
