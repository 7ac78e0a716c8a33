"""The stages of a compilation, from traced to lowered, one function per stage."""

from collections.abc import Sequence

from torch_mlir import ir

from steelyard.codegen.compilation import compile_kernel
from steelyard.codegen.launches.text import generated_kernels
from steelyard.codegen.ptx import lower_to_nvvm
from steelyard.driver import progress
from steelyard.driver.settings import MEASURED, SWITCHED, Settings
from steelyard.errors import IRError
from steelyard.ir.kernel_calls import calls_of
from steelyard.passes import build_pass_manager
from steelyard.passes.generate_kernels import generate_kernels
from steelyard.passes.pipeline.named import STAGES
from steelyard.passes.pipeline.text import Element, named_pipeline
from steelyard.runtime.cuda.devices import Devices
from steelyard.runtime.entry import BlockStep
from steelyard.runtime.program import Program, read_program
from steelyard.runtime.quantizers import Quantizers
from steelyard.runtime.state import State
from steelyard.runtime.weights import Weights
from steelyard.targets import cuda_target, spelled
from steelyard.targets.architectures import Target


def pipeline_of(stage: str, settings: Settings) -> list[Element]:
    """The passes from the previous stage to this one: the named pipeline that `steelyard-opt` runs."""
    options = settings.stage_options()
    pipeline = named_pipeline(f"steelyard-{stage}", **options[stage])
    if stage != "quantized" or not settings.variant:
        return pipeline
    more = SWITCHED if settings.variant == SWITCHED else MEASURED
    return [*pipeline, *named_pipeline(f"steelyard-{more}", **options[more])]


def make_raised(module: ir.Module, settings: Settings) -> None:
    """torch.aten ops -> every GEMM a `scaled.matmul`."""
    _run(module, settings, "raised")


def make_quantized(module: ir.Module, settings: Settings) -> None:
    """`scaled.matmul` -> `scaled.gemm` on quantized operands, where the recipe quantizes them."""
    _run(module, settings, "quantized")


def make_fused(module: ir.Module, settings: Settings) -> None:
    """Norms and activations -> into the quantizes after them; activations and residuals -> into the GEMMs before."""
    _run(module, settings, "fused")


def make_partitioned(module: ir.Module, settings: Settings) -> None:
    """The quantization of weights -> functions of their own; a function with gradients -> a forward and a backward."""
    _run(module, settings, "partitioned")


def make_lowered(module: ir.Module, settings: Settings) -> None:
    """What is left -> calls of kernels and torch's ops on plain tensors."""
    _run(module, settings, "lowered")


def make_program(
    module: ir.Module,
    settings: Settings,
    state: State,
    quantizers: Quantizers,
    weights: Weights,
    blocks: Sequence[BlockStep] = (),
) -> Program:
    """A lowered module -> Python functions that call kernels, and blocks by number."""
    target = cuda_target(settings.target)
    # A program that quantizes nothing runs on any device.
    runs_kernels = any(call.device == "cuda" for call in calls_of(module.operation).values())
    devices = None
    if target is not None and runs_kernels:
        devices = Devices(target, tuple(generated_kernels(module.operation).values()))
    return read_program(module, state, quantizers, weights, settings.check_finite, devices, blocks)


def make_kernels(module: ir.Module, target: Target, stage: str) -> None:
    """A lowered program for CUDA -> the same with the kernels that its calls launch: as GPU code, or in NVVM."""
    with module.context:
        generate_kernels(module.operation, target=spelled(target))
    if stage == "nvvm":
        lower_to_nvvm(module)


def make_ptx(module: ir.Module, target: Target) -> str:
    """A lowered program for CUDA -> the PTX of the kernels that its calls launch, one PTX module per kernel."""
    with module.context:
        kernels = generated_kernels(module.operation).values()
    return "\n".join(_without_heading(compile_kernel(kernel, target).ptx) for kernel in kernels)


def _without_heading(ptx: str) -> str:
    return ptx[ptx.index(".version") :]


def _run(module: ir.Module, settings: Settings, stage: str) -> None:
    progress.step(stage)
    try:
        build_pass_manager(pipeline_of(stage, settings), module.context).run(module.operation)
    except ir.MLIRError as error:
        reasons = "; ".join(f"{d.location}: {d.message}" for d in error.error_diagnostics) or error.message
        raise IRError(reasons) from None


__all__ = [
    "STAGES",
    "make_fused",
    "make_kernels",
    "make_lowered",
    "make_partitioned",
    "make_program",
    "make_ptx",
    "make_quantized",
    "make_raised",
    "pipeline_of",
]
