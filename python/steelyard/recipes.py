"""Recipes: which scheme quantizes each operand of a GEMM, as plain data.

A recipe answers one question, `schemes(role)`; everything else about it is a frozen, serializable dataclass.
"""

import difflib
import json
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from steelyard.errors import RecipeError, shown
from steelyard.formats.gemms import ROLES
from steelyard.formats.schemes import Scheme

Schemes = tuple[Scheme | None, Scheme | None]
InputScales = Mapping[str, float] | tuple[tuple[str, float], ...]
"""Numbers by patterns of layer names. A recipe takes a mapping, and keeps pairs."""

AMAX_ALGORITHM = "amax_compute_algo"
"""Among the quantizers of a layer, the key of a user's own amax algorithm: it stands where a role would."""

OWN = "own"
"""The activations of a recipe are quantized as it says itself."""
NONE = "none"
"""How text spells None: TOML has no word for it."""

_NOT_QUANTIZED: Schemes = (None, None)
_OPTIONAL = ("activations", "weight_tiles")
_CHOICES = {
    "fp8_format": ("HYBRID", "E4M3"),
    "amax_compute_algo": ("max", "most_recent"),
    "scale_rule": ("rceil", "floor", "ceil", "even"),
    "four_over_six": ("none", "weights", "activations", "all"),
    "four_over_six_error": ("mae", "mse"),
    "backward": ("normal", "high_precision", "dequantized"),
}
_SMALLEST = {"margin": 0, "amax_history_len": 1}
# 2^-margin must be a normal float32, and epsilon, unless it is 0, must not overflow or vanish in float32.
_LARGEST = {"margin": 126}
_EPSILON_RANGE = (2.0**-149, (2 - 2.0**-23) * 2.0**127)
SCALE = "a finite, positive number that float32 holds, from {:.3g} to {:.3g}".format(*_EPSILON_RANGE)
EPSILON = f"0 or {SCALE}"


class Role(str):
    """The name of an operand, with the name and kind of its layer. Custom recipes choose by these."""

    __slots__ = ("kind", "layer")

    def __new__(cls, name: str, layer: str = "", kind: str = "linear"):
        for what, value in (("name", name), ("layer", layer), ("kind", kind)):
            if not isinstance(value, str):
                raise RecipeError(f"the {what} of a role must be a str, got {shown(value)}")
        role = super().__new__(cls, name)
        role.layer = layer
        role.kind = kind
        return role


