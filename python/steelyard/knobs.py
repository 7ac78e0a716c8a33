"""Every environment variable this package reads, with its default. No other module touches `os.environ`."""

import os


def isa() -> str | None:
    """`STEELYARD_ISA`: use this instruction set in the CPU kernels instead of the widest (`baseline`, `avx2`)."""
    return os.environ.get("STEELYARD_ISA") or None
