"""Static scales of KV caches: which layer of a cache each belongs to, and the state of the net that holds them."""

import functools
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch

from steelyard.errors import RecipeError, shown
from steelyard.formats.schemes import CACHED_ROLES
from steelyard.recipes import SCALE, is_scale
from steelyard.runtime.state import SATURATED, State
from steelyard.tensor.cached_rows import GivenScale

KVScales = Mapping[str, tuple[float, float]]
"""The scales of keys and of values by patterns of attention modules; the first that matches decides."""
_NUMBER = "layer_idx"
_STATES = dict(zip(("keys", "values"), CACHED_ROLES, strict=True))


def read_scales(given: Any, *, has_cache: bool) -> KVScales:
    """The scales that a user gives; raises `RecipeError`."""
    if given is None:
        return {}
    is_mapping = isinstance(given, Mapping)
    if not is_mapping or not all(isinstance(name, str) and _is_pair(pair) for name, pair in given.items()):
        raise RecipeError(
            "kv_scales must map patterns of attention modules to a scale of keys and one of values, each "
            f'{SCALE}, as in {{"model.layers.0.self_attn": (0.02, 0.01)}}, got {shown(given)}'
        )
    if given and not has_cache:
        raise RecipeError('kv_scales are those of FP8 caches, got kv_cache=None; give kv_cache="fp8" as well')
    return {name: (key, value) for name, (key, value) in given.items()}


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and all(map(is_scale, pair))


def scales_of(scales: KVScales, layer: str) -> tuple[float, float] | None:
    """The scales of keys and of values of an attention module; None if they are measured."""
    return next((pair for pattern, pair in scales.items() if fnmatchcase(layer, pattern)), None)


def number_layers(model: torch.nn.Module, scales: KVScales) -> dict[int, str]:
    """The attention modules of a model that have scales, by the number of their layer in a cache."""
    if not scales:
        return {}
    numbers = {name: module.__dict__.get(_NUMBER) for name, module in model.named_modules()}
    known = {name: number for name, number in numbers.items() if isinstance(number, int)}
    for pattern in scales:
        if not any(fnmatchcase(name, pattern) for name in known):
            found = ", ".join(known) or "none"
            raise RecipeError(
                f"kv_scales has {pattern!r}, which matches no module with a layer in KV caches; the modules with a "
                f"{_NUMBER}: {found}"
            )
    layers: dict[int, str] = {}
    for name, number in known.items():
        if scales_of(scales, name) is not None and layers.setdefault(number, name) != name:
            raise RecipeError(
                f"kv_scales must match one module per layer of a KV cache, got {layers[number]} and {name} for layer "
                f"{number}; name the one that appends keys and values"
            )
    return layers


class CacheScales:
    """What the caches of a net's calls are given."""

    def __init__(self, model: torch.nn.Module, scales: KVScales, state: State):
        self._model, self._scales, self._state = model, scales, state

    @functools.cached_property
    def layers(self) -> dict[int, str]:
        """Attention modules with static scales by the number of their layer."""
        # Not when a net is made: in a copy, its model may have no modules yet.
        return number_layers(self._model, self._scales)

    def given(self, number: int) -> dict[str, GivenScale] | None:
        """The scales of a layer's keys and values; None if they are measured."""
        layer = self.layers.get(number)
        if layer is None:
            return None
        return {
            states: GivenScale(self._tensor(f"{layer}.{role}.scale"), self._tensor(f"{layer}.{role}{SATURATED}"))
            for states, role in _STATES.items()
        }

    def _tensor(self, name: str) -> torch.Tensor:
        return self._state.get_on(next(self._model.parameters()).device, name, ())
