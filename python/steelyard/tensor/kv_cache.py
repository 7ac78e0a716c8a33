"""`steelyard.quantize_cache`: KV caches of transformers in FP8."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from steelyard.errors import UnsupportedModelError, shown
from steelyard.tensor.cached_rows import GivenScale

_MODULE = "transformers.cache_utils"
Given = Callable[[int], Mapping[str, GivenScale] | None]
"""From the number of a layer to the scales of its `keys` and `values`; None if they are measured."""


def quantize_cache(cache: Any) -> Any:
    """Let a KV cache of transformers keep keys and values in FP8 (E4M3), with one f32 scale per token and head.

    It returns the same cache, whose layers quantize what is appended, and decode what is read. What the cache holds
    already is quantized now. Layers that are quantized already, and those without keys and values of attention, stay as
    they are.

    Args:
        cache: A `DynamicCache`, a `StaticCache`, or an `EncoderDecoderCache` of these.
    """
    if not _is_cache(type(cache)):
        raise UnsupportedModelError(
            f"quantize_cache takes a DynamicCache, a StaticCache or an EncoderDecoderCache of transformers, got "
            f"{shown(cache)}"
        )
    _quantize(cache, (), lambda number: None)
    return cache


def quantize_caches(arguments: Iterable[Any], numbers: Iterable[int], given: Given) -> None:
    """Quantize every cache among the arguments of a call; layers with these numbers have scales that are given."""
    for argument in arguments:
        if _is_cache(type(argument)):
            _quantize(argument, numbers, given)


@functools.lru_cache(maxsize=256)
def _is_cache(value_class: type) -> bool:
    known = ("DynamicCache", "StaticCache", "EncoderDecoderCache")
    return any(base.__module__ == _MODULE and base.__name__ in known for base in value_class.__mro__)


def _quantize(cache: Any, numbers: Iterable[int], given: Given) -> None:
    for part in ("self_attention_cache", "cross_attention_cache"):
        if hasattr(cache, part):
            if numbers:
                raise UnsupportedModelError(
                    "kv_scales are those of a model with one cache, got an EncoderDecoderCache; leave them out"
                )
            _quantize(getattr(cache, part), numbers, given)
    if hasattr(cache, "layers"):
        _quantize_layers(cache, numbers, given)


def _quantize_layers(cache: Any, numbers: Iterable[int], given: Given) -> None:
    # transformers is needed by those who have a cache of it, and by nobody else.
    from steelyard.tensor.cache_layers import MEASURED, STATIC

    if cache.layer_class_to_replicate is not None:
        # Layers that are appended later are all alike.
        while len(cache.layers) <= max(numbers, default=-1):
            cache.layers.append(cache.layer_class_to_replicate())
    for number, layer in enumerate(cache.layers):
        if type(layer) not in MEASURED:
            continue
        scales = given(number)
        if scales is None:
            cache.layers[number] = MEASURED[type(layer)].from_plain(layer)
        else:
            cache.layers[number] = STATIC[type(layer)].from_plain(layer, given=scales)
    if cache.layer_class_to_replicate in MEASURED:
        cache.layer_class_to_replicate = MEASURED[cache.layer_class_to_replicate]
