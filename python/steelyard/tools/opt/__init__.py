"""`steelyard-opt`: runs passes over MLIR text, as `mlir-opt` does.

The process that the user starts reads and checks the input. A child process does the work, so that a crash in MLIR ends
only the child.
"""

from steelyard.tools.opt.entry import main

__all__ = ["main"]
