"""The stages of a compilation, from traced to lowered, each one function with a contract."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.dialect.printing import print_module
from steelyard.errors import IRError
from steelyard.explanation import Row, rows_of
from steelyard.passes import build_pass_manager, parse_pipeline
from steelyard.passes.apply_recipe import decide
from steelyard.recipes import Recipe, get
from steelyard.runtime.program import Program
from steelyard.runtime.state import State
from steelyard.runtime.weights import Weights

STAGES = ("traced", "raised", "quantized", "fused", "partitioned", "lowered")


@dataclass(frozen=True)
class Settings:
    """What a user asked for."""

    recipe: Recipe
    overrides: dict[str, Recipe | None] = field(default_factory=dict)
    state: State = field(default_factory=State)
    """The net's state by name, shared by all its programs."""


def make_settings(recipe: str | Recipe, overrides: Mapping[str, str | Recipe | None] | None = None) -> Settings:
    """Settings from what a user says; raises `RecipeError`."""
    chosen = {pattern: None if other is None else get(other) for pattern, other in (overrides or {}).items()}
    return Settings(get(recipe), chosen)


class Compilation:
    """One graph on its way from ATen ops to a program; keeps the text of every stage."""

    def __init__(self, settings: Settings, weights: Weights):
        self.settings = settings
        self.weights = weights
        self.context = make_context()
        self.stages: dict[str, str] = {}
        self.rows: list[Row] = []
        self.unmatched: list[str] = []
        self.program: Program | None = None
        self.seconds = 0.0
        """How long the stages took."""
        self._quantizers: dict[tuple[str, str], Any] = {}

    def run(self, module: ir.Module) -> Program:
        """Take an imported module through every stage."""
        start = time.perf_counter()
        self._record("traced", module)
        make_raised(module)
        self._record("raised", module)
        self.unmatched = make_quantized(module, self.settings, self._quantizers)
        self._record("quantized", module)
        make_fused(module)
        self.rows = rows_of(module)
        self._record("fused", module)
        make_partitioned(module)
        self._record("partitioned", module)
        self.program = make_lowered(module, self.settings.state, self._quantizers, self.weights)
        self._record("lowered", module)
        self.seconds = time.perf_counter() - start
        return self.program

    def _record(self, stage: str, module: ir.Module) -> None:
        self.stages[stage] = print_module(module.operation)


def make_raised(module: ir.Module) -> None:
    """torch.aten ops -> every GEMM a `scaled.matmul`."""
    _run(module, "steelyard-raised")


def make_quantized(module: ir.Module, settings: Settings, quantizers: dict[tuple[str, str], Any]) -> list[str]:
    """`scaled.matmul` -> `scaled.gemm` on quantized operands; returns override patterns that matched nothing."""
    with module.context:
        unmatched = decide(module.operation, settings.recipe, settings.overrides, quantizers=quantizers)
    _run(module, "scaled-insert-quantize,scaled-merge-quantize,cse,scaled-canonicalize")
    return unmatched


def make_fused(module: ir.Module) -> None:
    """Norms and activations -> into the quantizes after them; activations and residuals -> into the GEMMs before."""
    _run(module, "steelyard-fused")


def make_partitioned(module: ir.Module) -> None:
    """Weights leave the step; a function with gradients -> a forward and a backward."""
    _run(module, "steelyard-partitioned")


def make_lowered(module: ir.Module, state: State, quantizers: dict[tuple[str, str], Any], weights: Weights) -> Program:
    """What is left -> calls of kernels: Python functions."""
    _run(module, "steelyard-lowered")
    return Program(module, state, quantizers, weights)


def _run(module: ir.Module, pipeline: str) -> None:
    try:
        build_pass_manager(parse_pipeline(pipeline), module.context).run(module.operation)
    except ir.MLIRError as error:
        reasons = "; ".join(f"{d.location}: {d.message}" for d in error.error_diagnostics) or error.message
        raise IRError(reasons) from None
