"""The GPUs that code is generated for."""

import re
from dataclasses import dataclass, replace

from steelyard.errors import TargetError

Version = tuple[int, int]
_SPELLING = re.compile(r"(?P<name>[^+]*)(\+cublaslt(?P<major>[1-9]\d?)\.(?P<minor>\d{1,2}))?(?P<bare>\+nomslk)?")


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
    has_mslk: bool = True
    """Whether torch was built with MSLK, whose kernels multiply groups in MXFP8, MXFP4 and NVFP4."""

    @property
    def spelling(self) -> str:
        """Its name and, if they matter, its libraries: `sm_90a+cublaslt12.6`, `sm_100a+nomslk`."""
        library = "" if self.cublaslt is None else "+cublaslt{}.{}".format(*self.cublaslt)
        return f"{self.name}{library}{'' if self.has_mslk else '+nomslk'}"

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
    found = _SPELLING.fullmatch(spelling)
    if found is None or found["name"] not in TARGETS:
        raise TargetError(f"a CUDA target must be one of {', '.join(TARGETS)}, got {spelling!r}")
    cublaslt = None if found["major"] is None else (int(found["major"]), int(found["minor"]))
    return replace(TARGETS[found["name"]], cublaslt=cublaslt, has_mslk=found["bare"] is None)
