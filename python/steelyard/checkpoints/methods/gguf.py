"""GGUF: MXFP4 and NVFP4 weights, as `gguf_catalog` presents them."""

from typing import Any

from steelyard.checkpoints.catalog import Catalog
from steelyard.checkpoints.gguf_catalog import BLOCK_SCALES, METHOD
from steelyard.checkpoints.plan import MXFP4, NVFP4, LayerInput, Plan, layer_of, make_weight, refuse


def read_plan(catalog: Catalog, config: dict[str, Any]) -> Plan:
    """The plan of a GGUF file. It says nothing about inputs, which stay in high precision."""
    plan = Plan(METHOD)
    for name in [name for name in catalog if name.endswith(BLOCK_SCALES)]:
        codes, scales = catalog[name.removesuffix(BLOCK_SCALES)], catalog[name]
        with catalog.problems.checking(layer_of(codes.name)):
            if "embed" in codes.name:
                raise refuse(f"{codes.name} in FP4", catalog, "keep embeddings plain when you convert it to GGUF")
            scheme = NVFP4 if scales.dtype == "F8_E4M3" else MXFP4
            second = catalog.get(f"{codes.name}.scale")
            plan.add(make_weight(codes.name, scheme, codes, scales, second), LayerInput(None))
    plan.kept.update({name: catalog[name] for name in catalog if name.endswith(".weight.input_scale")})
    return plan
