import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "e2e"))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The mock of the driver: one a process, because cuda-bindings keeps the first that it finds."""
    import mock_driver

    return mock_driver.build(tmp_path_factory.mktemp("driver"))
