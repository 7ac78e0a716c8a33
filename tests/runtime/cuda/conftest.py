import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "e2e"))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The mock of the driver: one per process, because cuda-bindings keeps the first that it finds."""
    import mock_driver

    return mock_driver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(autouse=True)
def _fresh_memory():
    """Unwritten memory holds bytes that no program computes, not those of an earlier result."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
