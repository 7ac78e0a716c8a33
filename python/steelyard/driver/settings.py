"""What a user asked for when compiling a model. It never changes; what changes while a net runs is its `State`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from steelyard import recipes
from steelyard.driver.cache_scales import KVScales, read_scales, scales_of
from steelyard.errors import RecipeError, shown
from steelyard.formats.schemes import CACHED_ROLES
from steelyard.insight.watching import Watch, make_watch
from steelyard.passes.partition import COMPACT
from steelyard.recipes import CustomRecipe, MixedRecipe, Overrides, Recipe

WEIGHTS = ("cached", "quantized")
AUTO = "auto"
FP8 = "fp8"
MEASURED, INFLUENCE, SWITCHED = "measured", "influence", "switched"
Chosen = str | bool | tuple[str, ...]
"""The repeated blocks that a user chose: `auto`, False, or the names of modules that hold them."""


@dataclass(frozen=True)
class Settings:
    """What a user asked for."""

    recipe: Recipe
    overrides: Overrides = field(default_factory=Overrides)
    attention: bool = False
    """Quantize the products of attention too."""
    save: str = ""
    """`compact`: keep less between forward and backward, some of it in bf16."""
    check_finite: bool = False
    """Raise at the first operand of a GEMM that is not finite."""
    weights: str = "cached"
    """`cached`: quantized weights are kept beside the parameters; `quantized`: they replace the parameters."""
    kv_cache: str | None = None
    """`fp8`: caches of keys and values that calls are given are quantized."""
    kv_scales: KVScales = field(default_factory=dict[str, tuple[float, float]])
    """Their static scales, by patterns of attention modules; others are measured."""
    target: str = "cpu"
    """What programs are compiled for, as `steelyard.targets` spells it."""
    blocks: Chosen = AUTO
    """Which modules are captured once for all that are alike."""
    variant: str = ""
    """`measured`, `influence` or `switched`: a program that shows what low precision costs, beside the net's own."""
    watch: Watch | None = field(default=None, compare=False)
    """What to warn of while the net trains. Programs do not depend on it."""
    unmatched: frozenset[str] = field(default_factory=frozenset, compare=False)
    """Patterns of overrides that need not match a layer: those of a mixed recipe. Programs do not depend on it."""
    settled: str = field(default="", compare=False)
    """What was decided for the net because a recipe left it open, and why. Programs do not depend on it."""

    def capture(self) -> AbstractContextManager:
        """The context of calls. If attention is to be quantized, it is captured as separate matrix products."""
        return sdpa_kernel(SDPBackend.MATH) if self.attention else nullcontext()

    def are_alike(self, layer: str, other: str) -> bool:
        """Whether two layers are quantized alike; a user's own quantizers may differ from layer to layer."""
        recipe = self.overrides.recipe_of(layer, self.recipe)
        are_measured_alike = (self.input_scale(layer) is None) == (self.input_scale(other) is None)
        are_equal = recipe == self.overrides.recipe_of(other, self.recipe)
        return are_equal and not isinstance(recipe, CustomRecipe) and are_measured_alike

    def static_scale(self, layer: str, role: str) -> float | None:
        """The static scale of what has a role in a layer, cached keys and values included; None if it is measured."""
        if role not in CACHED_ROLES:
            return self.input_scale(layer)
        pair = scales_of(self.kv_scales, layer)
        return None if pair is None else pair[CACHED_ROLES.index(role)]

    def input_scale(self, layer: str) -> float | None:
        """The static scale of a layer's input; None if it is measured."""
        recipe = self.overrides.recipe_of(layer, self.recipe)
        return None if recipe is None else recipe.input_scale(layer)

    @property
    def recipes(self) -> list[Recipe]:
        """The recipe, and those of overrides."""
        return [self.recipe, *(each for each in self.overrides.values() if each is not None)]

    def stage_options(self) -> dict[str, dict[str, Any]]:
        """The options of the pipeline that leads to each stage."""
        # A pattern that matches nothing in one graph may match in another of the same net.
        recipe = {
            "recipe": self.recipe,
            "overrides": self.overrides,
            "attention": self.attention,
            "unmatched": "allow",
        }
        return {
            "raised": {},
            "quantized": recipe,
            "measured": {"influence": self.variant == INFLUENCE},
            "switched": {},
            "fused": {},
            "partitioned": {"save": self.save},
            "lowered": {"target": self.target},
        }


