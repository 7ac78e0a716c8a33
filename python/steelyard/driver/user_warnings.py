"""Warnings that show the line of the user's code that called a net."""

import sys
import warnings
from pathlib import Path

import torch

from steelyard.errors import SteelyardWarning

_NOT_THE_USERS = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


def warn(message: str) -> None:
    """Warn at the innermost line that is neither ours nor torch's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, SteelyardWarning, stacklevel=level)
