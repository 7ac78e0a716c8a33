"""Where in the user's text a place of the translated text came from."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

Chunk = tuple[str, int, bool]
"""A piece of translated text, the position that it comes from, and whether it is a copy of what stands there."""


class Positions:
    """Maps lines and columns of a translated text to the user's. Both count from 1, and columns count bytes."""

    def __init__(self, source: str, chunks: Sequence[Chunk]):
        self._source = source
        self._chunks = chunks

    def to_source(self, line: int, column: int) -> tuple[int, int]:
        """The user's line and column of a place in the translated text."""
        starts = self._translated_line_starts
        if not 0 < line <= len(starts) or not self._chunks:
            return line, column
        offset = starts[line - 1]
        offset += len(self._translated[offset : offset + column].encode()[: max(column - 1, 0)].decode(errors="ignore"))
        index = max(bisect_right(self._chunk_starts, offset) - 1, 0)
        _, origin, is_copy = self._chunks[index]
        return self.place(origin + offset - self._chunk_starts[index] if is_copy else origin)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset of the user's text."""
        starts = self._source_line_starts
        line = bisect_right(starts, offset)
        return line, len(self._source[starts[line - 1] : offset].encode()) + 1

    @cached_property
    def _translated(self) -> str:
        return "".join(text for text, _, _ in self._chunks)

    @cached_property
    def _chunk_starts(self) -> list[int]:
        return list(accumulate((len(text) for text, _, _ in self._chunks[:-1]), initial=0))

    @cached_property
    def _translated_line_starts(self) -> list[int]:
        return _line_starts(self._translated)

    @cached_property
    def _source_line_starts(self) -> list[int]:
        return _line_starts(self._source)


def _line_starts(text: str) -> list[int]:
    return list(accumulate((len(line) + 1 for line in text.split("\n")[:-1]), initial=0))
