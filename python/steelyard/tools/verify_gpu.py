"""`steelyard verify-gpu`: the CUDA kernels on the GPU of this machine against the reference, and how fast they are."""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from steelyard.errors import TargetError
from steelyard.files import check_writable, write_file
from steelyard.tools.console import show

NO_GPU = 3
_CHECKED_WITHOUT = (
    "every kernel's PTX is made by LLVM for sm_89, sm_90a, sm_100a and sm_120a",
    "the PTX is executed on a CPU by an interpreter, and its bytes are those of the reference",
    "each instruction of that interpreter is compared with exact arithmetic, and one that has no test is refused",
    "NVIDIA's own conversions, compiled for the host, agree with the casts, where the CUDA toolkit is installed",
    "constants of the PTX, changed one by one, are noticed by these comparisons in most places",
    "ptxas assembles it without spills, where the CUDA toolkit is installed",
    "the calls of scaled_mm are checked on torch's meta device",
    "the host code runs against a mock of the driver that checks every access to memory",
    "compiled models run forward and backward on that mock, and leave the bytes of the CPU target",
)


@dataclass(frozen=True)
class Result:
    """One check or measurement."""

    what: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class Device:
    """Where checks run: the kernels of a device, and the torch device of tensors."""

    kernels: Any
    name: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="also write the results to a file")
    add("--device", type=_device, default="cuda", help="the device, as in cuda:1 (default: %(default)s)")


def _device(text: str) -> str:
    if not re.fullmatch(r"cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"the device must be cuda or cuda:NUMBER, got '{text}'")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Run every check and print a table; exit code 0 if all passed, 1 if not, 2 for wrong options, 3 without a GPU."""
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
    from steelyard.runtime.cuda.devices import kernels_on
    from steelyard.tools.gpu_models import check_graphs, check_models
    from steelyard.tools.gpu_speed import measure, measure_gemms

    place = Device(kernels_on(device), arguments.device)
    heading = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    target = place.kernels.launch.target
    groups = {
        "kernels": check_kernels(place),
        "gemms": check_gemms(place, target),
        "models": check_models(place),
        "cuda graphs": check_graphs(place),
        "bandwidth": measure(place),
        "speed of gemms": measure_gemms(place, target),
    }
    return report(heading, list(collect(groups)), arguments.json)


def collect(groups: dict[str, Iterator[Result]]) -> Iterator[Result]:
    """The results of all groups. A group that raises counts as failed, and the others still run."""
    for name, results in groups.items():
        try:
            yield from results
        except Exception as error:
            yield Result(name, False, f"{type(error).__name__}: {error}")


def report(heading: str, results: list[Result], path: Path | None) -> int:
    """Print a table, write it as JSON if asked to, and give the exit code."""
    width = max(len(result.what) for result in results)
    show(heading)
    for result in results:
        show(f"{result.what.ljust(width)}  {'ok' if result.passed else 'FAILED'}  {result.detail}".rstrip())
    failed = sum(not result.passed for result in results)
    show(f"{len(results)} checks, {failed} failed")
    if path is not None:
        found = {"device": heading, "results": [asdict(result) for result in results]}
        write_file(path, json.dumps(found, indent=1).encode())
    return 1 if failed else 0


def check_kernels(place: Device, shapes: tuple[tuple[int, int], ...] = ((257, 401), (512, 1024))) -> Iterator[Result]:
    """Quantize, dequantize, transpose and swizzle of every recipe, byte for byte."""
    import torch

    for recipe, role, (row, col) in recipe_schemes():
        for shape in shapes:
            x = _values(shape)
            name = f"{recipe} {role} {shape[0]}x{shape[1]}"
            given = {"rng": (7, 1), "scale": torch.tensor(0.5) if row.source == "delayed" else None}
            yield guarded(name, lambda x=x, r=row, c=col, g=given: _compare_copies(place, x, r, c, g))
    for producer in ("relu", "gelu", "gelu_tanh", "silu", "silu_and_multiply", "add", "layer_norm", "rms_norm"):
        yield guarded(producer, lambda p=producer: _compare_producer(place, p, shapes[0]))


def check_gemms(place: Device, target: Any, size: int = 512) -> Iterator[Result]:
    """The native GEMMs of every recipe against float64; detail is the largest error over sum|a||b|."""
    from steelyard import recipes
    from steelyard.formats.gemms import KINDS
    from steelyard.targets.gemm_paths import NATIVE, gemm_path, schemes_of

    for recipe in recipes.NAMES:
        for kind in KINDS:
            schemes = schemes_of(recipes.get(recipe), kind)
            path = gemm_path(kind, *schemes, target)
            if path.path == NATIVE:
                yield guarded(f"gemm {recipe} {kind}", lambda k=kind, s=schemes: _compare_gemm(place, k, s, size))


def recipe_schemes() -> Iterator[tuple[str, str, tuple]]:
    """Each recipe and role with their schemes."""
    from steelyard import recipes

    for recipe in recipes.NAMES:
        for role in ("input", "weight", "grad_output"):
            yield recipe, role, recipes.get(recipe).schemes(role)


def _values(shape: tuple[int, int]):
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator) * torch.exp2(torch.randn(shape, generator=generator) * 5)
    x[1, 2], x[3, 4], x[5] = float("nan"), float("inf"), 0.0
    return x.bfloat16()


