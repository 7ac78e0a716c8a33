"""Calls of blocks: the function that torch captures, and the layer of a cache that a block gets.

A block finds its keys and values in a cache of the whole model by its number. torch would compile a block again for
each number, so a block gets a cache that has no other layers, and does not look at the number.
"""

import functools
from typing import Any

import torch

from steelyard.driver.code_names import names_in

_CACHES = ("DynamicCache", "StaticCache")
_MODULE = "transformers.cache_utils"
_NUMBER = "layer_idx"


def call_block(block: torch.nn.Module, *arguments, **keywords) -> Any:
    """Call a block; torch captures this."""
    return block(*arguments, **keywords)


class OneLayer:
    """A block's own layer of a cache of transformers, whatever its number."""

    def __init__(self, layer: Any):
        self.layer = layer

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *arguments, **keywords) -> Any:
        """Append keys and values; returns all of them."""
        return self.layer.update(key_states, value_states, *arguments, **keywords)


_KNOWN = frozenset(name for name in vars(OneLayer) if not name.startswith("_"))


class OwnCache:
    """Knows which layer of a cache is a block's own."""

    def __init__(self, block: torch.nn.Module):
        self._block = block
        self._numbered = _numbered(block)
        self._suffices: dict[type, bool] = {}
        """Whether one layer is all that the block needs of a class of caches."""

    def put_into(self, arguments: tuple, keywords: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments of a call: of a cache only the block's own layer, if it asks for nothing else."""
        if any(map(_is_cache, map(type, arguments))):
            arguments = tuple(self._own_layer(value) if _is_cache(type(value)) else value for value in arguments)
        for name, value in keywords.items():
            if _is_cache(type(value)):
                keywords[name] = self._own_layer(value)
        return arguments, keywords

    def _own_layer(self, cache: Any) -> Any:
        kind = type(cache)
        if self._numbered is None or cache.offloading:
            return cache
        if kind not in self._suffices:
            self._suffices[kind] = _needs_one_layer(self._block, kind)
        if not self._suffices[kind]:
            return cache
        number = getattr(self._numbered, _NUMBER)
        if cache.layer_class_to_replicate is not None:
            while len(cache.layers) <= number:
                cache.layers.append(cache.layer_class_to_replicate())
        return OneLayer(cache.layers[number]) if number < len(cache.layers) else cache


@functools.lru_cache(maxsize=256)
def _is_cache(value_class: type) -> bool:
    return value_class.__module__ == _MODULE and value_class.__name__ in _CACHES


def _numbered(block: torch.nn.Module) -> torch.nn.Module | None:
    """The one module in a block that has a number."""
    found = [module for module in block.modules() if isinstance(module.__dict__.get(_NUMBER), int)]
    return found[0] if found and len({getattr(module, _NUMBER) for module in found}) == 1 else None


@functools.lru_cache(maxsize=256)
def _attributes(cache_class: type) -> frozenset[str]:
    return frozenset({"layers", *(name for name in dir(cache_class) if not name.startswith("_"))})


def _needs_one_layer(block: torch.nn.Module, cache_class: type) -> bool:
    """Whether no code of a block mentions anything of a cache that one layer lacks."""
    mentioned: set[str] = set()
    for module in block.modules():
        # `self.is_sliding` is the module's own.
        mentioned |= (names_in(module) & _attributes(cache_class)) - module.__dict__.keys()
    return mentioned <= _KNOWN
