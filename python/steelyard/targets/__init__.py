"""What programs are compiled for: the CPU, or a CUDA architecture such as `cuda:sm_100a`."""

from steelyard.errors import TargetError, shown
from steelyard.targets.architectures import TARGETS as _ARCHITECTURES
from steelyard.targets.architectures import Target

CPU = "cpu"
_CUDA = "cuda:"
TARGETS = (CPU, *(_CUDA + name for name in _ARCHITECTURES))
"""Every target that passes accept."""
CUDA = "cuda"
"""The architecture of the GPU that a net first runs on."""


def check_target(target: str) -> None:
    """Refuse an unknown target."""
    known = (CPU, CUDA, *TARGETS[1:])
    if not isinstance(target, str) or target not in known:
        raise TargetError(f"target must be one of {', '.join(known)}, got {shown(target)}")


def cuda_target(target: str) -> Target | None:
    """The CUDA architecture that a target names; None for the CPU."""
    return _ARCHITECTURES[target.removeprefix(_CUDA)] if target.startswith(_CUDA) else None