def settle(settings: Settings, model: nn.Module) -> Settings:
    """The settings of a net of a model, with what recipes leave open decided once, for training or for inference."""
    opened = [each for each in settings.recipes if each.is_open]
    if not opened:
        return settings
    reason = _reason_for_inference(model)
    trains = not reason
    blocks = dict.fromkeys(f"{each.name} in {_weight_block(each.settled(trains=trains))}" for each in opened)
    why = "for training: the model was in training mode" if trains else f"for inference: {reason}"
    overrides = {name: each and each.settled(trains=trains) for name, each in settings.overrides.items()}
    return replace(
        settings,
        recipe=settings.recipe.settled(trains=trains),
        overrides=Overrides(overrides),
        settled=f"weights: {', '.join(blocks)}, {why} at steelyard.compile",
    )


def _weight_block(recipe: Recipe) -> str:
    scheme, _ = recipe.schemes("weight")
    assert scheme is not None, "a recipe of ours quantizes weights"
    return scheme.block


def _reason_for_inference(model: nn.Module) -> str:
    """Why a net of a model is for inference; empty if it may be trained."""
    if not model.training:
        return "the model was in eval mode"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return "no parameter required a gradient"
    return ""


def make_settings(
    recipe: str | Recipe | MixedRecipe,
    overrides: Mapping[str, str | Recipe | None] | None = None,
    *,
    attention: bool = False,
    save: str | None = None,
    check_finite: bool = False,
    weights: str = "cached",
    kv_cache: str | None = None,
    kv_scales: Mapping[str, tuple[float, float]] | None = None,
    target: str = "cpu",
    blocks: Any = AUTO,
    watch: Any = None,
) -> Settings:
    """Settings from what a user says; raises `RecipeError`."""
    chosen = _overrides(overrides)
    unmatched: frozenset[str] = frozenset()
    if isinstance(recipe, MixedRecipe):
        # It may name layers that no call has reached so far.
        unmatched = frozenset(name for name, _ in recipe.overrides if name not in chosen)
        # What a user says about a layer counts more.
        chosen = Overrides({**chosen, **{name: own for name, own in recipe.overrides if name not in chosen}})
        recipe = recipe.default
    for name, value in (("attention", attention), ("check_finite", check_finite)):
        if not isinstance(value, bool):
            raise RecipeError(f"{name} must be True or False, got {shown(value)}")
    if not isinstance(save, str | None) or save not in (None, COMPACT):
        raise RecipeError(f"save must be None or {COMPACT!r}, got {shown(save)}")
    if not isinstance(weights, str) or weights not in WEIGHTS:
        raise RecipeError(f"weights must be one of {', '.join(WEIGHTS)}, got {shown(weights)}")
    if not isinstance(kv_cache, str | None) or kv_cache not in (None, FP8):
        raise RecipeError(f"kv_cache must be None or {FP8!r}, got {shown(kv_cache)}")
    return Settings(
        recipes.get(recipe),
        chosen,
        attention=attention,
        save=save or "",
        check_finite=check_finite,
        weights=weights,
        kv_cache=kv_cache,
        kv_scales=read_scales(kv_scales, has_cache=kv_cache is not None),
        target=target,
        blocks=_blocks(blocks),
        watch=make_watch(watch),
        unmatched=unmatched,
    )


def _overrides(given: Mapping[str, str | Recipe | None] | None) -> Overrides:
    if given is None:
        return Overrides()
    if not isinstance(given, Mapping) or not all(isinstance(pattern, str) for pattern in given):
        raise RecipeError(
            "overrides must map patterns of layer names to recipes, or to None for high precision, as in "
            f'{{"lm_head": None}}, got {shown(given)}'
        )
    return Overrides({pattern: None if other is None else recipes.get(other) for pattern, other in given.items()})


def _blocks(chosen: Any) -> Chosen:
    if chosen is False or (isinstance(chosen, str) and chosen == AUTO):
        return chosen
    is_names = isinstance(chosen, Sequence) and not isinstance(chosen, str)
    if not is_names or not chosen or not all(isinstance(name, str) for name in chosen):
        raise RecipeError(
            f'blocks must be "{AUTO}", False, or a list of modules that hold blocks, as in ["model.layers"], got '
            f"{shown(chosen)}"
        )
    return tuple(chosen)
