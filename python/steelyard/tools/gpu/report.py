"""The report of `steelyard verify-gpu`: a table on the terminal, and a JSON file that can be sent to others.

The file names the GPU, versions and results. It has no host names, user names or paths: those in errors are removed.
"""

import hashlib
import importlib
import json
import platform
import re
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from steelyard.files import write_file
from steelyard.tools.console import show
from steelyard.tools.gpu.checks import COMPLETE, FAILED, NOT_RUN, PASSED, UNFINISHED, Check, Device, Result

SCHEMA = 1
"""Raised when a field changes its meaning or goes; new fields leave it as it is."""
_WORDS = {PASSED: "ok", FAILED: "FAILED", NOT_RUN: "not run"}
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_ABSOLUTE_PATH = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\",;()<>]+[/\\])+")


class Report:
    """Prints results as they come, and keeps the file up to date: it is there even if the process is killed."""

    def __init__(self, facts: Mapping[str, Any], options: Mapping[str, Any], path: Path | None, checks: list[Check]):
        self._facts, self._options, self._path = facts, options, path
        names = zip(*((check.group, check.name) for check in checks), strict=True)
        self._widths = [max(map(len, column)) for column in names]
        self._is_rewritable = path is None or path.is_file() or not path.exists()
        """A pipe or a device is written once, when all is known."""
        self.results: list[Result] = []

    def begin(self) -> None:
        """Print what is verified."""
        gpu, software = self._facts["gpu"], self._facts["software"]
        show(
            f"{gpu['name']} ({gpu['target']}), torch {software['torch']} for CUDA {software['torch_cuda']}, "
            f"driver {software['driver'] or 'unknown'}, steelyard {self._facts['steelyard']['version']}"
        )
        self._write(UNFINISHED)

    def add(self, result: Result) -> None:
        """Print a result and write it."""
        self.results.append(result)
        group, name = (text.ljust(width) for text, width in zip((result.group, result.what), self._widths, strict=True))
        show(f"{group}  {name}  {_WORDS[result.status]}  {result.detail}".rstrip())
        self._write(UNFINISHED)

    def end(self, ended: str) -> int:
        """Print and write how the checks ended; how many failed."""
        self._write(ended)
        counts = self._counts()
        total = f"{len(self.results)} results: {counts[PASSED]} passed, {counts[FAILED]} failed"
        show(f"{total}, {counts[NOT_RUN]} not run" + ("" if ended == COMPLETE else f" ({ended})"))
        if self._path is None:
            show(
                "To send us these results, run the command with --json report.json and attach the file to your report."
            )
        else:
            show(f"Written to '{self._path}'. Please attach the file to your report.")
        return counts[FAILED]

    def _counts(self) -> Counter[str]:
        return Counter(result.status for result in self.results)

    def _write(self, ended: str) -> None:
        if self._path is not None and (self._is_rewritable or ended != UNFINISHED):
            write_file(self._path, json.dumps(self._contents(ended), indent=1).encode())

    def _contents(self, ended: str) -> dict[str, Any]:
        counts = self._counts()
        return {
            "schema": SCHEMA,
            **self._facts,
            "options": dict(self._options),
            "ended": ended,
            "seconds": round(sum(result.seconds for result in self.results), 3),
            "summary": {status: counts[status] for status in (PASSED, FAILED, NOT_RUN)},
            "results": [_entry(result) for result in self.results],
        }


def _entry(result: Result) -> dict[str, Any]:
    return {
        "group": result.group,
        "name": result.what,
        "status": result.status,
        "seconds": round(result.seconds, 3),
        "detail": without_folders(result.detail),
        "values": dict(result.values),
    }


def without_folders(text: str) -> str:
    """A text whose paths have lost their folders: these may tell who the user is."""
    return _ABSOLUTE_PATH.sub(".../", text)


def find_facts(place: Device, device: Any) -> dict[str, Any]:
    """What results depend on: the build of Steelyard, the software below it, and the GPU."""
    import torch

    found = torch.cuda.get_device_properties(device)
    return {
        "steelyard": {"version": metadata.version("steelyard"), "sources": _hash_sources()},
        "software": {
            "python": platform.python_version(),
            "system": f"{_system_name()}, {platform.machine()}",
            "torch": str(torch.__version__),
            "torch_cuda": torch.version.cuda,
            "cublaslt": _cublaslt(),
            "cuda_bindings": _version_of("cuda-bindings"),
            "driver": _driver_version(),
            "driver_cuda": _cuda_of_driver(),
        },
        "gpu": {
            "name": found.name,
            "target": place.kernels.launch.target.spelling,
            "compute_capability": f"{found.major}.{found.minor}",
            "multiprocessors": found.multi_processor_count,
            "memory_bytes": found.total_memory,
            "count": torch.cuda.device_count(),
        },
    }


def _hash_sources() -> str:
    """A hash of what makes and launches kernels: where it is worked on, the version stays."""
    from steelyard import codegen
    from steelyard.runtime import cuda

    files = [file for room in (codegen, cuda) for file in sorted(Path(room.__path__[0]).rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cublaslt() -> str | None:
    from steelyard.runtime.cuda.libraries import cublaslt_version

    found = cublaslt_version()
    return None if found is None else "{}.{}".format(*found)


def _driver_version() -> str | None:
    try:
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", _KERNEL_MODULE.read_text())
    except OSError:
        return None
    return found[0] if found else None


def _cuda_of_driver() -> str | None:
    """The newest CUDA that the driver runs."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None
    _, number = driver.cuDriverGetVersion()
    return f"{number // 1000}.{number % 1000 // 10}"
