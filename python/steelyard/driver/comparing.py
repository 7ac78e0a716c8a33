"""`steelyard.compare`: one model by several recipes."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from steelyard.driver import progress
from steelyard.driver.measuring import Loss, check_batches
from steelyard.driver.net import compile
from steelyard.driver.reporting import Steps, make_report, recipe_name
from steelyard.errors import RecipeError, SteelyardError, shown
from steelyard.insight.comparison import Comparison, compare_reports
from steelyard.insight.report import Report
from steelyard.recipes import Recipe, get


def compare(
    model: torch.nn.Module,
    recipes: Sequence[str | Recipe],
    batches: Iterable[Any],
    *,
    loss: Loss | None = None,
    logits: bool | None = None,
    **options: Any,
) -> Comparison:
    """Compile a model by several recipes, and measure and time each with the same batches.

    The result prints as a table: the error of the output, its KL divergence and the difference of the loss to high
    precision, the shares of FLOPs and of bytes that are quantized, the time of a call, and the bytes of weights.
    `page("compare.html")` writes a picture of error against speed, with the errors of each layer below it.

    Args:
        model: The model, which stays as it is.
        recipes: What `steelyard.compile` takes, once for each net.
        batches: As `net.measure` takes them; the first is also timed.
        loss: As `net.measure` takes it.
        logits: As `net.measure` takes it.
        options: More of what `steelyard.compile` takes, as in `overrides={"lm_head": None}`.
    """
    if isinstance(recipes, str | Recipe) or not isinstance(recipes, Sequence) or not recipes:
        raise RecipeError(f"recipes must be a list of recipes, as in ['mxfp8', 'nvfp4'], got {shown(recipes)}")
    if options.get("weights") == "quantized":
        raise RecipeError("nets that are compared share their model, whose weights stay; leave out weights='quantized'")
    check_batches(batches)
    given = list(batches)
    if not given:
        raise SteelyardError("batches must hold at least one batch, got none")
    # A recipe that is wrong is found before the first net is measured.
    chosen = [get(recipe) for recipe in recipes]
    reports = []
    with progress.call():
        for number, recipe in enumerate(chosen):
            name = recipe_name(recipe)
            with progress.doing(lambda name=name, number=number: f"comparing {name}, {number + 1} of {len(chosen)}"):
                net = compile(model, recipe, **options)
                reports.append(make_report(net, given, Steps(loss, backward=False, logits=logits)))
    _share_model_time(reports)
    return compare_reports(reports, [recipe_name(recipe) for recipe in chosen])


def _share_model_time(reports: Sequence[Report]) -> None:
    """Give all the shortest time of the model, which is one for all: what disturbed one run made no net faster."""
    timings = [report.timing for report in reports if report.timing is not None]
    known = [timing.seconds_high_precision for timing in timings if timing.seconds_high_precision is not None]
    for timing in timings:
        timing.seconds_high_precision = min(known, default=None)
