"""The GPUs that code is generated for."""

import re
from dataclasses import dataclass, replace

from steelyard.errors import TargetError

Version = tuple[int, int]
_SUFFIX = re.compile(r"(?P<name>[^+]*)\+cublaslt(?P<major>[1-9]\d?)\.(?P<minor>\d{1,2})")


@dataclass(frozen=True)
class Target:
    """An architecture by its PTX name, with the oldest PTX version that has what its kernels use."""

    name: str
    capability: Version
    """The compute capability that its GPUs report."""
    ptx_version: Version
    has_block_formats: bool
    """Whether it converts E2M1 and E8M0 in hardware. Every target converts E4M3 and E5M2."""
    cublaslt: Version | None = None
    """The version of the library that multiplies; None for one that has every product its GPUs are known to run."""

    @property
    def spelling(self) -> str:
        """Its name and, if it matters, the version of its library: `sm_90a+cublaslt12.6`."""
        return self.name if self.cublaslt is None else "{}+cublaslt{}.{}".format(self.name, *self.cublaslt)

    def lacks(self, version: Version) -> bool:
        """Whether its library is older than a version."""
        return self.cublaslt is not None and self.cublaslt < version


TARGETS = {
    target.name: target
    for target in (
        Target("sm_89", (8, 9), (8, 1), False),
        Target("sm_90a", (9, 0), (8, 1), False),
        Target("sm_100a", (10, 0), (8, 6), True),
        Target("sm_103a", (10, 3), (8, 8), True),
        Target("sm_120a", (12, 0), (8, 7), True),
        Target("sm_121a", (12, 1), (8, 8), True),
    )
}


def target_of(spelling: str) -> Target:
    """The target that is spelled like this."""
    with_library = _SUFFIX.fullmatch(spelling)
    name = with_library["name"] if with_library else spelling
    if name not in TARGETS:
        raise TargetError(f"a CUDA target must be one of {', '.join(TARGETS)}, got {spelling!r}")
    if with_library is None:
        return TARGETS[name]
    return replace(TARGETS[name], cublaslt=(int(with_library["major"]), int(with_library["minor"])))
