"""Answers about types and attributes that are remembered, until another context is made.

Types and attributes keep their context alive, and with it a few MiB. So what is remembered of them is forgotten as a
whole: a process holds on to the context that it made last, however many it makes.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MOST = 16384

_clear: list[Callable[[], None]] = []


def remembered(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function whose results are remembered."""
    memory = lru_cache(maxsize=_MOST)(function)
    _clear.append(memory.cache_clear)
    return memory  # pyright: ignore[reportReturnType]


def remembered_set() -> set[tuple[object, ...]]:
    """A set whose elements are forgotten with the rest."""
    elements: set[tuple[object, ...]] = set()
    _clear.append(elements.clear)
    return elements


def forget() -> None:
    """Let go of every context."""
    for clear in _clear:
        clear()
