"""Set-up for all tests."""

import gc
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# The time of an example depends on the load of the machine, not on whether the code is right.
settings.register_profile("steelyard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steelyard")

# The workers of one run, and the processes they start, share the cores: more threads per worker would only wait for
# each other. Tests of threads set their own number.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _WORKERS > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _WORKERS)))
# A garbage collection after each compilation takes a sixth of the time of a small test.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")
# Tests are of the compiler, and leave the user's cache alone. Tests of the cache choose a folder of their own.
os.environ["STEELYARD_CACHE"] = "off"


def pytest_addoption(parser):
    parser.addoption("--fewest-blocks", type=int, help="cut nets into blocks from so many on that are alike")


def pytest_configure(config):
    fewest = config.getoption("--fewest-blocks")
    if fewest is not None:
        from steelyard.driver import blocks

        blocks.FEWEST = fewest


@pytest.hookimpl(tryfirst=True)  # Before pytest reads `-m`.
def pytest_collection_modifyitems(items):
    """Of the cases of a test marked `every(n)`, all but each n-th are slow."""
    counts = Counter()
    for item in items:
        marker = item.get_closest_marker("every")
        if marker is None:
            continue
        test = item.nodeid.partition("[")[0]
        if counts[test] % marker.args[0]:
            item.add_marker(pytest.mark.slow)
        counts[test] += 1


@pytest.fixture
def fresh_accelerate():
    """accelerate keeps the settings of a process's first Accelerator, which may be one of another test."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def pytest_collection_finish():
    """Take away what costs time and tests nothing."""
    # Imported late: torch reads the environment.
    import torch._dynamo.guards

    # After each compilation torch measures the time of its guards, only for its log, and empties caches to do so.
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    # Modules and tests live until the end: collections need not look at them.
    gc.collect()
    gc.freeze()


@pytest.fixture
def with_tapes(monkeypatch):
    """Programs run on tapes, whatever the environment says."""
    monkeypatch.delenv("STEELYARD_TAPE", raising=False)


@pytest.fixture
def whole_nets(monkeypatch):
    """Nets of few blocks are compiled as a whole, whatever the option says."""
    monkeypatch.setattr("steelyard.driver.blocks.FEWEST", 4)