@dataclass(frozen=True)
class Recipe(ABC):
    """Base class of recipes: validation, serialization and the mode of the backward."""

    name: ClassVar[str] = ""

    backward: str = field(default="normal", kw_only=True)
    """`normal`; `high_precision`: keep the unquantized operands; `dequantized`: keep rowwise codes and decode them."""
    activations: "str | Recipe | None" = field(default=OWN, kw_only=True)
    """How inputs and gradients are quantized: `own`, as the recipe says; None: not at all, only weights are; or the
    name of another recipe, or one with options of its own, beside the weights of this one."""

    def __post_init__(self):
        for name in _OPTIONAL:
            value = getattr(self, name, None)
            if isinstance(value, str) and value == NONE:
                object.__setattr__(self, name, None)
        scales = getattr(self, "input_scales", ())
        if isinstance(scales, Mapping):
            object.__setattr__(self, "input_scales", tuple(scales.items()))
        for each in fields(self):
            _check_field(type(self).__name__, each.name, each.type, getattr(self, each.name))
        if isinstance(self, DelayedScaling) and isinstance(_activations_of(self), DelayedScaling):
            raise RecipeError(
                f"{type(self).__name__}.activations must not have delayed scales of their own beside those of the "
                "weights; leave them out"
            )

    def schemes(self, role: str) -> Schemes:
        """The rowwise and the columnwise scheme of an operand; None if that copy is not quantized."""
        if not isinstance(role, str) or role not in ROLES:
            raise RecipeError(f"role must be one of {', '.join(ROLES)}, got {shown(role)}")
        row, col = self._schemes_beside(role)
        if self.backward == "normal":
            return row, col
        # Backward GEMMs run in high precision: nothing reads columnwise copies or a quantized gradient.
        return _NOT_QUANTIZED if role == "grad_output" else (row, None)

    def _schemes_beside(self, role: str) -> Schemes:
        """The schemes of a role when the backward is normal, those of activations by the recipe that they have."""
        if role == "weight" or self.activations == OWN:
            return self._schemes(role)
        activations = _activations_of(self)
        return _NOT_QUANTIZED if activations is None else activations._schemes(role)

    def delayed(self) -> "DelayedScaling | None":
        """The recipe among this one and that of its activations whose scales are state."""
        return next((each for each in (self, _activations_of(self)) if isinstance(each, DelayedScaling)), None)

    def input_scale(self, layer: str) -> float | None:
        """What a layer's input is decoded by where that is given; None if it is measured."""
        if self.activations is None or self.activations != OWN:
            return None if self.activations is None else get(self.activations).input_scale(layer)
        scales = dict(getattr(self, "input_scales", ()))
        return next((scale for pattern, scale in scales.items() if fnmatchcase(layer, pattern)), None)

    def with_input_scales(self, scales: Mapping[str, float]) -> "Recipe":
        """The same recipe with these static scales of inputs, by patterns of layers, before those that it has."""
        given: dict[str, Any] = {}
        other = _activations_of(self)
        if other is not None:
            given["activations"] = other.with_input_scales(scales)
        elif self.activations == OWN and hasattr(self, "input_scales"):
            given["input_scales"] = {**scales, **dict(getattr(self, "input_scales", ()))}
        else:
            raise RecipeError(
                f"input_scales are those of inputs in fp8-current or nvfp4, got the recipe {self.name} with "
                f"activations {shown(self.activations)}; leave them out, or choose another recipe"
            )
        return replace(self, **given)

    def unused_input_scales(self, layers: Iterable[str]) -> list[str]:
        """The patterns of static scales that match none of these layers."""
        names = list(layers)
        own = [pattern for pattern, _ in getattr(self, "input_scales", ())]
        other = self.activations.unused_input_scales(names) if isinstance(self.activations, Recipe) else []
        return [each for each in own if not any(fnmatchcase(name, each) for name in names)] + other

    def _is_static(self, role: str) -> bool:
        """Whether this recipe gives the scale of an operand."""
        scales = getattr(self, "input_scales", ())
        return role == "input" and any(fnmatchcase(getattr(role, "layer", ""), pattern) for pattern, _ in scales)

    def set_quantizer_factory(self, factory: Callable[[str], Any]) -> "CustomRecipe":
        """A recipe whose quantizers a factory makes, with the backward of this one, which stays as it is.

        `CustomRecipe.factory` says what the factory returns.
        """
        return CustomRecipe(factory, backward=self.backward)

    def settled(self, *, trains: bool) -> "Recipe":
        """The recipe of a net, with what it leaves open decided: weights in tiles if the net trains, else in blocks."""
        choice: dict[str, Any] = {"weight_tiles": trains}
        return replace(self, **choice) if self.is_open else self

    @property
    def is_open(self) -> bool:
        """Whether each net decides on `weight_tiles`."""
        return self._allows_tiles and getattr(self, "weight_tiles", False) is None

    @property
    def _allows_tiles(self) -> bool:
        """Whether weights can be in tiles with the other options."""
        return True

    @property
    def _has_tiles(self) -> bool:
        """Whether weights are in tiles. Without a net they are as in one that trains."""
        chosen = getattr(self, "weight_tiles", False)
        return self._allows_tiles if chosen is None else chosen

    @abstractmethod
    def _schemes(self, role: str) -> Schemes:
        """The schemes of a role when the backward is normal."""

    def to_dict(self) -> dict[str, Any]:
        """Every field, and the recipe's name under `recipe`."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if isinstance(self.activations, Recipe):
            values["activations"] = self.activations.to_dict()
        if "input_scales" in values:
            values["input_scales"] = dict(values["input_scales"])
        for name, value in values.items():
            if callable(value):
                raise RecipeError(
                    f"{type(self).__name__}.{name} must be plain data to be serialized, got the callable {value!r}; "
                    "keep the recipe in code"
                )
        return {"recipe": self.name, **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Recipe":
        """The recipe from the result of `to_dict`; missing fields have their defaults."""
        if not isinstance(values, Mapping):
            raise RecipeError(f"a recipe must be a dict of its fields, got {type(values).__name__} {shown(values)}")
        values = dict(values)
        recipe_class = _class_of(values.pop("recipe", cls.name))
        if not issubclass(recipe_class, cls):
            raise RecipeError(f"recipe must be {cls.name!r} for {cls.__name__}, got {recipe_class.name!r}")
        known = [each.name for each in fields(recipe_class)]
        for name in values:
            if name not in known:
                raise RecipeError(f"{recipe_class.__name__} has no field {shown(name)}{_nearest(name, known)}")
        if isinstance(values.get("activations"), Mapping):
            values["activations"] = Recipe.from_dict(values["activations"])
        return recipe_class(**values)

    def to_toml(self) -> str:
        """The fields as TOML, one per line, with "none" for None."""
        return "".join(f"{name} = {_toml_value(value)}\n" for name, value in self.to_dict().items())

    @classmethod
    def from_toml(cls, text: str) -> "Recipe":
        """The recipe from the result of `to_toml`."""
        if not isinstance(text, str):
            raise RecipeError(f"the recipe must be TOML in a str, got {type(text).__name__}; decode or read it first")
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(f"the recipe must be valid TOML: {error}") from error
        return cls.from_dict(values)


@dataclass(frozen=True)
class DelayedScaling(Recipe):
    """FP8 with one scale per tensor, from the amaxes of earlier steps."""

    name: ClassVar[str] = "fp8-delayed"

    margin: int = 0
    """Scales are divided by 2^margin."""
    fp8_format: str = "HYBRID"
    """`HYBRID`: E4M3 for inputs and weights, E5M2 for gradients; `E4M3`: for everything."""
    amax_history_len: int = 1024
    """How many amaxes are kept."""
    amax_compute_algo: str | Callable[..., Any] = "max"
    """`max` of the history, `most_recent`, or a function from the history to an amax."""
    reduce_amax: bool = True
    """Amaxes are max-reduced over the process group before each update."""

    def _schemes(self, role: str) -> Schemes:
        scheme = Scheme(_fp8_element(self.fp8_format, role), "tensor", "f32", source="delayed")
        return scheme, scheme


@dataclass(frozen=True)
class Float8CurrentScaling(Recipe):
    """FP8 with one scale per tensor, from its own amax."""

    name: ClassVar[str] = "fp8-current"

    fp8_format: str = "HYBRID"
    """`HYBRID`: E4M3 for inputs and weights, E5M2 for gradients; `E4M3`: for everything."""
    power_of_two: bool = False
    """Scales are rounded down to a power of two."""
    epsilon: float = 0.0
    """A lower bound of the amax."""
    input_scales: InputScales = ()
    """Static scales: what the codes of a layer's input are multiplied by to decode them, by patterns of layer names;
    the first that matches a layer decides. Such inputs are not measured. Values out of range saturate, and are counted.
    """

    def _schemes(self, role: str) -> Schemes:
        element = _fp8_element(self.fp8_format, role)
        scheme = Scheme(element, "tensor", "f32", power_of_two=self.power_of_two, epsilon=float(self.epsilon))
        if self._is_static(role):
            scheme = Scheme(element, "tensor", "f32", source="static")
        return scheme, scheme


@dataclass(frozen=True)
class Float8RowScaling(Recipe):
    """FP8 with one scale per row: per token of inputs and gradients, per output channel of weights."""

    name: ClassVar[str] = "fp8-row"

    fp8_format: str = "HYBRID"
    """`HYBRID`: E4M3 for inputs and weights, E5M2 for gradients; `E4M3`: for everything."""
    power_of_two: bool = False
    """Scales are rounded down to a power of two."""
    epsilon: float = 0.0
    """A lower bound of the amax."""

    def _schemes(self, role: str) -> Schemes:
        element = _fp8_element(self.fp8_format, role)
        scheme = Scheme(element, "row", "f32", power_of_two=self.power_of_two, epsilon=float(self.epsilon))
        return scheme, scheme


@dataclass(frozen=True)
class Float8BlockScaling(Recipe):
    """FP8 with one scale per 1x128 block of inputs and gradients, and per 128x128 tile of weights."""

    name: ClassVar[str] = "fp8-block"

    fp8_format: str = "E4M3"
    """`E4M3` for everything, or `HYBRID`: E5M2 for gradients."""
    power_of_two: bool = True
    """Scales are rounded down to a power of two."""
    epsilon: float = 0.0
    """A lower bound of the amax."""
    weight_tiles: bool | None = True
    """Weights in 128x128 tiles; False: in 1x128 blocks too; None: in blocks if the net is for inference."""

    def _schemes(self, role: str) -> Schemes:
        scheme = Scheme(
            _fp8_element(self.fp8_format, role),
            "128x128" if role == "weight" and self._has_tiles else "1x128",
            "f32",
            power_of_two=self.power_of_two,
            epsilon=float(self.epsilon),
        )
        return scheme, scheme


@dataclass(frozen=True)
class MXFP8BlockScaling(Recipe):
    """FP8 with one power-of-two scale per 32 elements, stored in a byte."""

    name: ClassVar[str] = "mxfp8"

    fp8_format: str = "E4M3"
    """`E4M3` for everything, or `HYBRID`: E5M2 for gradients."""
    scale_rule: str = "rceil"
    """How the scale is computed from a block's amax: rceil, floor, ceil or even."""
    weight_tiles: bool | None = False
    """Weights in 32x32 tiles, so that the rowwise and the columnwise copy hold the same values; False: in 1x32 blocks;
    None: in tiles unless the net is for inference."""

    def _schemes(self, role: str) -> Schemes:
        element = _fp8_element(self.fp8_format, role)
        tiled = role == "weight" and self._has_tiles
        blocks = ("32x32", "32x32") if tiled else ("1x32", "32x1")
        row, col = (Scheme(element, block, "f8E8M0FNU", rule=self.scale_rule) for block in blocks)
        return row, col


