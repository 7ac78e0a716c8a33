"""Steelyard's own format: the state dict of a net, in which a quantized parameter is a few plain tensors."""

from collections.abc import Mapping
from typing import Any

from steelyard import recipes
from steelyard.driver.settings import Settings
from steelyard.errors import CheckpointError, shown
from steelyard.recipes import Recipe

METHOD = "steelyard"
SAME = "same"
"""In overrides: the recipe of all other layers."""
_SCALES = "input_scales"


def describe(settings: Settings) -> dict[str, Any]:
    """The `quantization_config` of a net, with lists where the order counts: transformers writes objects sorted."""
    recipe = as_data(settings.recipe)
    overrides = [[pattern, kept(each, recipe)] for pattern, each in settings.overrides.items()]
    return {
        "quant_method": METHOD,
        "recipe": recipe,
        "ignore": [],
        "overrides": overrides,
        "kv_cache": settings.kv_cache,
        "kv_scales": [[name, list(pair)] for name, pair in settings.kv_scales.items()],
    }


def compile_options(about: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """What `steelyard.compile` is told by a `quantization_config` about a model that has its weights."""
    recipe, pairs, ignored = about.get("recipe"), about.get("overrides") or [], about.get("ignore")
    scales = about.get("kv_scales") or []
    for name, given in (("overrides", pairs), ("kv_scales", scales)):
        if not _are_pairs(given):
            what = "recipes" if name == "overrides" else "scales"
            raise CheckpointError(f"{name} in config.json must be pairs of patterns and {what}, got {shown(given)}")
    if ignored is not None and not (isinstance(ignored, list) and all(isinstance(each, str) for each in ignored)):
        raise CheckpointError(f"ignore in config.json must be a list of patterns, got {shown(ignored)}")
    ignored = _tied_outputs(model) if ignored is None else ignored
    chosen = None if recipe is None else as_recipe(recipe)
    others = {pattern: chosen if own == SAME else own and as_recipe(own) for pattern, own in pairs}
    return {
        "recipe": chosen,
        "overrides": dict.fromkeys(ignored) | {name: own for name, own in others.items() if name not in ignored},
        "kv_cache": about.get("kv_cache"),
        "kv_scales": {pattern: tuple(pair) if isinstance(pair, list) else pair for pattern, pair in scales},
    }


def _are_pairs(given: Any) -> bool:
    """Whether a value is a list of patterns, each with something."""
    is_list = isinstance(given, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in given)
    return is_list and all(isinstance(pattern, str) for pattern, _ in given)


def kept(recipe: Any, default: Any) -> dict[str, Any] | str | None:
    """The data of a recipe that layers have instead of one with this data; static scales are written once."""
    if recipe is None or recipe == SAME:
        return recipe
    data = as_data(as_recipe(recipe))
    return SAME if data == default else data


def as_recipe(given: str | Recipe | Mapping[str, Any]) -> Recipe:
    """The recipe of a name or of data."""
    if not isinstance(given, Mapping):
        return recipes.get(given)
    values = dict(given)
    if isinstance(values.get("activations"), Mapping):
        values["activations"] = as_recipe(values["activations"])
    if _SCALES in values:
        values[_SCALES] = _scales(values[_SCALES])
    return Recipe.from_dict(values)


def as_data(recipe: Recipe) -> dict[str, Any]:
    """A recipe as JSON holds it."""
    values = recipe.to_dict()
    if isinstance(recipe.activations, Recipe):
        values["activations"] = as_data(recipe.activations)
    if _SCALES in values:
        values[_SCALES] = [list(pair) for pair in values[_SCALES].items()]
    return values


def _scales(given: Any) -> dict[str, float]:
    try:
        return dict(given)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{_SCALES} in config.json must be pairs of patterns and numbers: {error}") from error


def _tied_outputs(model: Any) -> list[str]:
    """The output layer, if its weight is that of the input embedding, too."""
    output, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    weight = getattr(output, "weight", None)
    if weight is None or weight is not getattr(embedding, "weight", None):
        return []
    return [name for name, module in model.named_modules() if module is output]
