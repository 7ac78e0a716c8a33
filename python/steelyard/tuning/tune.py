"""`steelyard.tune`: a model in few bits that loses little."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from steelyard import recipes
from steelyard.errors import RecipeError, SteelyardWarning, UnsupportedModelError, shown
from steelyard.insight.table import format_table
from steelyard.recipes import MixedRecipe, Recipe
from steelyard.runtime import cpu
from steelyard.tuning import checks
from steelyard.tuning import costs as cost_tables
from steelyard.tuning.batches import Batch, as_list, for_inference
from steelyard.tuning.calibration import compensated, rounded
from steelyard.tuning.choice import Choice, Goal, Space, shapes_of
from steelyard.tuning.emulation import quantized_inputs, rounded_weights
from steelyard.tuning.finished_work import choice_folder, remembered, work_folder
from steelyard.tuning.gptq import Options
from steelyard.tuning.layers import Group, Layer, all_layers, find_layers, layers_of, other_layers
from steelyard.tuning.products import find_groups
from steelyard.tuning.sensitivity import Scores, by_divergence, by_gradient, mean_divergence

FORMATS = ("nvfp4-4over6", "nvfp4-4over6/mxfp8", "nvfp4-4over6/none", "mxfp4/mxfp8", "mxfp8", "fp8-row", "none")
SENSITIVITIES = ("gradient", "kl")
IGNORED = ("lm_head", "*.lm_head")
_NONE = "none"
_WORSE = 3.0
"""Errors of weights that compensate, as a part of those of rounded ones, from which on they are not used. Few tokens
judge with much noise, and what destroys a model is far above that."""
_NOTHING = 1e-9
"""An error that makes no difference."""
_TRIALS = 6
"""How often bits are halved between too few and enough, for a goal that is an error."""


class Tuned(NamedTuple):
    """What `tune` returns."""

    model: Any
    """A copy of the model whose tuned layers have quantized tensors as weights."""
    recipe: MixedRecipe
    """For `steelyard.compile`; `recipe.about` has how it was found, as plain data."""


def tune(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    bits: float | None = None,
    speed: float | None = None,
    error: float | None = None,
    share: Mapping[str, float] | None = None,
    formats: Sequence[str | Recipe | None] = FORMATS,
    ignore: str | Iterable[str] = IGNORED,
    sensitivity: str = "gradient",
    options: Options | None = None,
    judged: Iterable[Batch] | None = None,
    costs: Mapping[str, Any] | str | Path | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
) -> Tuned:
    """A model whose layers are quantized each in the format that suits it, with weights that compensate for the loss.

    `tuned, recipe = steelyard.tune(model, batches, bits=5)`, and then `net = steelyard.compile(tuned, recipe)`.

    Args:
        model: The model, in high precision. It stays as it is.
        batches: What the model is called with, as it will be: a tensor, a tuple of arguments or a dict of keywords
            each. A few thousand tokens will do.
        bits: The most bits per weight, on average over the layers that are tuned: codes and scales of blocks.
        speed: The least speed against the model in high precision, for a batch like the first, by `costs`.
        error: The largest divergence: of logits, the mean KL divergence per row; of other outputs, the squared error as
            a part of the squared values. Alone, it finds the fewest bits. Choices are judged before weights compensate,
            and the model that is returned is judged again.
        share: The least part of the multiplications that formats must have, as in `{"nvfp4-4over6": 0.5}`.
        formats: What there is to choose among: names of recipes as `steelyard.compile` takes them, or recipes. None, or
            "none", is high precision.
        ignore: Patterns of names, or one, of layers that stay in high precision and are counted in no goal.
        sensitivity: How formats of layers are compared, by the first half of the batches. `gradient` takes one forward
            and backward for each. `kl` takes a forward for each format of each group of layers.
        options: How weights compensate, by default as `steelyard.tuning.gptq.Options()` says.
        judged: The batches that choices are judged by, by default the last quarter of `batches`, which then serve for
            nothing else if there are at least four.
        costs: A table of costs, as `recipe.about["costs"]` has it; a file with one or with a recipe; or a target whose
            table is shipped: `cpu`, `cpu-avx2`, `cpu-avx512`, `sm_90a` or `sm_100a`. By default it is measured if
            `speed` is given.
        folder: Where finished work is kept: the same call goes on there after an interruption.
        seed: Of all random numbers.
    """
    checks.check_context()
    checks.check_model(model)
    goal = Goal(bits, speed, error, share)
    _check_goal(goal, sensitivity)
    options = Options() if options is None else options
    checks.check_options(options, seed)
    patterns = checks.read_patterns(ignore)
    given = as_list(batches)
    kept = as_list(judged, "judged") if judged is not None else given[-max(1, len(given) // 4) :]
    checks.check_batches(given, "batches")
    checks.check_batches(kept, "judged")
    if judged is None and len(given) >= 4:
        given = given[: -(len(given) // 4)]
    chosen = _named(formats)
    _check_share(share, chosen)
    layers = find_layers(model, patterns)
    checks.check_patterns(patterns, IGNORED, model, all_layers(model))
    checks.check_layers(layers)
    home = checks.read_folder(folder)
    judge = _Judge(model, kept)
    groups = find_groups(model, layers, *given, run=checks.run)
    if not groups:
        raise UnsupportedModelError(
            f"batches must reach layers that are tuned, and reached none of {', '.join(list(layers)[:3])} and "
            f"others, {len(layers)} in all; call the model with batches as it will be called"
        )
    unreached = _unreached(layers, groups)
    settings = {"ignore": sorted(patterns), "sensitivity": sensitivity, "seed": seed}
    work = work_folder(home, model, given, chosen, settings)
    space = _space(model, groups, given, chosen, sensitivity, seed, costs, speed, work)
    choice = _choose(space, judge, goal)

    def make(own: Options) -> nn.Module:
        return compensated(model, given, groups, space.recipes(choice), own, choice_folder(work, choice, own))

    attempts = {"chosen, compensated": lambda: make(options)}
    if options.fold:
        attempts["chosen, compensated without factors"] = lambda: make(replace(options, fold=False))
    attempts["chosen, rounded"] = lambda: rounded(model, groups, space.recipes(choice))
    tuned = _first_good(attempts, space, judge, goal, choice)
    about = {"goal": goal.given(), "seed": seed, "tried": judge.tried, "scores": space.scores}
    about["left"], about["unreached"] = _left(model, space), unreached
    if space.costs is not None:
        about["costs"] = dict(space.costs)
    return Tuned(tuned, _mixed(model, space, choice, [*given, *kept], about))


def _unreached(layers: Mapping[str, Layer], groups: Sequence[Group]) -> list[str]:
    """The layers that no batch reaches, of which users are warned."""
    reached = {layer for group in groups for layer in group.layers}
    missed = [name for name in layers if name not in reached]
    if missed:
        more = f" and {len(missed) - 3} others" if len(missed) > 3 else ""
        warnings.warn(
            f"no batch reaches {', '.join(missed[:3])}{more}, {len(missed)} in all, which stay in high precision; give "
            "more batches to tune them, or name them in ignore=",
            SteelyardWarning,
            stacklevel=3,
        )
    return missed


def _left(model: nn.Module, space: Space) -> dict[str, float]:
    """What no goal counts, such as embeddings and lm_head: how many numbers they are, and their bits each."""
    tuned = {id(layer.parameter) for layer in layers_of(model, space.shapes).values()}
    left = [each for each in model.parameters() if id(each) not in tuned]
    count = sum(each.numel() for each in left)
    return {"numbers": count, "bits": sum(8 * each.nbytes for each in left) / max(count, 1)}


def table(recipe: MixedRecipe) -> str:
    """What `tune` tried on its way to a recipe, one line per choice of formats."""
    if "tried" not in recipe.about:
        raise RecipeError("recipe must be one that steelyard.tune returned, and this one has no `tried` in its `about`")
    heads = ("formats", "bits", "speed", "expected error", "error")
    rows = [
        (
            each["formats"],
            f"{each['bits']:.2f}",
            "" if each["speed"] is None else f"{each['speed']:.2f}",
            f"{each['expected']:.4f}",
            f"{each['error']:.4f}",
        )
        for each in recipe.about["tried"]
    ]
    lines = list(format_table(heads, rows))
    goal = recipe.about["goal"].get("error")
    if goal is not None:
        last = recipe.about["tried"][-1]
        lines.append(f"{last['formats']}: an error of {last['error']:.4g}, and at most {goal:.4g} was asked for")
    return "\n".join(lines)


def _check_goal(goal: Goal, sensitivity: str) -> None:
    if not goal.given():
        raise RecipeError("a goal must be given, and none was: bits=5.0, speed=1.4 or error=0.02, or several")
    for name, value in goal.given().items():
        if name != "share" and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
            raise RecipeError(f"{name} must be a positive number, got {shown(value)}")
    if sensitivity not in SENSITIVITIES:
        raise RecipeError(f"sensitivity must be one of {', '.join(SENSITIVITIES)}, got {shown(sensitivity)}")


def _check_share(share: Any, formats: Mapping[str, Recipe | None]) -> None:
    if share is None:
        return
    fits = isinstance(share, Mapping) and all(
        isinstance(part, int | float) and 0 < part <= 1 for part in share.values()
    )
    if not fits or not share or sum(share.values()) > 1:
        raise RecipeError(
            "share must have parts of the multiplications by formats, as in {'nvfp4-4over6': 0.5}, at most 1 in all, "
            f"got {shown(share)}"
        )
    unknown = [name for name in share if name not in formats]
    if unknown:
        raise RecipeError(f"share must name some of formats, {', '.join(formats)}, got {', '.join(map(str, unknown))}")


def _named(formats: Sequence[str | Recipe | None]) -> dict[str, Recipe | None]:
    """Recipes by the names that tables show."""
    if isinstance(formats, str) or not isinstance(formats, Sequence) or not formats:
        raise RecipeError(f"formats must be a list of recipes or their names, got {shown(formats)}")
    named: dict[str, Recipe | None] = {}
    for each in formats:
        is_none = each is None or (isinstance(each, str) and each == _NONE)
        recipe = None if is_none else recipes.get(each).settled(trains=False)  # pyright: ignore[reportArgumentType]
        name = _NONE if is_none else each if isinstance(each, str) else f"{recipe.name} {len(named)}"  # pyright: ignore[reportOptionalMemberAccess]
        named[name] = recipe
    return named


def _space(
    model: nn.Module,
    groups: Sequence[Group],
    batches: Sequence[Batch],
    formats: Mapping[str, Recipe | None],
    sensitivity: str,
    seed: int,
    costs: Mapping[str, Any] | str | Path | None,
    speed: float | None,
    work: Path | None,
) -> Space:
    shapes = shapes_of(model, groups)
    sizes = [(group.rows, *shapes[layer][1:]) for group in groups for layer in group.layers]
    first = groups[0].layers[0]
    dtype = layers_of(model, [first])[first].parameter.dtype
    table = None
    if costs is not None:
        table = cost_tables.resolve(costs, sizes, formats)
    elif speed is not None:
        quantized = {name: recipe for name, recipe in formats.items() if recipe is not None}
        # Threads and instructions decide on times.
        name = f"costs-{cpu.isa()}-{torch.get_num_threads()}"
        table = remembered(work, name, lambda: cost_tables.measure(model, batches[0], sizes, quantized, dtype))

    # Formats differ far more than batches do, but each group must be reached.
    some = batches[: max(-(-len(batches) // 2), *(group.first + 1 for group in groups))]

    def measured() -> Scores:
        if len(formats) == 1:
            return {group.name: dict.fromkeys(formats, 0.0) for group in groups}
        if sensitivity == "kl":
            return by_divergence(model, groups, some, formats)
        return by_gradient(model, groups, some, formats, seed)

    return Space(groups, formats, shapes, dtype, remembered(work, "scores", measured), table)


def _choose(space: Space, judge: "_Judge", goal: Goal) -> Choice:
    """The best choice for a goal, judged as a whole."""
    for name in space.formats:
        if name != _NONE:
            judge.add(name, space, space.uniform(name))
    if goal.error is None or goal.bits is not None:
        choice = space.best(goal)
        found = judge.add("chosen", space, choice)
        if goal.error is not None and found > goal.error:
            raise RecipeError(
                f"error must be at least {found:.4g} with {goal}, which is the best that was found before weights "
                f"compensate, got {goal.error}; ask for that, or for more bits"
            )
        return choice
    return _fewest_bits(space, judge, goal, goal.error)


def _fewest_bits(space: Space, judge: "_Judge", goal: Goal, error: float) -> Choice:
    """The choice with the fewest bits whose error is small enough."""
    least, most = (pick(space.bits(space.uniform(name)) for name in space.formats) for pick in (min, max))
    best = space.best(replace(goal, bits=most))
    smallest = judge.add(f"at most {most:.2f} bits", space, best)
    if smallest > error:
        raise RecipeError(
            f"error must be at least {smallest:.4g}, which is the best that these formats can do for this model, got "
            f"{error}; ask for that, or add None to formats"
        )
    for _ in range(_TRIALS):
        between = (least + most) / 2
        try:
            choice = space.best(replace(goal, bits=between))
            is_enough = judge.add(f"at most {between:.2f} bits", space, choice) <= error
        except RecipeError:
            is_enough = False
        if is_enough:
            best, most = choice, between  # pyright: ignore[reportPossiblyUnboundVariable]
        else:
            least = between
    judge.add("chosen", space, best)
    return best


def _first_good(
    attempts: Mapping[str, Callable[[], nn.Module]], space: Space, judge: "_Judge", goal: Goal, choice: Choice
) -> nn.Module:
    """The first of several ways to quantize a choice that is not judged clearly worse than the choice itself.

    The last of them is the choice itself, as far as its layers have second levels of their own.
    """
    chosen = judge.tried[-1]["error"]
    limit = min(_WORSE * chosen + _NOTHING, math.inf if goal.error is None else goal.error)
    missed = []
    for name, make in attempts.items():
        tuned = make()
        error = judge.add(name, space, choice, tuned)
        if error <= limit:
            break
        missed.append(f"{name}, with an error of {error:.4g}")
    if goal.error is not None and error > goal.error:  # pyright: ignore[reportPossiblyUnboundVariable]
        raise RecipeError(
            f"error must be at least {error:.4g} for the model as it is quantized in the end, got {goal.error}; ask "  # pyright: ignore[reportPossiblyUnboundVariable]
            "for that, or for more bits"
        )
    if missed:
        warnings.warn(
            f"judged by batches that nothing else saw, weights do not compensate: {' and '.join(missed)}, are worse "
            f"than the choice with rounded weights, with {chosen:.4g}; '{name}' is returned. Batches may be too few, "  # pyright: ignore[reportPossiblyUnboundVariable]
            "or unlike those that judge",
            SteelyardWarning,
            stacklevel=3,
        )
    return tuned  # pyright: ignore[reportPossiblyUnboundVariable]


class _Judge:
    """Runs choices as a whole, and remembers what became of them."""

    def __init__(self, model: nn.Module, batches: Sequence[Batch]):
        self._model, self._batches = model, batches
        self.tried: list[dict[str, Any]] = []
        self._known: dict[tuple[tuple[str, str], ...], float] = {}
        self._exact = checks.outputs_of(model, batches, "judged")

    @torch.no_grad()
    def add(self, name: str, space: Space, choice: Choice, tuned: nn.Module | None = None) -> float:
        """The error of a choice, by rounding the weights of the model, or by a model that has them."""
        known = tuple(choice.items())
        if tuned is not None:
            error = self._run(tuned, space.recipes(choice))
        elif known in self._known:
            error = self._known[known]
        else:
            with rounded_weights(self._model, space.recipes(choice)):
                error = self._known[known] = self._run(self._model, space.recipes(choice))
        self.tried.append(
            {
                "formats": name,
                "bits": space.bits(choice),
                "speed": space.speed(choice),
                "expected": space.error(choice),
                "error": error,
                "counts": dict(Counter(choice.values())),
            }
        )
        return error

    def _run(self, model: nn.Module, own: Mapping[str, Recipe | None]) -> float:
        with for_inference(model), quantized_inputs(model, own):
            return mean_divergence(model, self._batches, self._exact)


def _mixed(
    model: nn.Module, space: Space, choice: Choice, batches: Sequence[Batch], about: dict[str, Any]
) -> MixedRecipe:
    """The recipe of a choice: the most frequent one, and by name those of all other layers."""
    layers, chosen = layers_of(model, space.shapes), space.recipes(choice)
    own = {name: recipe for layer, recipe in chosen.items() for name in layers[layer].names}
    counts = Counter(recipe for recipe in own.values() if recipe is not None)
    default = counts.most_common(1)[0][0] if counts else recipes.get("mxfp8")
    differing = [(layer, recipe) for layer, recipe in own.items() if recipe != default]
    # Layers that no batch reaches were neither compensated nor judged, but may be reached later.
    others = dict.fromkeys((*other_layers(model, chosen, batches), *_ignored(model, own)))
    return MixedRecipe(default, tuple(differing + [(layer, None) for layer in others]), about)


def _ignored(model: nn.Module, tuned: Iterable[str]) -> list[str]:
    """The linear layers and experts that are not tuned."""
    known = set(tuned)
    return [name for name in all_layers(model) if name not in known]
