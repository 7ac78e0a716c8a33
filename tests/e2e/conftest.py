import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from gemm_calls import read_call

import steelyard
from steelyard import recipes

# These recipes take the way of others through the compiler, with kernels that are tested by themselves.
ALIKE = {"fp8-row", "mxfp4", "nvfp4-4over6"}
# Whole models take seconds to compile; smaller ones run by every recipe.
WHOLE_MODELS = {"bert", "gpt2", "llama", "vit"}
BY_WHOLE_MODELS = {"mxfp8", "nvfp4"}
# What runs by every recipe each time, and not only among the slow tests.
BY_ALL = {"test_compile_models.py", "test_training_gradients.py", "test_quantized_weights.py", "test_experts.py"}


def pytest_collection_modifyitems(items):
    """Leave to the slow tests what runs by recipes that are like others, and whole models by most recipes."""
    own = [item for item in items if item.path.parent == Path(__file__).parent and hasattr(item, "callspec")]
    for item in own:
        chosen = {value for value in item.callspec.params.values() if isinstance(value, str)}
        of_whole_model = bool(chosen & WHOLE_MODELS and chosen & set(recipes.NAMES) - BY_WHOLE_MODELS)
        is_alike = "nvfp4-4over6" in chosen or (chosen & ALIKE and item.path.name not in BY_ALL)
        if is_alike or of_whole_model:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def gemm_calls(monkeypatch):
    """Every quantized GEMM that a compiled program runs: its operands, options and result."""
    from steelyard.ir.kernel_calls import GemmCall
    from steelyard.runtime.cpu import bound

    calls = []

    def recording(call, quantizers):
        run, allocate = original(call, quantizers)
        if not isinstance(call, GemmCall) or call.batch_dims:
            return run, allocate

        def recorded(*values):
            run(*values)
            calls.append(read_call(call, values))

        return recorded, allocate

    original = bound.bind
    # Calls on a tape are seen by no Python.
    monkeypatch.setenv("STEELYARD_TAPE", "0")
    monkeypatch.setattr(bound, "bind", recording)
    return calls


@pytest.fixture
def two_threads():
    """Run kernels of compiled programs on two threads, even if the worker has fewer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def quantized_shapes(monkeypatch):
    """The shape of every tensor that a compiled program quantizes, weights included."""
    from steelyard.ir.kernel_calls import QuantizeCall
    from steelyard.runtime.cpu import bound

    shapes = []

    def recording(call, quantizers):
        run, allocate = original(call, quantizers)
        if not isinstance(call, QuantizeCall):
            return run, allocate

        def recorded(*values):
            shapes.append(tuple(values[0].shape))
            run(*values)

        return recorded, allocate

    original = bound.bind
    # Calls on a tape are seen by no Python.
    monkeypatch.setenv("STEELYARD_TAPE", "0")
    monkeypatch.setattr(bound, "bind", recording)
    return shapes


@pytest.fixture(autouse=True)
def _fresh_capture():
    """torch keeps compiled code, and which sizes change, per code object, and models of several tests share one."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def without_tapes(monkeypatch):
    """Compiles a model into a function whose kernels Python calls one by one."""

    def compile_without(*arguments, **keywords):
        net = steelyard.compile(*arguments, **keywords)

        def call(*given, **named):
            with monkeypatch.context() as patch:
                patch.setenv("STEELYARD_TAPE", "0")
                return net(*given, **named)

        return call

    return compile_without
