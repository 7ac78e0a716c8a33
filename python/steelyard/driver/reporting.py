"""Collects what a report says of a net."""

import linecache
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch_mlir import ir

import steelyard
from steelyard.dialect import make_context
from steelyard.driver.backend import Backend
from steelyard.driver.compilation import Compilation
from steelyard.driver.explanation import Explanation, Row
from steelyard.driver.memory import Memory, parameter_bytes
from steelyard.driver.printed_graphs import lines_of_graphs, printed_layers
from steelyard.driver.stages import STAGES
from steelyard.driver.timing import time_calls
from steelyard.errors import FileError, SteelyardError, shown
from steelyard.insight.report import (
    HeldBytes,
    MemoryUse,
    Program,
    Report,
    ReportRow,
    SharedLayer,
    Shares,
    StageText,
    Timing,
)
from steelyard.insight.report_page import check_paths, write_report
from steelyard.insight.results import Attribution, GemmMeasurement, Measurement
from steelyard.ir.functions import functions_of
from steelyard.ir.live_bytes import live_steps
from steelyard.ir.renaming import Renaming
from steelyard.recipes import OWN, Recipe
from steelyard.tensor.quantized_tensor import QuantizedTensor

_LONGEST_LINE = 200
_SUFFIXES = (".html", ".htm")
_PACKAGES = "site-packages"


def write_report_of(net: Any, path: str | os.PathLike[str], batches: Iterable[Any] | None) -> Report:
    """Make the report of a net, and write its page and its JSON."""
    if not isinstance(path, str | os.PathLike) or Path(path).suffix not in _SUFFIXES:
        raise FileError(f"the path of a report must end with .html, got {shown(path)}")
    path = Path(path)
    check_paths(path)
    timing = None
    if batches is not None:
        given = list(batches)
        if not given:
            raise SteelyardError("batches must hold at least one batch, got none; leave them out to measure nothing")
        timing = time_batch(net, given[0])
    report = collect(net, None, None, timing)
    write_report(report, path)
    return report


def collect(
    net: Any, measurement: Measurement | None, attribution: Attribution | None, timing: Timing | None
) -> Report:
    """The report of a net that has run."""
    backend: Backend = net._steelyard.backend
    explanation: Explanation = net.explain()
    return Report(
        model=type(net._steelyard.model).__name__,
        recipe=recipe_name(backend.settings.recipe),
        target=backend.settings.target,
        steelyard=steelyard.__version__,
        steps=measurement.steps if measurement else 0,
        rows=_rows(explanation.rows, measurement.rows if measurement else []),
        notes=explanation.notes,
        shares=Shares(**vars(explanation.shares)),
        output=measurement.output if measurement else None,
        attribution=attribution,
        memory=_memory(net, explanation),
        timing=timing,
        program=_program(backend.compilations),
    )


def recipe_name(recipe: Recipe) -> str:
    """A recipe as `steelyard.compile` takes it, without its other options."""
    if recipe.activations == OWN:
        return recipe.name
    given = recipe.activations
    return f"{recipe.name}/{given.name if isinstance(given, Recipe) else given or 'none'}"


def time_batch(net: Any, batch: Any) -> Timing:
    """Time calls of a net, and of its model, with one batch."""
    model = net._steelyard.model
    arguments, keywords = arguments_of(batch)
    with torch.no_grad():
        net(*arguments, **keywords)
        layers = {row.layer for row in net.explain().rows}
        runs = not any(isinstance(parameter, QuantizedTensor) for parameter in model.parameters())
        return time_calls(
            partial(net, *arguments, **keywords), partial(model, *arguments, **keywords) if runs else None, layers
        )


