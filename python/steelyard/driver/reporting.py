"""Collects what a report says of a net."""

import linecache
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import steelyard
from steelyard.driver.backend import Backend
from steelyard.driver.compilation import Compilation
from steelyard.driver.explanation import Explanation, Row
from steelyard.driver.measuring import Loss, check_batches, loss_of, read_batch, unchanged_gradients
from steelyard.driver.memory_use import memory_use
from steelyard.driver.printed_graphs import lines_of_graphs, printed_layers
from steelyard.driver.stages import STAGES
from steelyard.driver.timing import time_calls
from steelyard.errors import FileError, SteelyardError, shown
from steelyard.insight.report import (
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
from steelyard.recipes import OWN, Recipe
from steelyard.tensor.quantized_tensor import QuantizedTensor

_LONGEST_LINE = 200
_SUFFIXES = (".html", ".htm")
_PACKAGES = "site-packages"


class Steps(NamedTuple):
    """What a call of a net is followed by, as `net.measure` takes it."""

    loss: Loss | None = None
    backward: bool = False
    logits: bool | None = None
    exact: torch.nn.Module | None = None


def write_report_of(
    net: Any, path: str | os.PathLike[str], batches: Iterable[Any] | None, steps: Steps, *, attribute: bool | int
) -> Report:
    """Make the report of a net, and write its page and its JSON."""
    checked = check_page_path(path)
    report = make_report(net, batches, steps, attribute=attribute)
    write_report(report, checked)
    return report


def check_page_path(path: str | os.PathLike[str]) -> Path:
    """Refuse a path that no page, with its JSON, can be written to."""
    if not isinstance(path, str | os.PathLike) or Path(path).suffix not in _SUFFIXES:
        raise FileError(f"the path of a report must end with .html, got {shown(path)}")
    check_paths(Path(path))
    return Path(path)


def make_report(net: Any, batches: Iterable[Any] | None, steps: Steps, *, attribute: bool | int = False) -> Report:
    """Measure and time a net with batches, if there are any, and collect what is known of it."""
    if batches is None:
        if attribute is not False:
            raise SteelyardError("attribute=True needs batches to call the net with, got none")
        return collect(net, None, None, None)
    check_batches(batches)
    given = list(batches)
    if not given:
        raise SteelyardError("batches must hold at least one batch, got none; leave them out to measure nothing")
    measurement = net.measure(given, **steps._asdict())
    attribution = None
    if attribute is not False:
        attribution = net.attribute(given, logits=steps.logits, layers=None if attribute is True else attribute)
    return collect(net, measurement, attribution, time_batch(net, given[0], steps))


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
        rows=_rows(backend, explanation.rows, measurement.rows if measurement else []),
        notes=explanation.notes,
        shares=Shares(**vars(explanation.shares)),
        output=measurement.output if measurement else None,
        attribution=attribution,
        memory=memory_use(net, explanation.shares.weight_bytes),
        timing=timing,
        program=_program(backend.compilations),
        gradients=measurement.gradients if measurement else [],
    )


def recipe_name(recipe: Recipe) -> str:
    """A recipe as `steelyard.compile` takes it, without its other options."""
    if recipe.activations == OWN:
        return recipe.name
    given = recipe.activations
    return f"{recipe.name}/{given.name if isinstance(given, Recipe) else given or 'none'}"


def time_batch(net: Any, batch: Any, steps: Steps) -> Timing:
    """Time calls of a net, and of its model, with one batch; leaves gradients, buffers and state as they were."""
    model = net._steelyard.model if steps.exact is None else steps.exact
    net_call, model_call = (partial(_step, either, batch, steps) for either in (net, model))
    with net._unchanged(), unchanged_gradients(net), torch.set_grad_enabled(steps.backward):
        net_call()
        runs = not any(isinstance(parameter, QuantizedTensor) for parameter in model.parameters())
        return time_calls(net_call, model_call if runs else None)


def _step(module: Any, batch: Any, steps: Steps) -> None:
    arguments, keywords = read_batch(batch)
    returned = module(*arguments, **keywords)
    if steps.backward:
        loss = loss_of(returned, batch, steps.loss)
        assert loss is not None, "what was measured before has a loss"
        loss.backward()


def _rows(backend: Backend, explained: Sequence[Row], measured: Iterable[GemmMeasurement]) -> list[ReportRow]:
    """The rows of `explain()`, each with what was measured of the same GEMM."""
    numbers = [number for rows in _graphs(backend) for number in _numbers(rows)]
    found: dict[tuple[str, str, int], list[GemmMeasurement]] = {}
    for one in measured:
        found.setdefault((one.layer, one.kind, one.number), []).append(one)
    return [
        _row(row, number, _find(row, found.get((row.layer, row.kind, number), ())) if row.is_quantized else None)
        for row, number in zip(explained, numbers, strict=True)
    ]


def _graphs(backend: Backend) -> list[list[Row]]:
    """The rows of each graph, and of what runs outside of graphs, in the order of `explain()`."""
    return [
        *(compilation.rows for compilation in backend.compilations),
        [*backend.of_torch.rows, *backend.outside.rows],
    ]


def _numbers(rows: Iterable[Row]) -> Iterator[int]:
    """Which of the rows of its layer and kind each is; those in high precision count for themselves."""
    seen: Counter[tuple[str, str, bool]] = Counter()
    for row in rows:
        key = row.layer, row.kind, row.is_quantized
        yield seen[key]
        seen[key] += 1


def _find(row: Row, candidates: Sequence[GemmMeasurement]) -> GemmMeasurement | None:
    """What was measured with the sizes of a row: a layer may be compiled for several."""
    sizes = [row.M, row.N, row.K]
    for one in candidates:
        if one.calls and all(size in ("?", str(found)) for size, found in zip(sizes, one.shape, strict=True)):
            return one
    return None


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


def _program(compilations: Sequence[Compilation]) -> Program:
    numbers: dict[str, int] = {"": -1}
    stages = []
    for stage in STAGES:
        lines = lines_of_graphs(compilations, stage)
        layers = [numbers.setdefault(layer, len(numbers) - 1) for layer, _ in lines]
        stages.append(StageText(stage, [line for _, line in lines], layers))
    shared = [SharedLayer(layer, printed) for layer, printed in printed_layers(compilations).items()]
    return Program(list(numbers)[1:], shared, stages)
