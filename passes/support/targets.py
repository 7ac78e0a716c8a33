"""The target that passes are told to compile for."""

from torch_mlir import ir

from steelyard.passes.pipeline.registry import fail
from steelyard.targets import TARGETS, cuda_target, is_target
from steelyard.targets.architectures import Target


def read_target(module: ir.Operation, target: str) -> Target | None:
    """The CUDA architecture that a target names; None for the CPU. An unknown target fails the pass."""
    if not is_target(target):
        fail(module, f"target must be one of {', '.join(TARGETS)}, got '{target}'")
    return cuda_target(target)
