import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def gemm_calls(monkeypatch):
    """Every quantized GEMM that a compiled program runs: its operands, options and result."""
    from steelyard.runtime import steps

    calls = []
    run = steps.cpu.qgemm

    def recorded(a, b, **options):
        result = run(a, b, **options)
        calls.append((a, b, options, result))
        return result

    monkeypatch.setattr(steps.cpu, "qgemm", recorded)
    return calls


@pytest.fixture
def quantized_shapes(monkeypatch):
    """The shape of every tensor that a compiled program quantizes, weights included."""
    from steelyard.runtime import steps

    shapes = []
    run = steps.cpu.quantize

    def recorded(x, *schemes, **options):
        shapes.append(tuple(x.shape))
        return run(x, *schemes, **options)

    monkeypatch.setattr(steps.cpu, "quantize", recorded)
    return shapes


@pytest.fixture(autouse=True)
def _fresh_capture():
    """torch keeps compiled code by the code object, which models of several tests share."""
    yield
    torch._dynamo.reset()