@dataclass(frozen=True)
class MXFP4BlockScaling(Recipe):
    """FP4 with one power-of-two scale per 32 elements, stored in a byte."""

    name: ClassVar[str] = "mxfp4"

    scale_rule: str = "rceil"
    """How the scale is computed from a block's amax: rceil, floor, ceil or even."""

    def _schemes(self, role: str) -> Schemes:
        scheme = Scheme("f4E2M1FN", "1x32", "f8E8M0FNU", rule=self.scale_rule)
        return scheme, scheme


@dataclass(frozen=True)
class NVFP4BlockScaling(Recipe):
    """FP4 with one E4M3 scale per 16 elements, under one f32 scale per tensor."""

    name: ClassVar[str] = "nvfp4"

    weight_tiles: bool | None = None
    """Weights in 16x16 tiles, so that forward and backward multiply the same values; False: in 1x16 blocks, which are
    more accurate; None: in blocks if the net is for inference, that is if the model is in eval mode at
    `steelyard.compile` or none of its parameters requires a gradient, otherwise in tiles, in evaluation too."""
    rht: bool = True
    """Apply a random Hadamard transform to both operands of the weight gradient."""
    stochastic_rounding: bool = True
    """Gradients are rounded stochastically."""
    row_scaled: bool = False
    """Rowwise inputs have one f32 scale per row instead of one per tensor."""
    four_over_six: str = "none"
    """Where each block also tries to map its amax to 4 instead of 6: none, weights, activations (inputs) or all."""
    four_over_six_error: str = "mae"
    """The error that decides between 4 and 6: mae or mse."""
    input_scales: InputScales = ()
    """Static second levels of rowwise inputs: what their codes and block scales are multiplied by, by patterns of layer
    names; the first that matches a layer decides. Values out of range saturate, and are counted."""

    def __post_init__(self):
        super().__post_init__()
        if self.row_scaled:
            for name in ("rht", "weight_tiles", "stochastic_rounding"):
                self._require_off(name, "row_scaled=True")
        if self.four_over_six in ("activations", "all"):
            self._require_off("rht", f"four_over_six={self.four_over_six!r}")

    def _require_off(self, name: str, reason: str) -> None:
        if getattr(self, name):
            owner = type(self).__name__
            raise RecipeError(f"{owner}.{name} must be False with {reason}, got True; pass {name}=False")

    @property
    def _allows_tiles(self) -> bool:
        return not self.row_scaled

    def _schemes(self, role: str) -> Schemes:
        if role == "weight":
            scheme = self._scheme("weights", block="16x16" if self._has_tiles else "1x16")
            return scheme, scheme
        if role == "input":
            level = "row" if self.row_scaled else "tensor"
            row = self._scheme("activations", second_level=level)
            is_static = self._is_static(role)
            return self._scheme("", source="static") if is_static else row, self._scheme("activations", rht=self.rht)
        rounding = "stochastic" if self.stochastic_rounding else "nearest"
        return self._scheme("", rounding=rounding), self._scheme("", rounding=rounding, rht=self.rht)

    def _scheme(self, scope: str, block: str = "1x16", second_level: str = "tensor", **options) -> Scheme:
        chosen = self.four_over_six_error if scope and self.four_over_six in (scope, "all") else "none"
        return Scheme("f4E2M1FN", block, "f8E4M3FN", second_level=second_level, four_over_six=chosen, **options)


