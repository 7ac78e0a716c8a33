"""Calls of blocks: the function that torch captures, and the layer of a cache that a block gets.

A block finds its keys and values in a cache of the whole model by its number. torch would compile a block again for each
number, so a block gets a cache that has no other layers, and does not look at the number.
"""

import functools
from typing import Any

import torch

from steelyard.driver.blocks import names_in

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


def with_own_cache(block: torch.nn.Module, value: Any) -> Any:
    """An argument of a block: of a cache only its own layer, if it asks for nothing else."""
    if not _is_cache(type(value)) or value.offloading:
        return value
    numbered = _numbered(block)
    if numbered is None or not _needs_one_layer(block, type(value)):
        return value
    number = getattr(numbered, _NUMBER)
    if value.layer_class_to_replicate is not None:
        while len(value.layers) <= number:
            value.layers.append(value.layer_class_to_replicate())
    return OneLayer(value.layers[number]) if number < len(value.layers) else value


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
