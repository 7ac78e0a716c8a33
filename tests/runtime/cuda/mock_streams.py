"""Streams of mock GPUs: what they are given runs when a schedule says so, or when something waits for it."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mock_autograd import Backwards
from mock_schedules import Schedule


@dataclass(frozen=True)
class Event:
    """When a stream has done what it was given so far."""

    stream: "Stream"
    position: int

    def synchronize(self) -> None:
        self.stream.run_until(self.position)


class Graph:
    """A CUDA graph: work that a stream was given while it was captured, which replays give it again."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def replay(self, stream: "Stream") -> None:
        for work in self.work:
            stream.add(work)


class Stream:
    """Work of one device, in order. It has the methods of torch's streams that host code calls."""

    def __init__(self, handle: int, device: int = 0):
        self.cuda_stream, self.device = handle, device
        self.graph: Graph | None = None
        """What its work becomes part of, while it is captured."""
        self._work: deque[Callable[[], None]] = deque()
        self._done = 0

    @property
    def pending(self) -> int:
        """How much of its work is not done."""
        return len(self._work)

    def add(self, work: Callable[[], None]) -> None:
        (self._work if self.graph is None else self.graph.work).append(work)

    def add_outside(self, work: Callable[[], None]) -> None:
        """Give it work that is part of no graph."""
        self._work.append(work)

    def record_event(self) -> Event:
        self._refuse_capture()
        return Event(self, self._done + len(self._work))

    def wait_event(self, event: Event) -> None:
        self._refuse_capture()
        self.add(event.synchronize)

    def _refuse_capture(self) -> None:
        # A driver allows events of the same capture, of which host code has none.
        if self.graph is not None:
            raise RuntimeError("a stream that is captured can neither be waited for, nor wait for others")

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def run_until(self, position: int) -> None:
        while self._done < position:
            self.step()

    def step(self) -> None:
        """Do what comes next."""
        self._done += 1
        self._work.popleft()()


class Streams:
    """The streams of all devices, by handle; which device and which stream of each is current, for each thread."""

    def __init__(self, devices: int = 1, schedule: Schedule | None = None) -> None:
        self._streams: list[Stream] = []
        self._schedule = Schedule() if schedule is None else schedule
        self._defaults = [self.make(device) for device in range(devices)]
        self._own = threading.local()
        self.hand_over: Callable[[Stream, Stream], None] = lambda source, target: None
        """Told which stream's gradients autograd passes to which other."""
        self._backwards = Backwards(lambda source, target: self.hand_over(source, target))
        self._capturing: set[Stream] = set()

    def make(self, device: int | None = None) -> Stream:
        """A new stream, of the current device if none is named."""
        device = self.device if device is None else device
        self._streams.append(Stream(0x5EED + len(self._streams), device))
        return self._streams[-1]

    def find(self, handle: int) -> Stream:
        return next(stream for stream in self._streams if stream.cuda_stream == handle)

    @property
    def device(self) -> int:
        """The current device."""
        return getattr(self._own, "device", 0)

    @property
    def current(self) -> Stream:
        """The current stream of the current device."""
        return self.current_on(self.device)

    def current_on(self, device: int) -> Stream:
        """The current stream of a device; in a backward, that of the forward."""
        default = self._defaults[device]
        return self._backwards.stream_of(device, getattr(self._own, "chosen", {}).get(device, default), default)

    @property
    def is_capturing(self) -> bool:
        """Whether the current stream's work becomes part of a CUDA graph, or is said to."""
        return self.current.graph is not None or self.current in self._capturing

    @is_capturing.setter
    def is_capturing(self, value: bool) -> None:
        (self._capturing.add if value else self._capturing.discard)(self.current)

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        """Within this context, the stream and its device are current."""
        before = getattr(self._own, "chosen", {})
        self._choose(before | {stream.device: stream})
        try:
            with self.use_device(stream.device):
                yield
        finally:
            self._choose(before)

    def _choose(self, chosen: dict[int, Stream]) -> None:
        self._own.chosen = chosen
        self._backwards.note(chosen)

    @contextmanager
    def use_device(self, device: int) -> Iterator[None]:
        """Within this context, the device is current."""
        before, self._own.device = self.device, device
        try:
            yield
        finally:
            self._own.device = before

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Within this context, what the current stream is given becomes a graph, and does not run."""
        self.synchronize()
        stream, graph = self.current, Graph()
        stream.graph = graph
        try:
            yield graph
        finally:
            stream.graph = None

    def progress(self) -> None:
        """Do as much as the schedule wants done by now."""
        self._schedule.progress(self._streams)

    def free(self, stream: Stream) -> None:
        """Tell the schedule that the last work of a stream overwrites memory that was freed."""
        self._schedule.free(stream)

    def synchronize(self) -> None:
        for stream in self._streams:
            stream.synchronize()
