"""Steelyard: PyTorch models whose matrix multiplications run in FP8, MXFP8 and NVFP4.

Importing this package imports neither torch nor torch_mlir: each name is loaded when it is first used.
"""

from importlib.metadata import version as _distribution_version

__version__ = _distribution_version("steelyard")
