"""`scaled-verify-stage`."""

from torch_mlir import ir

from steelyard.ir.contract import OPS, check_module
from steelyard.passes.pipeline.registry import fail, register_pass


@register_pass
def verify_stage(module: ir.Operation, *, stage: str) -> None:
    """Hold a module against the contract of a stage.

    Takes any module. Changes nothing, and fails at the first op that the stage must not have, or whose `scaled.*`
    attributes are unknown, misplaced, of the wrong kind, or of another stage. The pipeline of each stage ends with it.
    """
    if stage not in OPS:
        fail(module, f"stage must be one of {', '.join(OPS)}, got '{stage}'")
    for op, error in check_module(module, stage):
        fail(op, str(error))
