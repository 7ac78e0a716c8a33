"""Which method a checkpoint is quantized by."""

from typing import Any

from steelyard.checkpoints.catalog import Catalog
from steelyard.checkpoints.methods import (
    compressed_tensors,
    fbgemm,
    fine_grained_fp8,
    gguf,
    gpt_oss,
    modelopt,
    torchao,
)
from steelyard.checkpoints.plan import Plan, read_object
from steelyard.errors import CheckpointError, shown

_METHODS = {
    compressed_tensors.METHOD: compressed_tensors.read_plan,
    fbgemm.METHOD: fbgemm.read_plan,
    fine_grained_fp8.FP8: fine_grained_fp8.read_plan,
    fine_grained_fp8.MX: fine_grained_fp8.read_plan,
    gguf.METHOD: gguf.read_plan,
    gpt_oss.METHOD: gpt_oss.read_plan,
    modelopt.METHOD: modelopt.read_plan,
    torchao.METHOD: torchao.read_plan,
}
PLAIN = "none"
"""The method of a checkpoint that is not quantized."""


def read_plan(catalog: Catalog) -> Plan:
    """What a checkpoint says about its layers, by the method that its config names."""
    config = quantization_config(catalog)
    if config is None:
        return Plan(PLAIN)
    method = config.get("quant_method")
    method = method.lower() if isinstance(method, str) else shown(method)
    if method not in _METHODS:
        known = ", ".join(sorted(_METHODS))
        raise CheckpointError(
            f"quant_method in '{catalog.folder}' must be one of {known}, got {shown(method)}; take the model in one "
            "of these formats, or its plain weights"
        )
    return _METHODS[method](catalog, config)


def quantization_config(catalog: Catalog) -> dict[str, Any] | None:
    """What a config says about quantization; None if it says nothing."""
    text = catalog.config.get("text_config")
    holders = [catalog.config, text if isinstance(text, dict) else {}]
    for key in ("quantization_config", "compression_config"):
        for holder in holders:
            if holder.get(key) is not None:
                return read_object(holder[key], key)
    if (catalog.folder / modelopt.FILE).exists():
        return {"quant_method": modelopt.METHOD, **modelopt.read_file(catalog)}
    return None
