"""Every environment variable that this package reads, with its default. No other module reads `os.environ`."""

import os


def isa() -> str | None:
    """`STEELYARD_ISA`: the instruction set of the CPU kernels, `baseline`, `avx2`, `avx512` or `avx512_vnni`.

    The default is the widest that the machine supports.
    """
    return os.environ.get("STEELYARD_ISA") or None