def arguments_of(batch: Any) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a call for a batch: a tuple or list of them, a dict of keywords, or the only one."""
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def _rows(rows: Sequence[Row], measured: Iterable[GemmMeasurement]) -> list[ReportRow]:
    """The rows of `explain()`, each with what was measured of the same GEMM."""
    found = {(one.layer, one.kind, one.number): one for one in measured}
    seen: Counter[tuple[str, str]] = Counter()
    made = []
    for row in rows:
        number = seen[row.layer, row.kind]
        seen[row.layer, row.kind] += 1
        made.append(_row(row, number, found.get((row.layer, row.kind, number))))
    return made


def _row(row: Row, number: int, measured: GemmMeasurement | None) -> ReportRow:
    file, _, line = row.source.rpartition(":")
    code = linecache.getline(file, int(line)).strip()[:_LONGEST_LINE] if file else ""
    return ReportRow(
        layer=row.layer,
        kind=row.kind,
        sizes=[row.M, row.N, row.K],
        lhs=row.lhs,
        rhs=row.rhs,
        kernel=row.kernel,
        padding=row.padding,
        producer=row.producer,
        epilogue=row.epilogue,
        reason=row.reason,
        weight=row.weight,
        flops=row.flops,
        is_quantized=row.is_quantized,
        source=f"{_short_path(file)}:{line}" if file else "",
        code=code,
        number=number,
        measured=measured,
    )


def _short_path(file: str) -> str:
    """A path without what only this machine has: a report is for others, too."""
    path = Path(file)
    if _PACKAGES in path.parts:
        return str(Path(*path.parts[path.parts.index(_PACKAGES) + 1 :]))
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name


def _memory(net: Any, explanation: Explanation) -> MemoryUse:
    held: Memory = net.memory()
    ops, layers, live = _steps(net._steelyard.backend.compilations)
    parameters = dict(net.named_parameters(remove_duplicate=False))
    read = {id(parameters[row.weight]) for row in explanation.rows if row.is_quantized and row.weight in parameters}
    plain = [p for p in parameters.values() if id(p) not in read and not isinstance(p, QuantizedTensor)]
    weights = held["quantized_weights"] + held["quantized_parameters"] + parameter_bytes(plain)["parameters"]
    return MemoryUse(
        [HeldBytes(purpose, size) for purpose, size in held.items()],
        weights,
        explanation.shares.weight_bytes,
        ops,
        layers,
        live,
    )


def _steps(compilations: Iterable[Compilation]) -> tuple[list[str], list[str], list[int]]:
    """The steps of all forwards, then of all backwards in the opposite order, with what is kept for those."""
    # A graph that was compiled again, for other sizes, counts once.
    current = list({frozenset(row.layer for row in c.rows) or id(c): c for c in compilations}.values())
    before = 0
    kept: list[int] = []
    for compilation in current:
        kept.append(before)
        before += sum(compilation.kept.values())
    found = _Steps()
    for compilation, base in zip(current, kept, strict=True):
        found.add(compilation, "forward", base)
    for compilation, base in zip(reversed(current), reversed(kept), strict=True):
        found.add(compilation, "backward", base)
    return found.ops, found.layers, found.live


class _Steps:
    """The steps of functions, one after the other."""

    def __init__(self):
        self.ops: list[str] = []
        self.layers: list[str] = []
        self.live: list[int] = []
        self._context = make_context()

    def add(self, compilation: Compilation, function: str, base: int) -> None:
        """Append the steps of a function of a compilation, if it has one of this name."""
        module = ir.Module.parse(compilation.stages["lowered"], self._context)
        for op in functions_of(module.operation):
            if ir.StringAttr(op.attributes["sym_name"]).value != function:
                continue
            for step in live_steps(op):
                self.ops.append(step.op.removeprefix("torch."))
                self.layers.append(_renamed(step.layer, compilation.renaming))
                self.live.append(base + step.live_bytes)


def _renamed(layer: str, renaming: Renaming | None) -> str:
    return layer if renaming is None or not layer else renaming.layer(layer)


def _program(compilations: Sequence[Compilation]) -> Program:
    numbers: dict[str, int] = {"": -1}
    stages = []
    for stage in STAGES:
        lines = lines_of_graphs(compilations, stage)
        layers = [numbers.setdefault(layer, len(numbers) - 1) for layer, _ in lines]
        stages.append(StageText(stage, [line for _, line in lines], layers))
    shared = [SharedLayer(layer, printed) for layer, printed in printed_layers(compilations).items()]
    return Program(list(numbers)[1:], shared, stages)
