"""How long the layers of a model take in each format, measured with the kernels of this machine."""

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from steelyard.driver import progress
from steelyard.driver.net import compile
from steelyard.errors import RecipeError, shown
from steelyard.recipes import Recipe
from steelyard.tuning.batches import Batch, call, for_inference

_ROUNDS = 5
Shape = tuple[int, int, int]
"""Rows of the input, and rows and columns of the weight."""
Costs = dict[str, Any]
"""Seconds by shapes, then by formats, and of the `model` in high precision; plain data."""


def key(shape: Shape) -> str:
    """The name of a shape in a table."""
    return "x".join(map(str, shape))


def measure(
    model: nn.Module, batch: Batch, shapes: Iterable[Shape], formats: Mapping[str, Recipe | None], dtype: torch.dtype
) -> Costs:
    """The table of costs of a model's layers on this machine, each the shortest of a few calls."""
    table: Costs = {"machine": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    table["layers"] = layers = {}
    with torch.no_grad(), progress.doing(lambda: "measuring kernels"):
        for shape in dict.fromkeys(shapes):
            progress.step(key(shape))
            rows, features, columns = shape
            layer = nn.Linear(columns, features, bias=False, dtype=dtype).eval()
            x = torch.randn(rows, columns, dtype=dtype)
            layers[key(shape)] = {name: _shortest(_runner(layer, recipe, x)) for name, recipe in formats.items()}
            layers[key(shape)]["none"] = _shortest(_runner(layer, None, x))
        with for_inference(model):
            table["model"] = _shortest(lambda: call(model, batch))
    return table


def _runner(layer: nn.Module, recipe: Recipe | None, x: torch.Tensor) -> Callable[[], Any]:
    if recipe is None:
        return lambda: layer(x)
    frozen = compile(layer, recipe, blocks=False).freeze(x)
    return lambda: frozen(x)


def _shortest(run: Callable[[], Any]) -> float:
    run()
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def check(costs: Any, shapes: Iterable[Shape], formats: Iterable[str]) -> None:
    """Refuse a table that a user gives if it lacks something."""
    names = [*formats, "none"]
    layers = costs.get("layers") if isinstance(costs, Mapping) else None
    if not isinstance(layers, Mapping) or not isinstance(costs.get("model"), float | int):
        raise RecipeError(f"costs must be a table as recipe.about['costs'] has it, got {shown(costs)}")
    for shape in shapes:
        missing = [name for name in names if name not in layers.get(key(shape), {})]
        if missing:
            raise RecipeError(
                f"costs must have seconds of {', '.join(missing)} for layers of {key(shape)} (rows of the input, rows "
                "and columns of the weight), and has none; leave costs out to measure them here"
            )
