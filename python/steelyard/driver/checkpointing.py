"""Checkpoints in the code around blocks: torch calls what is in them again in the backward.

In a graph, the partitioner computes again what a checkpoint drops, and moves no state. But a block that Python calls in
a checkpoint would run its program twice: state would move twice, and the second run would read what the first one left.
So a model is captured as a whole where the code around its blocks makes checkpoints.
"""

import inspect
import sys
from types import CodeType
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from steelyard.driver.code_names import names_in
from steelyard.driver.forward import runs_as_python

_MAKERS = frozenset(["checkpoint", "checkpoint_sequential", "_gradient_checkpointing_func"])
_CHECKPOINT = inspect.unwrap(checkpoint).__code__


class Switch(NamedTuple):
    """An attribute by which a module makes checkpoints or not."""

    module: torch.nn.Module
    name: str

    def is_on(self) -> bool:
        """Whether the module makes checkpoints now."""
        return bool(getattr(self.module, self.name, True))


def makes_checkpoints(module: torch.nn.Module) -> bool:
    """Whether the forward of a module may make checkpoints."""
    return bool(names_in(module) & _MAKERS)


def switches(module: torch.nn.Module) -> list[Switch]:
    """What seems to decide whether a module makes checkpoints, such as `gradient_checkpointing`."""
    names = sorted(name for name in names_in(module) if "checkpoint" in name)
    return [Switch(module, name) for name in names if isinstance(module.__dict__.get(name), bool)]


@runs_as_python
def is_in_checkpoint(within: CodeType) -> bool:
    """Whether this is called in a checkpoint that was made by what the function with some code calls."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not within:
        if frame.f_code is _CHECKPOINT:
            return True
        frame = frame.f_back
    return False
