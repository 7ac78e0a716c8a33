"""The passes of the compiler, one a file. Importing this package registers them all."""

from steelyard.passes import canonicalize, insert_quantize
from steelyard.passes.pipeline import build_pass_manager, parse_pipeline
from steelyard.passes.registry import all_passes

__all__ = ["all_passes", "build_pass_manager", "canonicalize", "insert_quantize", "parse_pipeline"]
