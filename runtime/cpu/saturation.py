"""How many values are too large for a static scale, on the CPU."""

import numpy as np
import torch

from steelyard.errors import ConstraintError, require
from steelyard.formats.schemes import Scheme
from steelyard.reference.scales import static_encode_factor
from steelyard.runtime.cpu import quantization
from steelyard.runtime.cpu.arguments import check_tensor, floats_of


def count_saturated(x: torch.Tensor, scale: torch.Tensor, scheme: Scheme) -> int:
    """How many values of `x` a static scheme saturates; NaN is none of them."""
    check_tensor(x, "x")
    if not scheme.is_static:
        raise ConstraintError("count_saturated_scheme", f"the scheme must have a static scale, got {scheme}")
    given = floats_of(scale, "scale", "count_saturated_scale")
    require(given.numel() == 1, "count_saturated_scale", f"scale must be one value, got {given.numel()}")
    factor = static_encode_factor(given.detach().numpy().reshape(()), scheme)
    with np.errstate(over="ignore", invalid="ignore"):
        # Rounding is monotonic: where the largest magnitude stays in range, all do, and nothing needs to be counted.
        largest = np.float32(quantization.amax(x).item()) * factor
    limit = scheme.largest_encoded
    if largest <= limit:
        return 0
    return int(((x.float() * torch.tensor(factor)).abs() > limit).sum())
