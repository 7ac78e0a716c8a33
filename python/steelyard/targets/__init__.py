"""What programs are compiled for: the CPU, or a CUDA architecture such as `cuda:sm_100a`."""

from steelyard.errors import TargetError, shown
from steelyard.targets.architectures import TARGETS as _ARCHITECTURES
from steelyard.targets.architectures import Target, target_of

CPU = "cpu"
_CUDA = "cuda:"
TARGETS = (CPU, *(_CUDA + name for name in _ARCHITECTURES))
"""Every target that passes accept; those of CUDA may say what their libraries are: `cuda:sm_90a+cublaslt12.6`,
`cuda:sm_100a+nomslk`."""
CUDA = "cuda"
"""The architecture of the GPU that a net first runs on."""


def check_target(target: str) -> None:
    """Refuse an unknown target."""
    if not isinstance(target, str) or (target != CUDA and not is_target(target)):
        raise TargetError(f"target must be one of {', '.join((CPU, CUDA, *TARGETS[1:]))}, got {shown(target)}")


def is_target(target: str) -> bool:
    """Whether programs can be compiled for a target."""
    try:
        return target == CPU or cuda_target(target) is not None
    except TargetError:
        return False


def cuda_target(target: str) -> Target | None:
    """The CUDA architecture that a target names; None for the CPU."""
    return target_of(target.removeprefix(_CUDA)) if target.startswith(_CUDA) else None


def spelled(target: Target) -> str:
    """A CUDA architecture as passes and users spell it."""
    return _CUDA + target.spelling