@dataclass(frozen=True)
class NVFP4FourOverSixScaling(NVFP4BlockScaling):
    """NVFP4 in which each block of weights and inputs maps its amax to 6 or to 4, whichever has the smaller error.

    The most accurate of the FP4 recipes in inference. It trains without the random Hadamard transform, which
    four-over-six excludes.
    """

    name: ClassVar[str] = "nvfp4-4over6"

    rht: bool = False
    """Apply a random Hadamard transform to both operands of the weight gradient: not with four-over-six inputs."""
    four_over_six: str = "all"
    """Where each block also tries to map its amax to 4 instead of 6: none, weights, activations (inputs) or all."""
    four_over_six_error: str = "mse"
    """The error that decides between 4 and 6: mae or mse."""


@dataclass(frozen=True)
class CustomRecipe(Recipe):
    """A factory chooses the quantizer of each operand of each layer."""

    name: ClassVar[str] = "custom"

    factory: Callable[[str], Any]
    """Maps a role to a quantizer, to a pair of schemes (rowwise, columnwise), or to None for high precision."""

    def quantizer(self, role: str) -> Any:
        """What the factory returns for a role."""
        return self.factory(role)

    def _schemes(self, role: str) -> Schemes:
        made = self.quantizer(role)
        if made is None:
            return _NOT_QUANTIZED
        pair = made.schemes() if not isinstance(made, type) and callable(getattr(made, "schemes", None)) else made
        if isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(s, Scheme | None) for s in pair):
            return pair
        raise RecipeError(
            f"CustomRecipe.factory must return a quantizer, a pair of schemes or None, got {shown(made)} for {role!r}"
        )


