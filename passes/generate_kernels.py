"""`scaled-generate-kernels`."""

from torch_mlir import ir

from steelyard.errors import TargetError
from steelyard.ir.attributes import LAUNCHES
from steelyard.passes.pipeline.registry import fail, register_pass


@register_pass
def generate_kernels(module: ir.Operation, *, target: str) -> None:
    """Write the code of the kernels that calls launch, for a target as `cuda:sm_90a`.

    Takes declarations of kernels of CUDA, as `scaled-plan-memory` leaves them. Leaves a `gpu.module` for each kernel
    that is generated, with the function that runs on the GPU, and names them in the declarations that launch them
    (`scaled.launches`): those that a run launches on contiguous tensors. Sizes known only at run time take the code for
    any size; a run may find that its size fits better code. Native GEMMs are torch's own, so that there is no code.
    """
    # What generates code imports torch, which no other pass needs.
    from steelyard.codegen.kernel import append_gpu_module
    from steelyard.runtime.cuda.generation import launched_kernels
    from steelyard.targets.architectures import target_of

    try:
        chosen = target_of(target.removeprefix("cuda:"))
    except TargetError as error:
        fail(module, str(error))
    block = module.regions[0].blocks[0]
    declarations = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in block.operations}
    symbols: dict = {}
    for symbol, kernels in launched_kernels(module, chosen).items():
        for kernel in kernels:
            if kernel not in symbols:
                symbols[kernel] = _free_symbol(kernel.name, {*symbols.values(), *declarations})
                with ir.InsertionPoint(block), ir.Location.unknown():
                    append_gpu_module(kernel, chosen, symbols[kernel])
        launches = [ir.SymbolRefAttr.get([symbols[kernel], kernel.name]) for kernel in kernels]
        if launches:
            declarations[symbol].attributes[LAUNCHES] = ir.ArrayAttr.get(launches)


def _free_symbol(name: str, taken: set[str]) -> str:
    """Kernels that differ in a constant only may share a name."""
    candidates = (name if number == 0 else f"{name}_{number}" for number in range(len(taken) + 1))
    return next(candidate for candidate in candidates if candidate not in taken)
