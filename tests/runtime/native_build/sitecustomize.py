"""Lets every Python process take the native modules from the folder that NATIVE_BUILD names.

Python imports this file when it starts if its folder is in PYTHONPATH, in the processes that tests start too.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

_NAMES = ("steelyard.runtime._cpu", "steelyard.jax._ffi")


class _NativeBuild:
    def __init__(self, directory: Path):
        self._directory = directory

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module of the build; there must be one, because the installed one would be tested unnoticed."""
        if name not in _NAMES:
            return None
        stem = name.rpartition(".")[2]
        (file,) = self._directory.glob(f"{stem}.*.so")
        return spec_from_file_location(name, file)


# Before the finder of an editable install.
sys.meta_path.insert(0, _NativeBuild(Path(os.environ["NATIVE_BUILD"])))
