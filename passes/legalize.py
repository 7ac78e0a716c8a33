"""`scaled-legalize`."""

from torch_mlir import ir

from steelyard.passes.registry import fail, register_pass

TARGETS = ("cpu",)


@register_pass
def legalize(module: ir.Operation, *, target: str) -> None:
    """Give GEMMs the layout, padding and epilogues that a target takes.

    Takes `scaled.gemm` on quantized tensors. Leaves ops before and after it (`pad`, `unpad`, `swizzle`, `transpose`)
    where the target's GEMMs need them. Those of the CPU take any shape, the compact scales and every epilogue, so
    that nothing changes.
    """
    if target not in TARGETS:
        fail(module, f"target must be one of {', '.join(TARGETS)}, got '{target}'")
