"""How fast kernels are on a user's GPU, for `steelyard verify-gpu`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from steelyard import recipes
from steelyard.runtime.cuda import gemm
from steelyard.targets.architectures import Target
from steelyard.targets.gemm_paths import NATIVE, gemm_path, schemes_of
from steelyard.tools.gpu.checks import Device, Result, guarded
from steelyard.tools.gpu.kernels import recipe_schemes
from steelyard.tools.gpu.predictions import prediction_of


@dataclass(frozen=True)
class Unit:
    """What rates are measured in: its name in reports, as it is printed, and how much per second it is."""

    name: str
    symbol: str
    size: float


BANDWIDTH = Unit("gigabytes_per_second", "GB/s", 1e9)
SPEED = Unit("teraflops_per_second", "TFLOP/s", 1e12)


def measure(place: Device, size: int, repeats: int) -> Iterator[Result]:
    """Bandwidth of the quantize kernels, compared with a copy and with what is predicted."""
    target = place.kernels.launch.target
    x = torch.randn(size, size, device=place.name, dtype=torch.bfloat16)
    copied = _milliseconds(lambda: x.clone(), repeats)
    yield _result("copy", target, BANDWIDTH, 2 * x.nbytes, copied)
    for recipe, role, (row, col) in recipe_schemes():
        if role != "input" or row.source == "delayed":
            continue
        for what, schemes in ((f"quantize {recipe}", (row, col)), (f"quantize {recipe} row", (row, None))):
            yield guarded(what, lambda w=what, s=schemes: _measure_quantize(w, place, x, s, repeats, copied))


def _measure_quantize(what: str, place: Device, x: Any, schemes: tuple, repeats: int, copied: float) -> Result:
    given = {"amax": (torch.tensor(4.0).to(place.name),) * 2}
    taken = _milliseconds(lambda: place.kernels.quantize(x, *schemes, **given), repeats)
    copies = [copy for copy in place.kernels.quantize(x, *schemes, **given) if copy is not None]
    moved = x.nbytes + sum(copy.codes.nbytes + copy.scales.nbytes for copy in copies)
    share = moved / taken / (2 * x.nbytes / copied)
    return _result(what, place.kernels.launch.target, BANDWIDTH, moved, taken, f", {share:.0%} of a copy's")


def measure_gemms(place: Device, target: Target, size: int, repeats: int) -> Iterator[Result]:
    """The speed of the native GEMMs of every recipe, compared with bf16 and with what is predicted."""
    x = torch.randn(size, size, device=place.name, dtype=torch.bfloat16)
    plain = _milliseconds(lambda: x @ x.t(), repeats)
    yield _result("gemm bf16", target, SPEED, 2 * size**3, plain)

    def measure_gemm(what: str, schemes: tuple) -> Result:
        taken = _time_gemm(place, x, schemes, repeats)
        return _result(what, target, SPEED, 2 * size**3, taken, f", {plain / taken:.2f} x bf16")

    for recipe in recipes.NAMES:
        schemes = schemes_of(recipes.get(recipe), "fprop")
        path = gemm_path("fprop", *schemes, target)
        what = f"gemm {recipe}"
        if path.path != NATIVE:
            yield Result(what, None, f"{path.path}: {path.reason}")
        else:
            yield guarded(what, lambda w=what, s=schemes: measure_gemm(w, s))


def _result(what: str, target: Target, unit: Unit, amount: float, milliseconds: float, comparison: str = "") -> Result:
    """A rate, with what is predicted beside it."""
    rate = amount / (milliseconds * 1e-3) / unit.size
    values, detail = {"milliseconds": milliseconds, unit.name: rate}, f"{rate:.0f} {unit.symbol}{comparison}"
    prediction = prediction_of(target.name, what)
    if prediction is None:
        return Result(what, True, detail, values)
    return Result(what, True, f"{detail}; {prediction}", values | {f"predicted_{unit.name}": prediction.rate})


def _time_gemm(place: Device, x: Any, schemes: tuple, repeats: int) -> float:
    operands = []
    for scheme in schemes:
        scale = torch.tensor(2.0).to(place.name) if scheme.source == "delayed" else None
        copy, _ = place.kernels.quantize(x, scheme, None, scale=scale, rng=torch.tensor((1, 2)).to(place.name))
        operands.append(gemm.gemm_operand(place.kernels, copy))
    return _milliseconds(lambda: gemm.multiply(*operands, out_dtype=torch.bfloat16), repeats)


def _milliseconds(call: Callable[[], object], repeats: int) -> float:
    """The median of some calls on the GPU."""
    call()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return sorted(times)[len(times) // 2]
