"""`steelyard verify-gpu`: the CUDA kernels on the GPU of this machine against the reference, and how fast they are."""

import argparse
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.errors import TargetError
from steelyard.files import check_writable
from steelyard.targets.architectures import TARGETS
from steelyard.tools.console import show
from steelyard.tools.gpu.checks import INTERRUPTED, Check, Checking, Device
from steelyard.tools.gpu.report import Report, find_facts

NO_GPU = 3
GROUPS = ("kernels", "gemms", "models", "streams", "devices", "graphs", "bandwidth", "speed")
_CHECKED_WITHOUT = (
    f"every kernel's PTX is made by LLVM for {', '.join(TARGETS)}",
    "the PTX is executed on a CPU by an interpreter, and its bytes are those of the reference",
    "each instruction of that interpreter is compared with exact arithmetic, and one that has no test is refused",
    "NVIDIA's own conversions, compiled for the host, agree with the casts, where the CUDA toolkit is installed",
    "constants of the PTX, changed one by one, are noticed by these comparisons in most places",
    "ptxas assembles it without spills, where the CUDA toolkit is installed",
    "the calls of scaled_mm are checked on torch's meta device, and by the rules of its CUDA build",
    "the host code runs against a mock of the driver that checks every access to memory",
    "compiled models run forward and backward on that mock, and leave the bytes of the CPU target",
    "this command runs on that mock, from its options to its report",
)


@dataclass(frozen=True)
class Sizes:
    """How much is checked and measured."""

    shapes: tuple[tuple[int, int], ...]
    """Of the matrices that kernels are given."""
    dtypes: tuple[str, ...]
    """Their dtypes, by torch's names."""
    gemm: int
    width: int
    """Of models."""
    measured: int
    repeats: int
    """Of each measurement."""


# The first shape has whole vectors nowhere, the second everywhere. Smaller matrices would be measured in a GPU's cache.
EVERYTHING = Sizes(((257, 401), (512, 1024)), ("bfloat16", "float32", "float16"), 512, 128, 8192, 20)
QUICK = Sizes(((257, 401),), ("bfloat16",), 256, 96, 8192, 5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--quick", action="store_true", help="each kind of check once, and fewer repeats of measurements: a few minutes"
    )
    add("--only", type=_groups, metavar="GROUPS", help=f"only these groups of checks, of {','.join(GROUPS)}")
    add("--json", type=Path, metavar="FILE", help="also write a report to a file; it names no user, host or path")
    add("--device", type=_device, default="cuda", help="the device, as in cuda:1 (default: %(default)s)")
    limit = "a check that takes longer counts as failed, and ends the command (default: %(default)s)"
    add("--limit", type=_seconds, default=300, metavar="SECONDS", help=limit)


def _groups(text: str) -> tuple[str, ...]:
    chosen = text.split(",")
    for name in chosen:
        if name not in GROUPS:
            raise argparse.ArgumentTypeError(f"a group must be one of {', '.join(GROUPS)}, got '{name}'")
    return tuple(chosen)


def _device(text: str) -> str:
    if not re.fullmatch(r"cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"the device must be cuda or cuda:NUMBER, got '{text}'")
    return text


def _seconds(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise argparse.ArgumentTypeError(f"the limit must be a positive number of whole seconds, got '{text}'")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Run the checks and print a table; exit code 0 if none failed, 1 if one did, 3 without a GPU."""
    import torch

    if arguments.json is not None:
        # Before the checks run for minutes.
        check_writable(arguments.json)
    if not torch.cuda.is_available():
        show("This machine has no CUDA GPU that torch can use, so nothing was run. Checked without one, in the tests:")
        show("\n".join(f"- {fact}" for fact in _CHECKED_WITHOUT))
        show("Please run this command on a machine with a GPU and send us what it prints.")
        return NO_GPU
    device = torch.device(arguments.device)
    if device.index is not None and device.index >= torch.cuda.device_count():
        known = ", ".join(f"cuda:{index}" for index in range(torch.cuda.device_count()))
        raise TargetError(f"--device must be one of {known}, got {device}")
    # What has no device of its own, such as a stream or an event, is on the current one.
    with torch.cuda.device(device):
        return _verify(arguments, device)


def _verify(arguments: argparse.Namespace, device: Any) -> int:
    import torch

    from steelyard.driver import progress

    place = place_on(arguments.device)
    checks = list(find_checks(place, device, QUICK if arguments.quick else EVERYTHING, arguments))
    options = {name: getattr(arguments, name) for name in ("quick", "only", "device", "limit")}
    report = Report(find_facts(place, device), options, arguments.json, checks)

    def give_up() -> None:
        # The thread that hangs in the driver can be neither interrupted nor waited for.
        try:
            report.end(checking.ended)
        finally:
            os._exit(1)

    checking = Checking(checks, lambda: torch.cuda.synchronize(device), report.add, give_up, arguments.limit)
    report.begin()
    with progress.doing(lambda: "verifying the GPU"):
        checking.run(progress.step)
    failed = report.end(checking.ended)
    if checking.ended == INTERRUPTED:
        raise KeyboardInterrupt
    return 1 if failed else 0


def place_on(device: str) -> Device:
    """A GPU and its kernels."""
    import torch

    from steelyard.runtime.cuda.devices import kernels_on

    return Device(kernels_on(torch.device(device)), device)


def find_checks(place: Device, device: Any, sizes: Sizes, arguments: argparse.Namespace) -> Iterable[Check]:
    """The checks of the groups that were chosen, in order. None of them has begun."""
    import torch

    from steelyard.tools.gpu.gemms import gemm_checks
    from steelyard.tools.gpu.kernels import kernel_checks
    from steelyard.tools.gpu.models import device_checks, graph_checks, model_checks, stream_checks
    from steelyard.tools.gpu.speed import measure, measure_gemms

    target, dtypes = place.kernels.launch.target, tuple(getattr(torch, name) for name in sizes.dtypes)
    own = torch.cuda.current_device() if device.index is None else device.index
    others = [f"cuda:{index}" for index in range(torch.cuda.device_count()) if index != own]
    measured = sizes.measured, sizes.repeats
    makers: dict[str, Callable[[], Iterable[Check]]] = {
        "kernels": lambda: kernel_checks(place, sizes.shapes, dtypes, every_option=not arguments.quick),
        "gemms": lambda: gemm_checks(place, target, sizes.gemm),
        "models": lambda: model_checks(place, sizes.width, is_quick=arguments.quick),
        "streams": lambda: stream_checks(place, sizes.width),
        "devices": lambda: device_checks(others, place_on, sizes.width),
        "graphs": lambda: graph_checks(place, sizes.width),
        "bandwidth": lambda: [Check("bandwidth", "bandwidth", lambda: measure(place, *measured))],
        "speed": lambda: [Check("speed", "speed", lambda: measure_gemms(place, target, *measured))],
    }
    for name in GROUPS:
        if arguments.only is None or name in arguments.only:
            yield from makers[name]()
