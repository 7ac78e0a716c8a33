"""Parameters whose memory is rewritten without a version count: FSDP2 gathers them before each use."""

from collections.abc import Callable

import torch
import torch.distributed


def is_gathered(find_root: Callable[[], torch.nn.Module | None], parameter: torch.Tensor) -> bool:
    """Whether `fully_shard` manages a parameter: it frees the memory and fills it again without a new version."""
    root = find_root()
    if root is None or not torch.distributed.is_available():
        return False
    from torch.distributed.fsdp import FSDPModule

    managed = (module for module in root.modules() if isinstance(module, FSDPModule))
    return any(parameter is other for module in managed for other in module.parameters())
