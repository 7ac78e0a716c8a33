"""The machine that measures: what it is, and how many of its cores are used."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "i8mm", "sve")
PACKAGES = ("steelyard", "torch", "transformers", "torchao", "openvino", "nncf", "jax")


def describe() -> dict[str, str]:
    """CPU, cores, instruction sets, load and versions, as words."""
    return {
        "CPU": _cpu(),
        "cores": f"{len(_CORES)} of {os.cpu_count()}",
        "instruction sets": " ".join(s for s in INSTRUCTION_SETS if s in _cpu_flags()) or "unknown",
        "load average": load(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
    }


def load() -> str:
    """How many processes wanted to run, on average over the last 1, 5 and 15 minutes."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def thread_counts() -> tuple[int, ...]:
    """One thread and all of them."""
    return (1, len(_CORES)) if len(_CORES) > 1 else (1,)


def limit(cores: int) -> None:
    """Use only the first cores, this many."""
    del _CORES[cores:]


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Compute with this many threads on as many cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    # Threads that are made later inherit the cores.
    _pin(_CORES[:threads])
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _pin(_CORES)


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _pin(cores: list[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


_CORES = _cores()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _cpu() -> str:
    """The name of the CPU, with the numbers that tell its core, which many names do not."""
    name = _cpu_field("model name") or platform.processor() or platform.machine()
    family, model = _cpu_field("cpu family"), _cpu_field("model")
    return f"{name} (family {family}, model {model})" if family and model else name


def _cpu_flags() -> set[str]:
    return set((_cpu_field("flags") or _cpu_field("Features")).split())


def _cpu_field(name: str) -> str:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return ""
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
