import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from steelyard.runtime import cpu


@pytest.fixture(params=cpu.instruction_sets())
def isa(request):
    """Run with the kernels of each instruction set that this machine has."""
    cpu.set_isa(request.param)
    yield request.param
    cpu.set_isa(None)


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
