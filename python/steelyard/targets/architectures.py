"""The GPUs that code is generated for."""

from dataclasses import dataclass

from steelyard.errors import TargetError


@dataclass(frozen=True)
class Target:
    """An architecture by its PTX name, with the oldest PTX version that has what its kernels use."""

    name: str
    ptx_version: tuple[int, int]
    has_block_formats: bool
    """Whether it converts E2M1 and E8M0 in hardware. Every target converts E4M3 and E5M2."""


TARGETS = {
    target.name: target
    for target in (
        Target("sm_89", (8, 1), False),
        Target("sm_90a", (8, 1), False),
        Target("sm_100a", (8, 6), True),
        Target("sm_120a", (8, 7), True),
    )
}


def target_of(name: str) -> Target:
    """The target with this name."""
    if name not in TARGETS:
        raise TargetError(f"a CUDA target must be one of {', '.join(TARGETS)}, got {name!r}")
    return TARGETS[name]
