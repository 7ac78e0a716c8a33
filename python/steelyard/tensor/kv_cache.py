"""`steelyard.quantize_cache`: KV caches of transformers in FP8."""

import functools
from collections.abc import Iterable
from typing import Any

from steelyard.errors import UnsupportedModelError, shown

_MODULE = "transformers.cache_utils"


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
    for part in ("self_attention_cache", "cross_attention_cache"):
        if hasattr(cache, part):
            quantize_cache(getattr(cache, part))
    if hasattr(cache, "layers"):
        _quantize_layers(cache)
    return cache


def quantize_caches(arguments: Iterable[Any]) -> None:
    """Quantize every cache among the arguments of a call."""
    for argument in arguments:
        if _is_cache(type(argument)):
            quantize_cache(argument)


@functools.lru_cache(maxsize=256)
def _is_cache(value_class: type) -> bool:
    known = ("DynamicCache", "StaticCache", "EncoderDecoderCache")
    return any(base.__module__ == _MODULE and base.__name__ in known for base in value_class.__mro__)


def _quantize_layers(cache: Any) -> None:
    # transformers is needed by those who have a cache of it, and by nobody else.
    from steelyard.tensor.cache_layers import QUANTIZED

    for number, layer in enumerate(cache.layers):
        if type(layer) in QUANTIZED:
            cache.layers[number] = QUANTIZED[type(layer)].from_plain(layer)
    if cache.layer_class_to_replicate in QUANTIZED:
        cache.layer_class_to_replicate = QUANTIZED[cache.layer_class_to_replicate]
