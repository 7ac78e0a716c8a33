"""The libraries that torch multiplies by: the version of cuBLASLt, and whether it was built with MSLK."""

import ctypes
from functools import cache

import torch

from steelyard.targets.architectures import Version


@cache
def cublaslt_version() -> Version | None:
    """The older of the version that torch was built for and the one that is loaded; None if torch has no CUDA.

    torch asks for both: it was compiled without what the first one lacks, and calls the second one.
    """
    if torch.version.cuda is None:
        return None
    built = _read(torch.version.cuda)
    return min(built, _loaded_version(built[0]) or built)


@cache
def has_mslk() -> bool:
    """Whether torch was built with MSLK, as torch's own tests tell; a torch without CUDA is not asked."""
    return torch.version.cuda is None or "USE_MSLK" in torch.__config__.show()


def _read(text: str) -> Version:
    major, minor, *_ = text.split(".")
    return int(major), int(minor)


def _loaded_version(major: int) -> Version | None:
    """What the library says of itself; None if it cannot be asked. torch has loaded it under this name."""
    try:
        get_version = ctypes.CDLL(f"libcublasLt.so.{major}").cublasLtGetVersion
    except (OSError, AttributeError):
        return None
    get_version.restype = ctypes.c_size_t
    number = get_version()  # 120902: 12.9.2
    return number // 10000, number // 100 % 100
