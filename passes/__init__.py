"""The passes of the compiler, one per file. Importing this package registers them all."""

from steelyard.passes import (
    apply_recipe,
    canonicalize,
    expand_scales,
    fuse_epilogue,
    fuse_producer,
    generate_kernels,
    hoist_weights,
    insert_quantize,
    legalize,
    lower_storage,
    merge_quantize,
    pack_weights,
    partition,
    plan_launches,
    plan_memory,
    raise_gemms,
    select_kernels,
    verify_stage,
)
from steelyard.passes.pipeline.registry import all_passes
from steelyard.passes.pipeline.text import build_pass_manager, parse_pipeline

__all__ = [
    "all_passes",
    "apply_recipe",
    "build_pass_manager",
    "canonicalize",
    "expand_scales",
    "fuse_epilogue",
    "fuse_producer",
    "generate_kernels",
    "hoist_weights",
    "insert_quantize",
    "legalize",
    "lower_storage",
    "merge_quantize",
    "pack_weights",
    "parse_pipeline",
    "partition",
    "plan_launches",
    "plan_memory",
    "raise_gemms",
    "select_kernels",
    "verify_stage",
]
