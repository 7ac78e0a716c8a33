"""How fast kernels are on a user's GPU, for `steelyard verify-gpu`."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from steelyard import recipes
from steelyard.runtime.cuda import gemm
from steelyard.targets.gemm_paths import NATIVE, gemm_path, schemes_of
from steelyard.tools.gpu_checks import Device, Result, guarded
from steelyard.tools.gpu_kernels import recipe_schemes


def measure(place: Device, size: int, repeats: int) -> Iterator[Result]:
    """Bandwidth of the quantize kernels, compared with a copy."""
    x = torch.randn(size, size, device=place.name, dtype=torch.bfloat16)
    copied = _milliseconds(lambda: x.clone(), repeats)
    yield _bandwidth("copy", 2 * x.nbytes, copied)
    for recipe, role, schemes in recipe_schemes():
        if role == "input" and schemes[0].source != "delayed":
            what = f"quantize {recipe}"
            yield guarded(what, lambda w=what, s=schemes: _measure_quantize(w, place, x, s, repeats, copied))


def _measure_quantize(what: str, place: Device, x: Any, schemes: tuple, repeats: int, copied: float) -> Result:
    given = {"amax": (torch.tensor(4.0).to(place.name),) * 2}
    taken = _milliseconds(lambda: place.kernels.quantize(x, *schemes, **given), repeats)
    copies = place.kernels.quantize(x, *schemes, **given)
    moved = x.nbytes + sum(copy.codes.nbytes + copy.scales.nbytes for copy in copies)
    share = moved / taken / (2 * x.nbytes / copied)
    return _bandwidth(what, moved, taken, f", {share:.0%} of a copy's")


def measure_gemms(place: Device, target: Any, size: int, repeats: int) -> Iterator[Result]:
    """The speed of the native GEMMs of every recipe, compared with bf16."""
    x = torch.randn(size, size, device=place.name, dtype=torch.bfloat16)
    plain = _milliseconds(lambda: x @ x.t(), repeats)
    yield _rate("gemm bf16", size, plain)
    for recipe in recipes.NAMES:
        schemes = schemes_of(recipes.get(recipe), "fprop")
        path = gemm_path("fprop", *schemes, target)
        what = f"gemm {recipe}"
        if path.path != NATIVE:
            yield Result(what, None, f"{path.path}: {path.reason}")
        else:
            yield guarded(what, lambda w=what, s=schemes: _measure_gemm(w, place, x, s, repeats, plain))


def _measure_gemm(what: str, place: Device, x: Any, schemes: tuple, repeats: int, plain: float) -> Result:
    taken = _time_gemm(place, x, schemes, repeats)
    return _rate(what, len(x), taken, f", {plain / taken:.2f} x bf16")


def _bandwidth(what: str, moved: int, milliseconds: float, comparison: str = "") -> Result:
    rate = moved / milliseconds / 1e6
    values = {"milliseconds": milliseconds, "gigabytes_per_second": rate}
    return Result(what, True, f"{rate:.0f} GB/s{comparison}", values)


def _rate(what: str, size: int, milliseconds: float, comparison: str = "") -> Result:
    rate = 2 * size**3 / milliseconds / 1e9
    values = {"milliseconds": milliseconds, "teraflops_per_second": rate}
    return Result(what, True, f"{rate:.0f} TFLOP/s{comparison}", values)


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
