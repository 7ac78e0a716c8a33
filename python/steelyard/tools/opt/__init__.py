"""`steelyard-opt`: runs passes over MLIR text, as `mlir-opt` does.

The process that the user starts reads and checks the input; a child does the work, so that nothing MLIR does with a
text can take more than the child down.
"""

from steelyard.tools.opt.entry import main

__all__ = ["main"]
