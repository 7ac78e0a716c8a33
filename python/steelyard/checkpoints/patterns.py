"""Names of modules, matched by the patterns of a config, which may come from anybody."""

import re
import time
from collections.abc import Iterable
from fnmatch import translate
from typing import Any

import regex

from steelyard.errors import CheckpointError, shown

REGULAR = "re:"
"""What a regular expression begins with among names."""
_SECONDS = 1.0
"""How long one match may take: a pattern can be made to take years."""
_SECONDS_IN_ALL = 20.0
"""How long all matches of one list of patterns may take."""
_LONGEST = 1000
"""Letters of a pattern."""


def read_names(given: Any, key: str) -> list[str]:
    """The names or patterns that a config has under a key; none if it has no such key."""
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise CheckpointError(f"{key} in config.json must be a list of names, got {shown(given)}")
    return given


def folded(layer: str) -> str:
    """The pattern of layers that differ from one only in numbers."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", layer)


class Names:
    """Names as they are, and regular expressions, which begin with `re:` and match the start of a name."""

    def __init__(self, given: Iterable[str], key: str):
        given = list(dict.fromkeys(given))
        self._exact = {name for name in given if not name.startswith(REGULAR)}
        self._regular = _Patterns({name: name.removeprefix(REGULAR) for name in given if name.startswith(REGULAR)}, key)

    def find(self, name: str) -> str | None:
        """The one that matches a name: the name itself, or else the first pattern."""
        return name if name in self._exact else self._regular.find([name])


class Globs:
    """Names with `*`, which match a module and what is within it."""

    def __init__(self, given: Iterable[str], key: str):
        given = list(dict.fromkeys(given))
        self._exact = {name for name in given if not re.search(r"[*?\[]", name)}
        self._globs = _Patterns({name: translate(name) for name in given if name not in self._exact}, key)

    def find(self, name: str) -> str | None:
        """The one that matches a name."""
        parts = name.split(".")
        around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        return next((each for each in around if each in self._exact), None) or self._globs.find(around)


class _Patterns:
    """Regular expressions that have a limited time."""

    def __init__(self, given: dict[str, str], key: str):
        self._key, self._rest = key, _SECONDS_IN_ALL
        self._compiled = {name: self._compile(name, pattern) for name, pattern in given.items()}

    def _compile(self, name: str, pattern: str) -> regex.Pattern[str]:
        if len(name) > _LONGEST:
            raise CheckpointError(f"a pattern of {self._key} in config.json must have at most {_LONGEST} letters")
        try:
            return regex.compile(pattern)
        except (regex.error, RecursionError, OverflowError, ValueError, MemoryError) as error:
            wanted = "must be a regular expression"
            raise CheckpointError(f"{shown(name)} of {self._key} in config.json {wanted}: {error}") from error

    def find(self, names: list[str]) -> str | None:
        """The first pattern that matches one of the names."""
        for given, pattern in self._compiled.items():
            begin = time.monotonic()
            try:
                if any(pattern.match(name, timeout=_SECONDS) for name in names):
                    return given
            except TimeoutError as error:
                raise self._too_slow() from error
            self._rest -= time.monotonic() - begin
            if self._rest <= 0:
                raise self._too_slow()
        return None

    def _too_slow(self) -> CheckpointError:
        return CheckpointError(f"the patterns of {self._key} in config.json take too long to match; simplify them")
