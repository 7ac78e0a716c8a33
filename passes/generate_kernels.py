"""`scaled-generate-kernels`."""

from torch_mlir import ir

from steelyard.codegen.kernel import append_entry
from steelyard.codegen.kernel_attributes import read_kernel
from steelyard.dialect.launch import LaunchOp
from steelyard.errors import IRError, SteelyardError, TargetError
from steelyard.ir.attributes import CODE
from steelyard.ir.torch_ops import walk_ops
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.targets.architectures import Target, target_of


@register_pass
def generate_kernels(module: ir.Operation, *, target: str) -> None:
    """Write the code of the kernels that calls launch, for a target such as `cuda:sm_90a`.

    Takes `scaled.launch` of kernels that are declared by an empty `gpu.module`, as `scaled-plan-launches` leaves them.
    Leaves in each of these the function that runs on the GPU.
    """
    try:
        chosen = target_of(target.removeprefix("cuda:"))
    except TargetError as error:
        fail(module, str(error))
    declared = {
        ir.StringAttr(op.attributes["sym_name"]).value: op.operation
        for op in module.regions[0].blocks[0].operations
        if op.operation.name == "gpu.module" and CODE in op.attributes
    }
    launches = [op.opview for op in walk_ops(module) if isinstance(op.opview, LaunchOp)]
    for symbol, launch in {launch.symbol: launch for launch in launches}.items():
        if symbol not in declared:
            fail(launch, f"kernel must be a gpu.module with {CODE}, got @{symbol}; run scaled-plan-launches")
        _generate(declared[symbol], chosen)


def _generate(gpu_module: ir.Operation, target: Target) -> None:
    """Write a kernel's code, unless it is there."""
    block = gpu_module.regions[0].blocks[0]
    if len(list(block.operations)) > 0:
        return
    try:
        kernel = read_kernel(gpu_module.attributes[CODE])
        with ir.InsertionPoint(block), ir.Location.unknown():
            append_entry(kernel, target)
    except IRError as error:
        fail(gpu_module, str(error))
    except (KeyError, TypeError, ValueError, AttributeError, SteelyardError) as error:
        fail(gpu_module, f"{CODE} must describe a kernel, got {gpu_module.attributes[CODE]}: {error!r}")
