"""Set-up for the tests with other libraries. None of them may reach for the network."""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_capture():
    """torch keeps compiled code per code object, and models of several tests share one."""
    yield
    torch._dynamo.reset()
