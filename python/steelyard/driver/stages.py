"""The stages of a compilation, from traced to lowered, each one function with a contract."""

import io
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_mlir import ir

from steelyard.codegen.compilation import compile_kernel
from steelyard.codegen.ptx import lower_to_nvvm
from steelyard.dialect import make_context
from steelyard.dialect.printing import print_module
from steelyard.driver.explanation import Row, rows_of
from steelyard.errors import IRError, RecipeError, SteelyardError
from steelyard.ir.kernel_calls import kernels_of
from steelyard.ir.saved import eager_bytes, kept_bytes, shortened
from steelyard.passes import build_pass_manager, parse_pipeline
from steelyard.passes.apply_recipe import decide
from steelyard.passes.generate_kernels import generate_kernels
from steelyard.passes.partition import COMPACT
from steelyard.passes.pipeline.text import run_pass_by_pass
from steelyard.recipes import Recipe, get
from steelyard.runtime.cuda.devices import Devices
from steelyard.runtime.cuda.generation import launched_kernels
from steelyard.runtime.program import Program
from steelyard.runtime.state import State
from steelyard.runtime.weights import Weights
from steelyard.targets import cuda_target
from steelyard.targets.architectures import Target

WEIGHTS = ("cached", "quantized")
STAGES = ("traced", "raised", "quantized", "fused", "partitioned", "lowered")
CUDA_STAGES = ("gpu", "nvvm", "ptx")
"""Stages of the generated kernels, which only programs for CUDA have."""


@dataclass(frozen=True)
class Settings:
    """What a user asked for."""

    recipe: Recipe
    overrides: dict[str, Recipe | None] = field(default_factory=dict)
    attention: bool = False
    """Quantize the products of attention too."""
    save: str = ""
    """`compact`: keep less between forward and backward, some of it in bf16."""
    check_finite: bool = False
    """Raise at the first operand of a GEMM that is not finite."""
    weights: str = "cached"
    """`cached`: quantized weights are kept beside the parameters; `quantized`: in their place."""
    target: str = "cpu"
    """What programs are compiled for, as `steelyard.targets` spells it."""
    state: State = field(default_factory=State)
    """The net's state by name, shared by all its programs."""

    def capture(self) -> AbstractContextManager:
        """What calls run in: attention is captured as the products it consists of where they are to be quantized."""
        return sdpa_kernel(SDPBackend.MATH) if self.attention else nullcontext()


def make_settings(
    recipe: str | Recipe,
    overrides: Mapping[str, str | Recipe | None] | None = None,
    *,
    attention: bool = False,
    save: str | None = None,
    check_finite: bool = False,
    weights: str = "cached",
    target: str = "cpu",
) -> Settings:
    """Settings from what a user says; raises `RecipeError`."""
    chosen = {pattern: None if other is None else get(other) for pattern, other in (overrides or {}).items()}
    if save not in (None, COMPACT):
        raise RecipeError(f"save must be None or {COMPACT!r}, got {save!r}")
    if weights not in WEIGHTS:
        raise RecipeError(f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}")
    return Settings(
        get(recipe),
        chosen,
        attention=attention,
        save=save or "",
        check_finite=check_finite,
        weights=weights,
        target=target,
    )


class Compilation:
    """One graph on its way from ATen ops to a program; keeps the text of every stage."""

    def __init__(self, settings: Settings, weights: Weights):
        self.settings = settings
        self.weights = weights
        self.context = make_context()
        self.stages: dict[str, str] = {}
        self.rows: list[Row] = []
        self.notes: list[str] = []
        """What else lost bits."""
        self.unmatched: list[str] = []
        self.program: Program | None = None
        self.kept: Counter[str] = Counter()
        """Bytes that the forward leaves to the backward, by layer."""
        self.eager_kept: Counter[str] = Counter()
        """Bytes that torch would keep."""
        self.seconds = 0.0
        """How long the stages took."""
        self._quantizers: dict[tuple[str, str], Any] = {}
        self._imported = b""
        self._lowered = b""

    def run(self, module: ir.Module) -> Program:
        """Take an imported module through every stage."""
        start = time.perf_counter()
        self._imported = _bytecode(module)
        self._record("traced", module)
        self.eager_kept = eager_bytes(module.operation)
        make_raised(module, self.settings)
        self._record("raised", module)
        self.unmatched = make_quantized(module, self.settings, self._quantizers)
        self._record("quantized", module)
        make_fused(module, self.settings)
        self.rows = rows_of(module, self.settings.target)
        self._record("fused", module)
        make_partitioned(module, self.settings)
        self.kept = kept_bytes(module.operation)
        self.notes = [f"{layer or 'the model'}: {what}" for layer, what in shortened(module.operation)]
        self._record("partitioned", module)
        self.program = make_lowered(module, self.settings, self._quantizers, self.weights)
        self._record("lowered", module)
        self._lowered = _bytecode(module)
        self.seconds = time.perf_counter() - start
        return self.program

    def stage(self, name: str) -> str:
        """The text of a stage; kernels are generated when somebody looks at them, or runs them."""
        if name in CUDA_STAGES and name not in self.stages:
            target = cuda_target(self.settings.target)
            if target is None:
                raise SteelyardError(f"stage {name} is of programs for CUDA, and this net is compiled for the CPU")
            self.stages[name] = make_kernels(ir.Module.parse(self._lowered, make_context()), target, name)
        return self.stages[name]

    def replay(self) -> Iterator[tuple[str, str]]:
        """Take the graph through every pass once more: the name of each pass, and the IR it leaves."""
        context = make_context()
        module = ir.Module.parse(self._imported, context)
        yield "traced", print_module(module.operation)
        for name, text in pipelines_of(self.settings):
            if name == "quantized":
                with context:
                    _apply(module, self.settings, {})
                yield "scaled-apply-recipe", print_module(module.operation)
            for pass_name, left in run_pass_by_pass(module, text):
                yield pass_name, print_module(left.operation)

    def _record(self, stage: str, module: ir.Module) -> None:
        self.stages[stage] = print_module(module.operation)


