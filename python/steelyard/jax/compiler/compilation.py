"""One function through the passes: its stages, its rows, and what runs it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch_mlir import ir

from steelyard.dialect import print_module
from steelyard.driver.explanation import Row, rows_of
from steelyard.errors import IRError, SteelyardError, shown
from steelyard.insight.collecting import Collector
from steelyard.jax.compiler.importer import Imported, Signature, import_jaxpr
from steelyard.jax.compiler.runner import Runner
from steelyard.passes import build_pass_manager
from steelyard.passes.pipeline.text import Element, named_pipeline, parse_pipeline, run_pass_by_pass
from steelyard.recipes import Overrides, Recipe, Role

STAGES = ("traced", "raised", "quantized", "fused", "partitioned")
"""JAX runs what is partitioned: XLA lowers it."""
_MEASURED = "quantized"
_HOIST, _PACK = "scaled-hoist-from-loops", "scaled-pack-weights{target=cpu}"


@dataclass(frozen=True)
class Source:
    """What is compiled: a jaxpr and how it is to be quantized."""

    closed: Any
    signature: Signature
    recipe: Recipe
    overrides: Overrides
    packs: bool = False
    """Whether weights are quantized once, and so laid out and packed for the products that read them."""
    collector: Collector | None = None
    """What takes the numbers of a program that measures."""

    def elements(self, stage: str) -> list[Element]:
        """The passes that lead to a stage from the one before."""
        # A pattern that matches nothing for these arguments may match for others of the same function.
        recipe = {"recipe": self.recipe, "overrides": self.overrides, "unmatched": "allow"}
        options = recipe if stage == "quantized" else {}
        elements = named_pipeline(f"steelyard-{stage}", **options)
        if self.collector is not None and stage == _MEASURED:
            elements += named_pipeline("steelyard-measured")
        if not self.packs or stage != STAGES[-1]:
            return elements
        # Weights that inputs in high precision are multiplied with are decoded, from where they lie.
        reads_packed = all(each.schemes(Role("input", "")) != (None, None) for each in self._recipes)
        return [*elements, *parse_pipeline(f"{_HOIST},{_PACK}" if reads_packed else _HOIST)]

    @property
    def _recipes(self) -> list[Recipe]:
        return [self.recipe, *(each for each in self.overrides.values() if each is not None)]


class Compilation:
    """A function that has gone through the passes."""

    def __init__(self, source: Source):
        self._source = source
        imported = import_jaxpr(source.closed, source.signature)
        for stage in STAGES[1:]:
            _run(imported.module, source.elements(stage))
            if stage == "fused":
                self.rows: list[Row] = rows_of(imported.module)
                self.layers = {row.layer for row in self.rows}
                # The layers of experts are their weights, which overrides also find by their module.
                self.layers |= {row.weight.rpartition(".")[0] for row in self.rows if row.layer == row.weight}
        self.imported = imported

    @cached_property
    def runner(self) -> Runner:
        """What runs the functions of the last stage."""
        return Runner(self.imported, in_place=not self._source.packs, collector=self._source.collector)

    def module(self, stage: str) -> ir.Module:
        """The module at a stage, made again."""
        if stage not in STAGES:
            raise SteelyardError(f"stage must be one of {', '.join(STAGES)}, got {shown(stage)}")
        imported = self._again()
        for each in STAGES[1 : STAGES.index(stage) + 1]:
            _run(imported.module, self._source.elements(each))
        return imported.module

    def replay(self) -> Iterator[tuple[str, str]]:
        """The name of each pass and the IR that it leaves, after that of the imported function."""
        module = self._again().module
        yield "traced", print_module(module.operation)
        for stage in STAGES[1:]:
            for name, after in run_pass_by_pass(module, self._source.elements(stage)):
                yield name, print_module(after.operation)

    def _again(self) -> Imported:
        return import_jaxpr(self._source.closed, self._source.signature)


def _run(module: ir.Module, elements: list[Element]) -> None:
    try:
        build_pass_manager(elements, module.context).run(module.operation)
    except ir.MLIRError as error:
        reasons = "; ".join(f"{each.location}: {each.message}" for each in error.error_diagnostics) or error.message
        raise IRError(reasons) from None
