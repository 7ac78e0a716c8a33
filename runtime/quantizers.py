"""What users bring along: their own quantizers, and their own choices of an amax from its history."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from steelyard.ir.kernel_calls import UpdateScaleCall
from steelyard.recipes import AMAX_ALGORITHM

AmaxAlgorithm = Callable[[torch.Tensor], torch.Tensor]


class Quantizers(Protocol):
    """The user's own quantizers by layer and role, and the algorithms that pick amaxes."""

    def __getitem__(self, key: tuple[str, str], /) -> Any: ...


def own_algorithm(call: UpdateScaleCall, quantizers: Quantizers) -> AmaxAlgorithm | None:
    """The user's own choice of an amax; None where a built-in one picks it."""
    return quantizers[call.layer, AMAX_ALGORITHM] if call.algorithm == "custom" else None
