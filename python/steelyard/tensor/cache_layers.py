"""Layers of transformers' KV caches that keep keys and values in FP8, with one scale per token and head.

A quantized layer holds two layers of the plain class: one has the codes where it would have keys and values, the other
their scales. What the plain class does to a cache, such as to remove tokens or to choose beams, it does to both.
"""

import copy
from typing import Any

import torch
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from steelyard.errors import UnsupportedModelError
from steelyard.tensor.cached_rows import decode_rows, encode_rows

_STATES = ("keys", "values")
_ASKING = ("get_mask_sizes", "get_max_length", "get_seq_length")
"""Methods that change nothing."""


class _Quantized:
    """What quantized layers have in common. The plain class comes after it, for what asks for the class of a layer."""

    plain_class: Any

    def __init__(self, *arguments: Any, **keywords: Any):
        self.codes, self.scales = (self.plain_class(*arguments, **keywords) for _ in range(2))
        self.dtype = torch.float32

    @classmethod
    def from_plain(cls, layer: Any) -> Any:
        """A quantized layer with what a plain one holds."""
        made = cls.__new__(cls)
        made.codes, made.scales = _copied(layer), _copied(layer)
        made.dtype = getattr(layer, "dtype", torch.float32)
        if not layer.is_initialized:
            return made
        if layer.keys.numel():
            made.keys, made.values = layer.keys, layer.values
        else:
            # It has no tensors yet, only their dtype.
            made.codes.is_initialized = made.scales.is_initialized = False
        return made

    def __getattr__(self, name: str) -> Any:
        if name in ("codes", "scales"):
            raise AttributeError(name)
        return getattr(self.codes, name)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Prepare for keys and values like these, as `Cache.early_initialization` asks for."""
        (keys, key_scales), (values, value_scales) = encode_rows(key_states), encode_rows(value_states)
        self.dtype = key_states.dtype
        self.codes.lazy_initialization(keys, values)
        self.scales.lazy_initialization(key_scales, value_scales)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        """Append keys and values, quantized; returns all of them, decoded."""
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            raise UnsupportedModelError(
                "keys and values that are read from an FP8 cache have no gradients; call the model under "
                "torch.no_grad(), or with use_cache=False"
            )
        self.dtype = key_states.dtype
        (keys, key_scales), (values, value_scales) = encode_rows(key_states), encode_rows(value_states)
        keys, values = self.codes.update(keys, values, *arguments, **keywords)
        key_scales, value_scales = self.scales.update(key_scales, value_scales, *arguments, **keywords)
        return decode_rows(keys, key_scales, self.dtype), decode_rows(values, value_scales, self.dtype)

    @property
    def keys(self) -> torch.Tensor | None:
        """All keys, decoded."""
        return self._decoded("keys")

    @keys.setter
    def keys(self, states: torch.Tensor | None) -> None:
        self._encode("keys", states)

    @property
    def values(self) -> torch.Tensor | None:
        """All values, decoded."""
        return self._decoded("values")

    @values.setter
    def values(self, states: torch.Tensor | None) -> None:
        self._encode("values", states)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes and scales."""
        held = [getattr(layer, name) for layer in (self.codes, self.scales) for name in _STATES]
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def _decoded(self, name: str) -> torch.Tensor | None:
        codes = getattr(self.codes, name)
        if codes is None or codes.dim() < 2:
            return codes
        return decode_rows(codes, getattr(self.scales, name), self.dtype)

    def _encode(self, name: str, states: torch.Tensor | None) -> None:
        codes, scales = (None, None) if states is None else encode_rows(states)
        setattr(self.codes, name, codes)
        setattr(self.scales, name, scales)


def _copied(layer: Any) -> Any:
    """A layer like another, with counters of its own, which some layers have in tensors."""
    made = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, torch.Tensor) and name not in _STATES:
            setattr(made, name, value.clone())
    return made


def _quantized_class(plain_class: type) -> type[_Quantized]:
    methods = {name: _forwarded(name) for name in _methods(plain_class) - vars(_Quantized).keys()}
    namespace = {"plain_class": plain_class, "__module__": __name__, "__doc__": f"A `{plain_class.__name__}` in FP8."}
    return type(f"Quantized{plain_class.__name__}", (_Quantized, plain_class), namespace | methods)


def _methods(plain_class: type) -> set[str]:
    return {name for name in dir(plain_class) if not name.startswith("_") and callable(getattr(plain_class, name))}


def _forwarded(name: str) -> Any:
    """A method that a quantized layer leaves to the layers it holds."""

    def ask(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.codes, name)(*arguments, **keywords)

    def do(self: Any, *arguments: Any, **keywords: Any) -> None:
        getattr(self.codes, name)(*arguments, **keywords)
        getattr(self.scales, name)(*arguments, **keywords)

    return ask if name in _ASKING else do


QUANTIZED: dict[type, type[_Quantized]] = {
    plain: _quantized_class(plain)
    for plain in (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)
}
"""Class of plain layers -> that of quantized ones."""
