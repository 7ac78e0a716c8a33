"""`scaled-generate-kernels`."""

from torch_mlir import ir

from steelyard.errors import TargetError
from steelyard.ir.attributes import LAUNCHES
from steelyard.ir.kernel_calls import declarations_of
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.passes.support.declared import declared_calls


@register_pass
def generate_kernels(module: ir.Operation, *, target: str) -> None:
    """Generate the code of the kernels that calls launch, for a target such as `cuda:sm_90a`.

    Takes declarations of CUDA kernels, as `scaled-plan-memory` leaves them. Leaves one `gpu.module` per generated
    kernel, with the function that runs on the GPU, and names it in each declaration that launches it
    (`scaled.launches`). These are the kernels that a run launches on contiguous tensors. Sizes known only at run time
    use the code for any size; a run may find that its size allows better code. Native GEMMs are torch's own and have no
    code here.
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
    declarations = declarations_of(module)
    taken = {ir.StringAttr(op.attributes["sym_name"]).value for op in block.operations if "sym_name" in op.attributes}
    symbols: dict = {}
    for symbol, kernels in launched_kernels(declared_calls(module), chosen).items():
        for kernel in kernels:
            if kernel not in symbols:
                symbols[kernel] = _free_symbol(kernel.name, {*symbols.values(), *taken})
                with ir.InsertionPoint(block), ir.Location.unknown():
                    append_gpu_module(kernel, chosen, symbols[kernel])
        launches = [ir.SymbolRefAttr.get([symbols[kernel], kernel.name]) for kernel in kernels]
        if launches:
            declarations[symbol].attributes[LAUNCHES] = ir.ArrayAttr.get(launches)


def _free_symbol(name: str, taken: set[str]) -> str:
    """Kernels that differ in a constant only may share a name."""
    candidates = (name if number == 0 else f"{name}_{number}" for number in range(len(taken) + 1))
    return next(candidate for candidate in candidates if candidate not in taken)
