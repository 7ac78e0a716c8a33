"""`steelyard::call_block`: a block of layers as one op of a graph that was recorded around blocks.

It has an overload for each count of results, and only stands in graphs: `scaled-lower-blocks` makes a kernel's call of
it.
"""

from typing import Any

import torch

from steelyard.forks import make_lock

_library = torch.library.Library("steelyard", "FRAGMENT")
_lock = make_lock()
_defined: set[int] = set()


def call_block(results: int) -> Any:
    """The overload with so many results."""
    with _lock:
        if results not in _defined:
            made = ", ".join(["Tensor"] * results)
            _library.define(f"call_block.r{results}(int number, Tensor[] arguments) -> ({made})")
            _defined.add(results)
    return getattr(torch.ops.steelyard.call_block, f"r{results}")
