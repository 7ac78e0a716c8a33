"""When the streams of mock GPUs do their work, within what their order and their events allow."""

import random
from collections.abc import Sequence
from typing import Protocol


class _Stream(Protocol):
    @property
    def pending(self) -> int: ...
    def step(self) -> None: ...


class Schedule:
    """As late as possible: streams do nothing until something waits for them."""

    name = "late"

    def progress(self, streams: Sequence[_Stream]) -> None:
        """The host has come to a point where streams may go on."""

    def free(self, stream: _Stream) -> None:
        """Memory was freed; what the stream was given last overwrites it."""


class FreesFirst(Schedule):
    """A stream hurries to overwrite memory that was freed; else all take their time."""

    name = "frees-first"

    def free(self, stream: _Stream) -> None:
        _finish(stream)


class Seeded(Schedule):
    """Streams go on by chance: each has a pace of its own, so that some run far ahead of others."""

    _PACES = (0.0, 0.02, 0.3, 1.0)

    def __init__(self, seed: int):
        self.name = f"seed {seed}"
        self._random = random.Random(seed)
        self._paces: dict[_Stream, float] = {}
        self._hurries = self._random.choice((0.0, 0.1, 0.6))
        """How often memory that was freed is overwritten at once."""

    def progress(self, streams: Sequence[_Stream]) -> None:
        waiting = [stream for stream in streams if stream.pending]
        self._random.shuffle(waiting)
        for stream in waiting:
            if self._random.random() < self._pace(stream):
                for _ in range(self._random.choice((1, 2, stream.pending))):
                    if stream.pending:
                        stream.step()

    def free(self, stream: _Stream) -> None:
        if self._random.random() < self._hurries:
            _finish(stream)

    def _pace(self, stream: _Stream) -> float:
        return self._paces.setdefault(stream, self._random.choice(self._PACES))


def _finish(stream: _Stream) -> None:
    while stream.pending:
        stream.step()
