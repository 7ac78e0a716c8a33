"""Streams of a mock GPU: what they are given runs as late as their order allows, when something waits for it."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """When a stream has done what it was given so far."""

    stream: "Stream"
    position: int

    def synchronize(self) -> None:
        self.stream.run_until(self.position)


class Stream:
    """Work in order. It has the methods of torch's streams that host code calls."""

    def __init__(self, handle: int):
        self.cuda_stream = handle
        self._work: deque[Callable[[], None]] = deque()
        self._done = 0

    def add(self, work: Callable[[], None]) -> None:
        self._work.append(work)

    def record_event(self) -> Event:
        return Event(self, self._done + len(self._work))

    def wait_event(self, event: Event) -> None:
        self.add(event.synchronize)

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def run_until(self, position: int) -> None:
        while self._done < position:
            self._done += 1
            self._work.popleft()()


class Streams:
    """The streams of a GPU, by handle, and which of them is current."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self.current = self.make()
        self.is_capturing = False

    def make(self) -> Stream:
        self._streams.append(Stream(0x5EED + len(self._streams)))
        return self._streams[-1]

    def find(self, handle: int) -> Stream:
        return next(stream for stream in self._streams if stream.cuda_stream == handle)

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        """Within this context, the stream is current."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self) -> None:
        for stream in self._streams:
            stream.synchronize()