class Overrides(dict[str, Recipe | None]):
    """Layer name patterns, each with a recipe or None for high precision; the first that matches a layer decides."""

    @classmethod
    def parse(cls, text: str) -> "Overrides":
        """Overrides from text: `pattern=recipe` or `pattern=none`, separated by spaces."""
        if not isinstance(text, str):
            raise RecipeError(f"overrides must be a str of pattern=recipe, got {shown(text)}")
        overrides = cls()
        for word in text.split():
            pattern, equals, name = word.partition("=")
            if not equals:
                raise RecipeError(f"an override must be pattern=recipe, got '{word}'")
            overrides[pattern] = None if name == NONE else get(name)
        return overrides

    def pattern_of(self, layer: str) -> str | None:
        """The first pattern that matches a layer; None if none does."""
        return next((pattern for pattern in self if fnmatchcase(layer, pattern)), None)

    def recipe_of(self, layer: str, default: Recipe) -> Recipe | None:
        """The recipe of a layer; None for high precision."""
        pattern = self.pattern_of(layer)
        return default if pattern is None else self[pattern]

    def unmatched(self, layers: Iterable[str]) -> list[str]:
        """The patterns that are not the first match of any of these layers."""
        deciding = {self.pattern_of(layer) for layer in layers}
        return [pattern for pattern in self if pattern not in deciding]


