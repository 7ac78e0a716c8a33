"""The stages of a compilation, from traced to lowered, each one function with a contract."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.dialect.printing import print_module
from steelyard.errors import IRError, RecipeError
from steelyard.explanation import Row, rows_of
from steelyard.passes import build_pass_manager, parse_pipeline
from steelyard.passes.apply_recipe import decide
from steelyard.passes.partition import COMPACT
from steelyard.passes.saved import eager_bytes, kept_bytes
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
    save: str = ""
    """`compact`: keep less between forward and backward, some of it in bf16."""
    check_finite: bool = False
    """Raise at the first operand of a GEMM that is not finite."""
    state: State = field(default_factory=State)
    """The net's state by name, shared by all its programs."""


def make_settings(
    recipe: str | Recipe,
    overrides: Mapping[str, str | Recipe | None] | None = None,
    *,
    save: str | None = None,
    check_finite: bool = False,
) -> Settings:
    """Settings from what a user says; raises `RecipeError`."""
    chosen = {pattern: None if other is None else get(other) for pattern, other in (overrides or {}).items()}
    if save not in (None, COMPACT):
        raise RecipeError(f"save must be None or {COMPACT!r}, got {save!r}")
    return Settings(get(recipe), chosen, save=save or "", check_finite=check_finite)


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
        self.kept: Counter[str] = Counter()
        """Bytes that the forward leaves to the backward, by layer."""
        self.eager_kept: Counter[str] = Counter()
        """Bytes that torch would keep."""
        self.seconds = 0.0
        """How long the stages took."""
        self._quantizers: dict[tuple[str, str], Any] = {}

    def run(self, module: ir.Module) -> Program:
        """Take an imported module through every stage."""
        start = time.perf_counter()
        self._record("traced", module)
        self.eager_kept = eager_bytes(module.operation)
        make_raised(module)
        self._record("raised", module)
        self.unmatched = make_quantized(module, self.settings, self._quantizers)
        self._record("quantized", module)
        make_fused(module)
        self.rows = rows_of(module)
        self._record("fused", module)
        make_partitioned(module, self.settings)
        self.kept = kept_bytes(module.operation)
        self._record("partitioned", module)
        self.program = make_lowered(module, self.settings, self._quantizers, self.weights)
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


def make_partitioned(module: ir.Module, settings: Settings) -> None:
    """Weights leave the step; a function with gradients -> a forward and a backward."""
    _run(module, f"steelyard-partitioned{{save={settings.save}}}")


def make_lowered(
    module: ir.Module, settings: Settings, quantizers: dict[tuple[str, str], Any], weights: Weights
) -> Program:
    """What is left -> calls of kernels: Python functions."""
    _run(module, "steelyard-lowered")
    return Program(module, settings.state, quantizers, weights, settings.check_finite)


def _run(module: ir.Module, pipeline: str) -> None:
    try:
        build_pass_manager(parse_pipeline(pipeline), module.context).run(module.operation)
    except ir.MLIRError as error:
        reasons = "; ".join(f"{d.location}: {d.message}" for d in error.error_diagnostics) or error.message
        raise IRError(reasons) from None
