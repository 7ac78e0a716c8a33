"""Steelyard: PyTorch models whose matrix multiplications run in FP8, MXFP8 and NVFP4.

Importing this package imports neither torch nor torch_mlir: each name is loaded when it is first used.
"""

from importlib import import_module
from importlib.metadata import version as _distribution_version
from typing import TYPE_CHECKING

from steelyard import forks as forks
from steelyard.errors import FileError

if TYPE_CHECKING:
    from steelyard.checkpoints.loading import load as load
    from steelyard.checkpoints.saving import save as save
    from steelyard.driver.comparing import compare as compare
    from steelyard.driver.net import compile as compile
    from steelyard.driver.saving import plain_state_dict as plain_state_dict
    from steelyard.insight.watching import Alarm as Alarm
    from steelyard.insight.watching import Watch as Watch
    from steelyard.tensor.kv_cache import quantize_cache as quantize_cache
    from steelyard.tuning.distill import distill as distill
    from steelyard.tuning.tune import tune as tune

__version__ = _distribution_version("steelyard")

_LAZY = {
    "compare": "steelyard.driver.comparing",
    "compile": "steelyard.driver.net",
    "load": "steelyard.checkpoints.loading",
    "save": "steelyard.checkpoints.saving",
    "plain_state_dict": "steelyard.driver.saving",
    "Alarm": "steelyard.insight.watching",
    "Watch": "steelyard.insight.watching",
    "quantize_cache": "steelyard.tensor.kv_cache",
    "tune": "steelyard.tuning.tune",
    "distill": "steelyard.tuning.distill",
}


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'steelyard' has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except OSError as error:
        if error.errno is None:
            # A library that cannot be loaded says what it misses.
            raise
        # torch makes the folder when its compiler is first imported.
        remedy = "set TORCHINDUCTOR_CACHE_DIR to a folder that can be written"
        raise FileError(f"torch cannot make its cache folder: {error}; {remedy}") from error
