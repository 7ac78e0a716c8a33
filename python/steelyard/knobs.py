"""Every environment variable that this package reads, with its default. No other module reads `os.environ`."""

import os
from pathlib import Path


def isa() -> str | None:
    """`STEELYARD_ISA`: the instruction set of the CPU kernels, `baseline`, `avx2`, `avx512`, `avx512_vnni` or
    `avx512_bf16`.

    The default is the widest that the machine supports.
    """
    return os.environ.get("STEELYARD_ISA") or None


def cache() -> str:
    """`STEELYARD_CACHE`: the folder of the disk cache; `off` or `0` for none.

    The default, `on` or `1`, is `steelyard` in `XDG_CACHE_HOME`, or in `~/.cache`.
    """
    return os.environ.get("STEELYARD_CACHE") or "on"


def cache_size() -> str:
    """`STEELYARD_CACHE_SIZE`: how many bytes the disk cache may have, as in `512M`. The default is 1 GiB."""
    return os.environ.get("STEELYARD_CACHE_SIZE") or "1G"


def user_cache() -> str:
    """`XDG_CACHE_HOME`: the folder in which programs keep their caches; `~/.cache` unless it is an absolute path."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    return folder if Path(folder).is_absolute() else "~/.cache"


def fp4_scales() -> str:
    """`STEELYARD_FP4_SCALES`: `own` multiplies a GPU's FP4 products by their second-level scales in kernels of its own.

    The default, `torch`, leaves that to torch's GEMM, which reads the scales from one place for all streams of a
    process. Calls take turns; replays of CUDA graphs cannot, and need `own` if they run beside other FP4 products.
    """
    return os.environ.get("STEELYARD_FP4_SCALES") or "torch"


def tape() -> bool:
    """`STEELYARD_TAPE`: `0` calls each kernel from Python, one line each; by default, native tapes call them."""
    return os.environ.get("STEELYARD_TAPE") != "0"


def progress() -> bool:
    """`STEELYARD_PROGRESS`: `0` never shows what is being compiled; by default, a terminal does after 2 s.

    Nothing is shown where nobody looks, in tests and in continuous integration, nor by a terminal that only appends.
    """
    unseen = os.environ.get("PYTEST_CURRENT_TEST") or os.environ.get("CI") or os.environ.get("TERM") == "dumb"
    return os.environ.get("STEELYARD_PROGRESS") != "0" and not unseen
