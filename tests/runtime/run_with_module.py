"""Runs pytest with the native module of another build: run_with_module.py BUILD_DIRECTORY [pytest arguments]."""

import importlib.util
import sys
from pathlib import Path

import pytest


def load_module(directory: str) -> None:
    """Make `steelyard.runtime._cpu` the one built in `directory`."""
    name = "steelyard.runtime._cpu"
    (path,) = Path(directory).glob("_cpu*.so")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    import steelyard.runtime

    steelyard.runtime._cpu = module


if __name__ == "__main__":
    load_module(sys.argv[1])
    sys.exit(pytest.main(sys.argv[2:]))