def pipelines_of(settings: Settings) -> list[tuple[str, str]]:
    """The passes of each stage after the first; a recipe with overrides is applied before those of `quantized`."""
    return [
        ("raised", "steelyard-raised"),
        ("quantized", "scaled-insert-quantize,scaled-merge-quantize,cse,scaled-canonicalize"),
        ("fused", "steelyard-fused"),
        ("partitioned", f"steelyard-partitioned{{save={settings.save}}}"),
        ("lowered", f"steelyard-lowered{{target={settings.target}}}"),
    ]


def make_raised(module: ir.Module, settings: Settings) -> None:
    """torch.aten ops -> every GEMM a `scaled.matmul`."""
    _run(module, settings, "raised")


def make_quantized(module: ir.Module, settings: Settings, quantizers: dict[tuple[str, str], Any]) -> list[str]:
    """`scaled.matmul` -> `scaled.gemm` on quantized operands; returns override patterns that matched nothing."""
    with module.context:
        unmatched = _apply(module, settings, quantizers)
    _run(module, settings, "quantized")
    return unmatched


def _apply(module: ir.Module, settings: Settings, quantizers: dict[tuple[str, str], Any]) -> list[str]:
    return decide(
        module.operation,
        settings.recipe,
        settings.overrides,
        attention=settings.attention,
        quantizers=quantizers,
    )


def make_fused(module: ir.Module, settings: Settings) -> None:
    """Norms and activations -> into the quantizes after them; activations and residuals -> into the GEMMs before."""
    _run(module, settings, "fused")


def make_partitioned(module: ir.Module, settings: Settings) -> None:
    """Weights leave the step; a function with gradients -> a forward and a backward."""
    _run(module, settings, "partitioned")


def make_lowered(
    module: ir.Module, settings: Settings, quantizers: dict[tuple[str, str], Any], weights: Weights
) -> Program:
    """What is left -> calls of kernels: Python functions."""
    _run(module, settings, "lowered")
    target = cuda_target(settings.target)
    # A part of a net that quantizes nothing runs wherever its tensors are.
    runs_kernels = any(kernel.name.startswith("cuda.") for kernel in kernels_of(module.operation).values())
    devices = Devices(target) if target is not None and runs_kernels else None
    return Program(module, settings.state, quantizers, weights, settings.check_finite, devices)


def make_kernels(module: ir.Module, target: Target, stage: str) -> str:
    """A lowered program for CUDA -> the kernels that its calls launch: with them (gpu), in NVVM, or as PTX."""
    with module.context:
        if stage == "ptx":
            launched = launched_kernels(module.operation, target).values()
            kernels = dict.fromkeys(kernel for kernels in launched for kernel in kernels)
            return "\n".join(_without_heading(compile_kernel(kernel, target).ptx) for kernel in kernels)
        generate_kernels(module.operation, target=f"cuda:{target.name}")
    if stage == "nvvm":
        lower_to_nvvm(module)
    return print_module(module.operation)


def _without_heading(ptx: str) -> str:
    return ptx[ptx.index(".version") :]


def _bytecode(module: ir.Module) -> bytes:
    """A module with its locations, which its text leaves out."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _run(module: ir.Module, settings: Settings, stage: str) -> None:
    pipeline = dict(pipelines_of(settings))[stage]
    try:
        build_pass_manager(parse_pipeline(pipeline), module.context).run(module.operation)
    except ir.MLIRError as error:
        reasons = "; ".join(f"{d.location}: {d.message}" for d in error.error_diagnostics) or error.message
        raise IRError(reasons) from None
