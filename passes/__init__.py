"""The passes of the compiler, one a file. Importing this package registers them all."""

from steelyard.passes import (
    apply_recipe,
    canonicalize,
    fuse_epilogue,
    fuse_producer,
    hoist_weights,
    insert_quantize,
    merge_quantize,
    raise_gemms,
)
from steelyard.passes.pipeline import build_pass_manager, parse_pipeline
from steelyard.passes.registry import all_passes

__all__ = [
    "all_passes",
    "apply_recipe",
    "build_pass_manager",
    "canonicalize",
    "fuse_epilogue",
    "fuse_producer",
    "hoist_weights",
    "insert_quantize",
    "merge_quantize",
    "parse_pipeline",
    "raise_gemms",
]
