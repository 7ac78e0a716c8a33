"""Writes what speeds are predicted for GPUs, and their tables in docs/cuda.md. `--check` says whether the tables are
those of the data, and runs no kernel.

Nothing is measured: kernels are executed by an interpreter that counts, and `gpu_roofline` turns counts into times.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_roofline import GPUS, Estimate, Gpu, Work, estimate

from steelyard import recipes
from steelyard.formats.schemes import Scheme
from steelyard.runtime.cuda import gemm
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.targets.architectures import TARGETS
from steelyard.targets.gemm_paths import NATIVE, gemm_path, schemes_of
from steelyard.tools.gpu.predictions import FILE

PAGE = Path(__file__).parents[1] / "docs" / "cuda.md"
BEGIN, END = "<!-- predictions: written by benchmarks/predict_gpu.py -->", "<!-- end of predictions -->"
SHAPE = 128, 1024
"""Of the matrix that the interpreter runs on. It is made of whole tiles, so that work grows with the elements."""
LONG_ROWS = 16, 8192
"""As many elements, for kernels that work by rows."""
ELEMENTS = SHAPE[0] * SHAPE[1]
SIDE = 8192
"""Of the matrices that rates are predicted for, and that `steelyard verify-gpu` measures."""
EXPERTS, ROWS_OF_EXPERTS = 8, (1024, 128)
"""As many elements, for tensors in groups: 128 rows of each expert, or a weight of each."""
LAYERS = {"8192 x 8192 x 8192": (8192, 8192, 8192), "Llama 8B up, 4096 tokens": (4096, 14336, 4096)}
"""M, N and K of linear layers."""


@dataclass(frozen=True)
class Case:
    """A row of predictions: which launch of a call it is about, by how the kernel's name begins."""

    name: str
    kernel: str
    call: Any


def cases() -> Iterator[Case]:
    """Every recipe and role, both copies and the rowwise one alone; roles with the same schemes once."""
    yield Case("amax", "amax", lambda kernels: kernels.amax(_matrix()))
    yield Case("amax after the transform", "amax", lambda kernels: kernels.amax(_matrix(), rht=True))
    for recipe in recipes.NAMES:
        seen: list[tuple[Scheme, Scheme]] = []
        for role in recipes.ROLES:
            pair = recipes.get(recipe).schemes(role)
            if pair in seen:
                continue
            seen.append(pair)
            name = f"quantize {recipe}" if role == "input" else f"quantize {recipe} {role}"
            yield Case(name, "quantize", partial(_quantize, pair=pair))
            yield Case(f"{name} row", "quantize", partial(_quantize, pair=(pair[0], None)))
            experts = partial(_quantize_groups, pair=pair, is_stack=role == "weight")
            yield Case(f"{name} of {EXPERTS} experts", "quantize", experts)
    yield Case("statistics of rms_norm", "row_statistics", partial(_normalize, shape=LONG_ROWS))
    yield Case("quantize mxfp8 of rms_norm", "quantize", _normalize)