@dataclass(frozen=True)
class MixedRecipe:
    """A recipe, and others for some layers. `steelyard.tune` returns one, and `steelyard.compile` takes it."""

    default: Recipe
    overrides: tuple[tuple[str, Recipe | None], ...] = ()
    """Patterns of layer names, each with a recipe or None for high precision; the first that matches a layer decides.
    """
    about: dict[str, Any] = field(default_factory=dict, compare=False)
    """How it was found, as plain data: the goal, what was tried, and the table of costs."""

    def recipe_of(self, layer: str) -> Recipe | None:
        """The recipe of a layer; None for high precision."""
        return Overrides(self.overrides).recipe_of(layer, self.default)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which JSON holds."""
        pairs = [[pattern, recipe and recipe.to_dict()] for pattern, recipe in self.overrides]
        return {"recipe": "mixed", "default": self.default.to_dict(), "overrides": pairs, "about": self.about}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "MixedRecipe":
        """The recipe from the result of `to_dict`."""
        if not isinstance(values, Mapping) or values.get("recipe") != "mixed" or "default" not in values:
            raise RecipeError(f"a mixed recipe must be what MixedRecipe.to_dict returns, got {shown(values)}")
        pairs = values.get("overrides", [])
        if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise RecipeError(f"overrides of a mixed recipe must be pairs of patterns and recipes, got {shown(pairs)}")
        overrides = tuple((pattern, recipe and Recipe.from_dict(recipe)) for pattern, recipe in pairs)
        return cls(Recipe.from_dict(values["default"]), overrides, values.get("about", {}))


_RECIPES = (
    DelayedScaling,
    Float8CurrentScaling,
    Float8RowScaling,
    Float8BlockScaling,
    MXFP8BlockScaling,
    MXFP4BlockScaling,
    NVFP4BlockScaling,
    NVFP4FourOverSixScaling,
)
NAMES = tuple(recipe.name for recipe in _RECIPES)


def get(recipe: str | Recipe) -> Recipe:
    """The recipe with a name, with its defaults. A recipe object is returned as it is.

    `nvfp4/mxfp8` names two, that of weights and that of activations, and `nvfp4/none` quantizes weights only.
    """
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str) or "/" not in recipe:
        return _class_of(recipe)()
    weights, _, activations = recipe.partition("/")
    if activations != NONE:
        _class_of(activations)
    return _class_of(weights)(activations=activations)


def _class_of(name: str) -> type[Recipe]:
    for recipe in _RECIPES:
        if isinstance(name, str) and recipe.name == name:
            return recipe
    if isinstance(name, str) and name == CustomRecipe.name:
        raise RecipeError("a custom recipe holds a factory, which no name or file can hold; build CustomRecipe in code")
    known = ", ".join(NAMES)
    raise RecipeError(f"recipe must be a recipe object or one of {known}; got {shown(name)}{_nearest(name, NAMES)}")


def _nearest(name: Any, known: Any) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1) if isinstance(name, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _activations_of(recipe: Recipe) -> Recipe | None:
    """The other recipe by which the activations of a recipe are quantized; None where there is none."""
    return None if recipe.activations is None or recipe.activations == OWN else get(recipe.activations)


def _fp8_element(fp8_format: str, role: str) -> str:
    return "f8E5M2" if fp8_format == "HYBRID" and role == "grad_output" else "f8E4M3FN"


def _check_field(owner: str, name: str, kind: Any, value: Any) -> None:
    """Refuse a value that is not valid for its field."""
    if name in _SMALLEST:
        largest = _LARGEST.get(name)
        holds = type(value) is int and value >= _SMALLEST[name] and (largest is None or value <= largest)
        expected = f"an integer of at least {_SMALLEST[name]}" + ("" if largest is None else f" and at most {largest}")
    elif name in _CHOICES:
        holds = (isinstance(value, str) and value in _CHOICES[name]) or (
            name == "amax_compute_algo" and callable(value)
        )
        expected = f"one of {', '.join(_CHOICES[name])}" + (" or a callable" if name == "amax_compute_algo" else "")
    elif name == "activations":
        holds, expected = _are_activations(value), f"{OWN!r}, None, or another recipe or its name"
    elif name == "input_scales":
        holds, expected = _are_scales(value), f"numbers by patterns of layer names, each {SCALE}"
    elif name == "factory":
        holds, expected = callable(value), "a callable from a role to a quantizer"
    elif kind is float:
        holds, expected = is_epsilon(value), EPSILON
    elif name in _OPTIONAL:
        holds, expected = isinstance(value, bool | None), "True, False or None"
    else:
        holds, expected = isinstance(value, bool), "True or False"
    if not holds:
        raise RecipeError(f"{owner}.{name} must be {expected}, got {shown(value)}")


def _are_activations(value: Any) -> bool:
    """Whether a value says how the activations of a recipe are quantized: a recipe's own activations stand alone."""
    if isinstance(value, str):
        return value in (OWN, *NAMES)
    return value is None or (isinstance(value, Recipe) and value.activations == OWN)


def _are_scales(value: Any) -> bool:
    pairs: Any = value if isinstance(value, tuple) else ((None, None),)
    return all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and is_scale(pair[1]) for pair in pairs
    )


def is_scale(value: Any) -> bool:
    """Whether a value is a valid static scale; `SCALE` says the condition in words."""
    return is_epsilon(value) and value != 0


def is_epsilon(value: Any) -> bool:
    """Whether a value is a valid lower bound of amaxes; `EPSILON` says the condition in words."""
    smallest, largest = _EPSILON_RANGE
    return type(value) in (int, float) and (value == 0 or smallest <= value <= largest)


def _toml_value(value: Any) -> str:
    if value is None:
        return json.dumps(NONE)
    if isinstance(value, dict):
        pairs: dict[str, Any] = value
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml_value(each)}" for name, each in pairs.items()) + "}"
    return repr(value) if type(value) is float else json.dumps(value)
