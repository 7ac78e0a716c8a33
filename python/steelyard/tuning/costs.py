"""How long the layers of a model take in each format: measured with the kernels of this machine, or shipped."""

import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steelyard.driver import progress
from steelyard.driver.net import compile
from steelyard.errors import FileError, RecipeError, shown
from steelyard.files import failure
from steelyard.recipes import Recipe
from steelyard.runtime import cpu
from steelyard.tuning.batches import Batch, call, for_inference
from steelyard.tuning.grids import grid_class, input_scheme

NONE = "none"
"""High precision, as tables have it."""
_SHIPPED = Path(__file__).with_name("shipped_costs.json")
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
    table["layers"] = measure_layers(shapes, formats, dtype)
    with torch.no_grad(), for_inference(model):
        table["model"] = _shortest(lambda: call(model, batch))
    return table


def measure_layers(
    shapes: Iterable[Shape], formats: Mapping[str, Recipe | None], dtype: torch.dtype
) -> dict[str, dict[str, float]]:
    """Seconds of layers of some shapes in each format and in high precision, each the shortest of a few calls."""
    layers: dict[str, dict[str, float]] = {}
    # Weights and inputs are random, and the random numbers of the caller stay as they are.
    with torch.no_grad(), torch.random.fork_rng(devices=[]), progress.doing(lambda: "measuring kernels"):
        for shape in dict.fromkeys(shapes):
            progress.step(key(shape))
            rows, features, columns = shape
            layer = nn.Linear(columns, features, bias=False, dtype=dtype).eval()
            x = torch.randn(rows, columns, dtype=dtype)
            layers[key(shape)] = {name: _shortest(_runner(layer, recipe, x)) for name, recipe in formats.items()}
            layers[key(shape)][NONE] = _shortest(_runner(layer, None, x))
    return layers


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


def shipped() -> dict[str, Any]:
    """The tables that come with this package, by targets: `benchmarks/tuning_costs.py` writes them.

    Of each target, what they are `about`, and of each kind of layer the seconds per call, per number of the input, per
    multiplication, and per number of the weight.
    """
    return json.loads(_SHIPPED.read_text())


def kind_of(recipe: Recipe | None) -> str:
    """The kind of a layer in shipped tables: the formats of weight and input."""
    if recipe is None:
        return NONE
    scheme = input_scheme(recipe)
    return f"{grid_class(recipe).scheme.family}/{NONE if scheme is None else scheme.family}"


def for_target(target: str, shapes: Iterable[Shape], formats: Mapping[str, Recipe | None]) -> Costs:
    """The table of costs of layers by what is shipped for a target; the rest of the model is not counted."""
    own, layers, sizes = shipped()[target], {}, list(shapes)
    missing = [name for name, recipe in formats.items() if kind_of(recipe) not in own["seconds"]]
    if missing:
        raise RecipeError(
            f"the table of costs for {target} must have the formats {', '.join(missing)}, and has "
            f"{', '.join(own['seconds'])} (weight and input); leave costs out to measure them here"
        )
    for shape in sizes:
        rows, features, columns = shape
        sizes_of = 1, rows * columns, rows * features * columns, features * columns
        layers[key(shape)] = {
            name: sum(each * size for each, size in zip(own["seconds"][kind_of(recipe)], sizes_of, strict=True))
            for name, recipe in {**formats, NONE: None}.items()
        }
    exact = sum(layers[key(shape)][NONE] for shape in sizes)
    return {"target": target, "about": own["about"], "layers": layers, "model": exact}


def resolve(costs: Any, shapes: Iterable[Shape], formats: Mapping[str, Recipe | None]) -> Costs:
    """The table that a user asks for: the one given, that of a file, or what is shipped for a target."""
    sizes = list(shapes)
    if isinstance(costs, str) and costs in (*shipped(), "cpu"):
        target = costs if costs != "cpu" else _own_target()
        return for_target(target, sizes, formats)
    if isinstance(costs, str | Path):
        costs = _read(Path(costs))
    check(costs, sizes, formats)
    return costs


def _own_target() -> str:
    """The shipped table whose instruction set is that of this machine's kernels, or the next slower one."""
    return "cpu-avx512" if cpu.isa().startswith("avx512") else "cpu-avx2"


def _read(file: Path) -> Any:
    """The table in a file: by itself, or in a recipe that was saved."""
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        names = ", ".join(("cpu", *shipped()))
        raise failure(
            f"costs must be a table, a file with one, or one of {names}; cannot read '{file}'", error
        ) from error
    except ValueError as error:
        raise FileError(f"'{file}' must be a table of costs or a recipe in JSON: {error}") from error
    about = found.get("about") if isinstance(found, dict) else None
    return about["costs"] if isinstance(about, dict) and "costs" in about else found


def check(costs: Any, shapes: Iterable[Shape], formats: Iterable[str]) -> None:
    """Refuse a table that a user gives if it lacks something."""
    names = [*formats, NONE]
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
