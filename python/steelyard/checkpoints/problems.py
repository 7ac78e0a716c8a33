"""What is wrong with a checkpoint: raised at once, or collected for a reader who wants to see all of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from steelyard.errors import CheckpointError, FileError


class Problem(NamedTuple):
    """One thing that is wrong."""

    place: str
    """The layer or the file."""
    text: str


class Problems:
    """Raises each problem, or collects them."""

    def __init__(self, *, is_collecting: bool = False):
        self.is_collecting = is_collecting
        self.found: list[Problem] = []

    @contextmanager
    def checking(self, place: str) -> Iterator[None]:
        """What is wrong with a place is found within; where problems are collected, the rest of the block is left."""
        try:
            yield
        except (CheckpointError, FileError) as error:
            if not self.is_collecting:
                raise
            self.found.append(Problem(place, " ".join(str(error).split())))