def guarded(what: str, check: Callable[[], str]) -> Result:
    """Run a check, which returns what differs. One that raises has failed too, and the others still run."""
    try:
        found = check()
    except Exception as error:
        return Result(what, False, f"{type(error).__name__}: {error}")
    passed = not found or found.startswith("error ")
    return Result(what, passed, found)


def _compare_copies(place: Device, x, row, col, given: dict) -> str:
    from steelyard import reference

    moved = {key: value.to(place.name) if hasattr(value, "to") else value for key, value in given.items()}
    found = place.kernels.quantize(x.to(place.name), row, col, **moved)
    expected = reference.quantize(x, row, col, **given)
    differences = [
        difference
        for copy, wanted in zip(found, expected, strict=True)
        if wanted is not None
        for difference in _differences(place, copy, wanted)
    ]
    return f"{', '.join(differences)} differ" if differences else ""


def _differences(place: Device, copy: Any, wanted: Any) -> Iterator[str]:
    """Which parts of a copy, and of what is computed from it, differ from the reference."""
    from steelyard import reference

    usage = "columnwise" if wanted.columnwise else "rowwise"
    for name in ("codes", "scales", "amax"):
        if getattr(wanted, name) is not None and not same(getattr(copy, name), getattr(wanted, name)):
            yield f"{usage} {name}"
    if not same(place.kernels.dequantize(copy), reference.dequantize(wanted)):
        yield f"{usage} values"
    if wanted.scheme.family != "tensor" and not same(place.kernels.swizzle(copy), reference.swizzle(wanted)):
        yield f"{usage} swizzle"
    if wanted.scheme.is_transposable:
        other, wanted_other = place.kernels.transpose(copy), reference.transpose(wanted)
        if not (same(other.codes, wanted_other.codes) and same(other.scales, wanted_other.scales)):
            yield f"{usage} transpose"


def _compare_producer(place: Device, producer: str, shape: tuple[int, int]) -> str:
    import torch

    from steelyard.runtime import cpu

    x = _values(shape)
    vector = torch.linspace(-2, 2, shape[1]).bfloat16()
    inputs = {"layer_norm": (x, vector, vector, 1e-5), "rms_norm": (x, vector, 1e-5)}.get(producer, (x,))
    inputs = (x, x.flip(0)) if producer in ("silu_and_multiply", "add") else inputs
    moved = tuple(value.to(place.name) if isinstance(value, torch.Tensor) else value for value in inputs)
    agrees = same(place.kernels.produce(producer, moved), cpu.produce(producer, inputs, x.dtype))
    return "" if agrees else "values differ"


def _compare_gemm(place: Device, kind: str, schemes: tuple, size: int) -> str:
    import torch

    from steelyard.reference.dequantize import decode_stored
    from steelyard.runtime.cuda import gemm

    columnwise = {"fprop": (False, False), "dgrad": (False, True), "wgrad": (True, True)}[kind]
    operands, decoded = [], []
    for scheme, is_column in zip(schemes, columnwise, strict=True):
        generator = torch.Generator().manual_seed(len(operands))
        x = torch.randn(size, size, generator=generator).bfloat16().to(place.name)
        scale = torch.tensor(2.0, device=place.name) if scheme.source == "delayed" else None
        pair = (None, scheme) if is_column else (scheme, None)
        copy = place.kernels.quantize(x, *pair, scale=scale, rng=(1, 2))[is_column]
        operands.append(gemm.gemm_operand(place.kernels, copy))
        values = torch.from_numpy(decode_stored(_on_cpu(copy))).double()
        decoded.append(values.T if _lies_across(copy) else values)
    found = gemm.multiply(*operands, out_dtype=torch.bfloat16).double().cpu()
    error = (found - decoded[0] @ decoded[1].T).abs() / (decoded[0].abs() @ decoded[1].abs().T)
    largest = error.max().item()
    # bf16 rounds to 2^-9; the accumulators of tensor cores may keep fewer bits than float32.
    return f"error {largest:.1e}" if largest < 2.0**-8 else f"the product is off by {largest:.1e} of sum|a||b|"


def _lies_across(copy) -> bool:
    return copy.columnwise and not copy.is_stored_transposed


def _on_cpu(copy):
    amax = None if copy.amax is None else copy.amax.cpu()
    return replace(copy, codes=copy.codes.cpu(), scales=copy.scales.cpu(), amax=amax)


def same(found, expected) -> bool:
    """Whether dtype, shape and values are equal; all NaNs count as equal."""
    found = found.cpu()
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    return bool(((found == expected) | ((found != found) & (expected != expected))).all())
