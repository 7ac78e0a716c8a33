"""What the ranks of a distributed run agree on."""

import torch
from torch import distributed


def largest_of_ranks(amax: torch.Tensor) -> torch.Tensor:
    """The largest amax of all ranks, where there are any."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return amax
    amax = amax.clone()
    distributed.all_reduce(amax, distributed.ReduceOp.MAX)
    return amax


def largest_amaxes(amaxes: list[float]) -> list[float]:
    """The same of the amaxes of some tensors, as numbers."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return amaxes
    return largest_of_ranks(torch.tensor(amaxes, dtype=torch.float32)).tolist()