def _matrix(shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def _quantize(kernels: Kernels, pair: tuple[Scheme | None, Scheme | None]) -> tuple:
    return kernels.quantize(_matrix(), *pair, scale=torch.tensor(1.0) if _is_delayed(pair) else None, rng=(1, 2))


def _quantize_groups(kernels: Kernels, pair: tuple[Scheme, Scheme], is_stack: bool) -> tuple:
    x, scale = _matrix(ROWS_OF_EXPERTS), torch.ones(EXPERTS) if _is_delayed(pair) else None
    rows, columns = ROWS_OF_EXPERTS[0] // EXPERTS, ROWS_OF_EXPERTS[1]
    if is_stack:
        return kernels.quantize_groups(x.view(EXPERTS, rows, columns), None, *pair, scale=scale, rng=(1, 2))
    ends = torch.arange(1, EXPERTS + 1, dtype=torch.int32) * rows
    return kernels.quantize_groups(x, ends, *pair, scale=scale, rng=(1, 2))


def _is_delayed(pair: tuple[Scheme | None, Scheme | None]) -> bool:
    return any(scheme is not None and scheme.source == "delayed" for scheme in pair)


def _normalize(kernels: Kernels, shape: tuple[int, int] = SHAPE) -> None:
    pair = recipes.get("mxfp8").schemes("input")
    kernels.quantize_produced("rms_norm", (_matrix(shape), torch.ones(shape[1]).bfloat16(), 1e-5), *pair)


def predict_case(case: Case, gpu: Gpu, registers: int | None = None) -> dict[str, Any]:
    """A row; `registers` are those that ptxas found before, if it is not to run."""
    from gpu_work import assemble, counted_instructions, launches_of

    found = launches_of(gpu.target, lambda launcher: case.call(Kernels(launcher)))
    kernel, work = next((kernel, work) for kernel, work in found if kernel.name.startswith(case.kernel))
    known = {"registers": registers}
    if registers is None:
        assembled = assemble(kernel, gpu.target)
        counted = counted_instructions(kernel, gpu.target)
        known = {"registers": assembled.registers, "sass_per_ptx": round(assembled.instructions / counted, 2)}
    expected = estimate(work, known["registers"], gpu)
    return {**_row(work, expected, gpu), **known}


def _row(work: Work, expected: Estimate, gpu: Gpu) -> dict[str, Any]:
    per_element = {name: round(32 * count / ELEMENTS, 1) for name, count in sorted(work.instructions.items())}
    return {
        "rate": round(work.bytes / expected.seconds / 1e9),
        "unit": "GB/s",
        "share": round(work.bytes / expected.seconds / gpu.copy_bandwidth, 2),
        "limit": expected.limit,
        "bytes": round(work.bytes / ELEMENTS, 2),
        "sector_bytes": round(work.sector_bytes / ELEMENTS, 2),
        "instructions": {name: count for name, count in per_element.items() if count},
        "wavefronts": round(32 * work.memory_wavefronts / ELEMENTS, 1),
        "blocks": expected.blocks_per_multiprocessor,
    }


def predict(gpu: Gpu) -> dict[str, Any]:
    """All rows of a GPU."""
    rows = {"copy": {"rate": round(gpu.copy_bandwidth / 1e9), "unit": "GB/s", "limit": "memory"}}
    rows |= {case.name: predict_case(case, gpu) for case in cases()}
    for name, rate in _gemm_rates(gpu).items():
        rows[f"gemm {name}"] = {"rate": round(rate / 1e12), "unit": "TFLOP/s", "limit": "tensor cores"}
    layers = {name: _layer(gpu, *sizes) for name, sizes in LAYERS.items()}
    return {"gpu": gpu.name, "rows": rows, "layers": layers}


def _gemm_rates(gpu: Gpu) -> dict[str, float]:
    """The dense rates of the formats, for the recipes whose forward GEMM is native."""
    rates = {"bf16": gpu.tensor_flops["bf16"]}
    for recipe in recipes.NAMES:
        schemes = schemes_of(recipes.get(recipe), "fprop")
        if gemm_path("fprop", *schemes, TARGETS[gpu.target]).path == NATIVE:
            rates[recipe] = gpu.tensor_flops["fp4" if schemes[0].element == "f4E2M1FN" else "fp8"]
    return rates


def _layer(gpu: Gpu, m: int, n: int, k: int) -> dict[str, Any]:
    """Microseconds of a linear layer: a forward with its weight quantized before, and the GEMMs of a training step."""
    flops, rates = 2 * m * n * k, _gemm_rates(gpu)
    elements = {"input": m * k, "weight": n * k, "grad_output": m * n}
    found: dict[str, Any] = {
        "bf16": {"forward": _micro(flops / rates["bf16"]), "step": _micro(3 * flops / rates["bf16"])}
    }
    for recipe, rate in rates.items():
        if recipe == "bf16":
            continue
        forward = _seconds_per_element(gpu, recipe, "input", training=False) * elements["input"]
        step = sum(_seconds_per_element(gpu, recipe, role, training=True) * count for role, count in elements.items())
        found[recipe] = {
            "quantize": _micro(forward),
            "forward": _micro(forward + flops / rate),
            "quantize of the step": _micro(step),
            "step": _micro(step + 3 * flops / rate),
        }
    return found


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _seconds_per_element(gpu: Gpu, recipe: str, role: str, *, training: bool) -> float:
    """All launches before the GEMMs: amaxes, quantize, and what puts codes and scales into the order of the GEMM."""
    from gpu_work import assemble, launches_of

    row, col = recipes.get(recipe).schemes(role)

    def prepare(launcher) -> None:
        kernels = Kernels(launcher)
        for copy in _quantize(kernels, (row, col if training else None)):
            if copy is not None:
                gemm.gemm_operand(kernels, copy)

    launches = launches_of(gpu.target, prepare)
    times = [estimate(work, assemble(kernel, gpu.target).registers, gpu).seconds for kernel, work in launches]
    return sum(times) / ELEMENTS


def tables(data: dict[str, Any]) -> str:
    """The tables of docs/cuda.md."""
    targets = list(data["targets"].values())
    return "\n".join([*map(_kernel_table, targets), _layer_table(targets)])


def _kernel_table(found: dict[str, Any]) -> str:
    head = [f"launch on {found['gpu']}, 8192 x 8192 from bf16", "bytes", "GB/s", "of a copy", "limit"]
    head += ["instructions", "of them integer", "registers", "SASS / PTX"]
    lines = [_line(head), _line(["---"] * len(head))]
    for name, row in found["rows"].items():
        if "share" not in row:
            continue
        counts = row["instructions"]
        cells = [name, f"{row['bytes']:.2f}", f"{row['rate']}", f"{row['share']:.0%}", row["limit"]]
        cells += [f"{sum(counts.values()):.1f}", f"{counts.get('integer', 0):.1f}"]
        lines.append(_line([*cells, f"{row['registers']}", f"{row['sass_per_ptx']:.2f}"]))
    return "\n".join(lines) + "\n"


def _layer_table(targets: list[dict[str, Any]]) -> str:
    head = ["linear layer, M x N x K", "GPU", "recipe", "quantize, µs", "forward, µs", "against bf16"]
    head += ["training step, µs", "against bf16"]
    lines = [_line(head), _line(["---"] * len(head))]
    for size in LAYERS:
        for found in targets:
            times = found["layers"][size]
            plain = times["bf16"]
            for recipe, own in times.items():
                ratios = {name: f"{plain[name] / own[name]:.2f} x" for name in ("forward", "step")}
                cells = [size, found["gpu"], recipe, f"{own['quantize']:.0f}" if "quantize" in own else ""]
                cells += [f"{own['forward']:.0f}", ratios["forward"], f"{own['step']:.0f}", ratios["step"]]
                lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def with_tables(text: str, data: dict[str, Any]) -> str:
    """The page with the tables between their two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{tables(data)}\n{end}{after}"


def main(arguments: list[str]) -> int:
    """Write the data and the page, or check the page."""
    if "--check" not in arguments:
        data = {"side": SIDE, "targets": {gpu.target: predict(gpu) for gpu in GPUS}}
        FILE.write_text(json.dumps(data, indent=1) + "\n")
    page = PAGE.read_text()
    wanted = with_tables(page, json.loads(FILE.read_text()))
    if "--check" in arguments:
        return int(page != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
