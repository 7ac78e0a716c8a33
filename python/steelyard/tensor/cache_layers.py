"""Layers of transformers' KV caches that keep keys and values in FP8.

A quantized layer holds layers of the plain class: one has the codes where it would have keys and values, and where each
token and head has a scale of its own, another has those. What the plain class does to a cache, such as to remove tokens
or to choose beams, it does to all of them.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from steelyard.errors import UnsupportedModelError
from steelyard.tensor.cached_rows import (
    GivenScale,
    count_saturated,
    decode_rows,
    decode_static,
    encode_rows,
    encode_static,
)

_STATES = ("keys", "values")
_ASKING = ("get_mask_sizes", "get_max_length", "get_seq_length")
"""Methods that change nothing."""


class _Quantized:
    """What quantized layers have in common. The plain class comes after it, for what asks for the class of a layer."""

    plain_class: Any
    held: tuple[Any, ...]
    """Layers of the plain class, one for each part of what is quantized: codes first."""
    parts: int

    def __init__(self, *arguments: Any, **keywords: Any):
        self.held = tuple(self.plain_class(*arguments, **keywords) for _ in range(self.parts))
        self.dtype = torch.float32

    @classmethod
    def from_plain(cls, layer: Any, **attributes: Any) -> Any:
        """A quantized layer with what a plain one holds."""
        made = cls.__new__(cls)
        vars(made).update(attributes)
        made.held = tuple(_copied(layer) for _ in range(cls.parts))
        made.dtype = getattr(layer, "dtype", torch.float32)
        if not layer.is_initialized:
            return made
        if layer.keys.numel():
            made.keys, made.values = layer.keys, layer.values
        else:
            # It has no tensors yet, only their dtype.
            for one in made.held:
                one.is_initialized = False
        return made

    def __getattr__(self, name: str) -> Any:
        if name == "held":
            raise AttributeError(name)
        return getattr(self.held[0], name)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Prepare for keys and values like these, as `Cache.early_initialization` asks for."""
        self.dtype = key_states.dtype
        for layer, keys, values in self._encoded(key_states, value_states):
            layer.lazy_initialization(keys, values)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        """Append keys and values, quantized; returns all of them, decoded."""
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            raise UnsupportedModelError(
                "keys and values that are read from an FP8 cache have no gradients; call the model under "
                "torch.no_grad(), or with use_cache=False"
            )
        self.dtype = key_states.dtype
        parts = [
            layer.update(keys, values, *arguments, **keywords)
            for layer, keys, values in self._encoded(key_states, value_states)
        ]
        keys, values = zip(*parts, strict=True)
        return self._decode("keys", keys), self._decode("values", values)

    @property
    def keys(self) -> torch.Tensor | None:
        """All keys, decoded."""
        return self._states("keys")

    @keys.setter
    def keys(self, states: torch.Tensor | None) -> None:
        self._set_states("keys", states)

    @property
    def values(self) -> torch.Tensor | None:
        """All values, decoded."""
        return self._states("values")

    @values.setter
    def values(self, states: torch.Tensor | None) -> None:
        self._set_states("values", states)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, and of scales that are kept with them."""
        held = [getattr(layer, name) for layer in self.held for name in _STATES]
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def _encoded(self, key_states: torch.Tensor, value_states: torch.Tensor) -> Any:
        """Each layer that is held, and its part of keys and of values."""
        return zip(self.held, self._encode("keys", key_states), self._encode("values", value_states), strict=True)

    def _states(self, name: str) -> torch.Tensor | None:
        parts = tuple(getattr(layer, name) for layer in self.held)
        is_empty = parts[0] is None or parts[0].dim() < 2
        return parts[0] if is_empty else self._decode(name, parts)

    def _set_states(self, name: str, states: torch.Tensor | None) -> None:
        parts = (None,) * self.parts if states is None else self._encode(name, states)
        for layer, part in zip(self.held, parts, strict=True):
            setattr(layer, name, part)

    def _encode(self, name: str, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The parts of keys or of values."""
        raise NotImplementedError

    def _decode(self, name: str, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Keys or values from their parts."""
        raise NotImplementedError


class _Measured(_Quantized):
    """Each token and head has a scale of its own."""

    parts = 2

    def _encode(self, name: str, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return encode_rows(states)

    def _decode(self, name: str, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return decode_rows(*parts, self.dtype)


class _Static(_Quantized):
    """The scales of all keys, and of all values, are given."""

    parts = 1
    given: Mapping[str, GivenScale]
    """By `keys` and `values`."""

    def _encode(self, name: str, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = self.given[name]
        given.saturated.copy_(count_saturated(states, given.scale, given.saturated))
        return (encode_static(states, given.scale),)

    def _decode(self, name: str, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return decode_static(*parts, self.given[name].scale, self.dtype)


def _copied(layer: Any) -> Any:
    """A layer like another, with counters of its own, which some layers have in tensors."""
    made = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, torch.Tensor) and name not in _STATES:
            setattr(made, name, value.clone())
    return made


def _quantized_class(kind: type[_Quantized], plain_class: type) -> type[_Quantized]:
    methods = {name: _forwarded(name) for name in _methods(plain_class) - vars(_Quantized).keys()}
    namespace = {"plain_class": plain_class, "__module__": __name__, "__doc__": f"A `{plain_class.__name__}` in FP8."}
    return type(f"Quantized{plain_class.__name__}", (kind, plain_class), namespace | methods)


def _methods(plain_class: type) -> set[str]:
    return {name for name in dir(plain_class) if not name.startswith("_") and callable(getattr(plain_class, name))}


def _forwarded(name: str) -> Any:
    """A method that a quantized layer leaves to the layers it holds."""

    def ask(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.held[0], name)(*arguments, **keywords)

    def do(self: Any, *arguments: Any, **keywords: Any) -> None:
        for layer in self.held:
            getattr(layer, name)(*arguments, **keywords)

    return ask if name in _ASKING else do


_PLAIN = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)
MEASURED: dict[type, type[_Quantized]] = {plain: _quantized_class(_Measured, plain) for plain in _PLAIN}
"""Class of plain layers -> that of quantized ones with a scale per token and head."""
STATIC: dict[type, type[_Quantized]] = {plain: _quantized_class(_Static, plain) for plain in _PLAIN}
"""Class of plain layers -> that of quantized ones with scales that are given."""
