"""Linear layers in the formats of published models: FP8 per row, FP4 weights with activations of other formats.

Beside torch's float32 products, with many rows and with few; the quantization of the activation is included.
"""

import math
from collections.abc import Callable

import torch
from linears import MXFP4, MXFP8, NVFP4, ROW, linear, quantized_weight
from machine import pinned
from report import SPEED, SPEED_BEST, Table, progress
from timing import interleave

from steelyard.formats.schemes import Scheme

# Name -> schemes of the activation, None if it is not quantized, and of the weight.
FORMATS: dict[str, tuple[Scheme | None, Scheme]] = {
    "fp8 per row": (ROW, ROW),
    "mxfp4 x mxfp8": (MXFP8, MXFP4),
    "mxfp4 x mxfp4": (MXFP4, MXFP4),
    "mxfp4 x f32": (None, MXFP4),
    "nvfp4 x mxfp8": (MXFP8, NVFP4),
    "nvfp4 x nvfp4": (NVFP4, NVFP4),
    "nvfp4 x f32": (None, NVFP4),
}
# M, N, K, and how many weights are used in turn so that none of them is in a cache.
MANY_ROWS = (
    (256, 2048, 2048, 1),
    (512, 512, 512, 1),
    (1024, 1024, 1024, 1),
    (2048, 2048, 2048, 1),
    (300, 2000, 1000, 1),
)
FEW_ROWS = ((1, 2048, 2048, 24), (1, 8192, 8192, 1), (2, 2048, 2048, 24), (4, 2048, 2048, 24), (16, 2048, 2048, 24))
QUICK_SHAPES = (MANY_ROWS[1], (1, 2048, 2048, 12))
AIMS = {
    ("fp8 per row", 256): 1.0,
    ("mxfp4 x mxfp8", 256): 1.0,
    ("fp8 per row", 1): 3.2,
    ("mxfp4 x f32", 1): 3.5,
    ("nvfp4 x f32", 1): 3.5,
    ("nvfp4 x mxfp8", 1): 5.5,
    ("nvfp4 x nvfp4", 1): 5.5,
}
"""Of a format, from so many rows on; those with few rows are for one."""


def measure(quick: bool = False) -> Table:
    """One row per shape and format."""
    columns = ["M x N x K", "weights", "weight x activation", "ms", SPEED, SPEED_BEST, "aim"]
    title = "Linear layer in the formats of published models, 1 thread"
    table = Table(title, columns, labels=["M x N x K", "weight x activation"], ratio=SPEED)
    speeds: dict[str, list[float]] = {}
    with pinned(1):
        for shape in QUICK_SHAPES if quick else MANY_ROWS + FEW_ROWS:
            progress(" x ".join(map(str, shape[:3])))
            rows = _rows(shape, repeats=5 if quick else 11)
            table.rows += rows
            for row in rows if shape[0] >= 256 else ():
                speeds.setdefault(str(row[2]), []).append(float(row[4]))
    progress("")
    table.notes.append(
        "speed: CPU time of torch's float32 product / CPU time, by medians and by the best calls; above 1 is faster."
    )
    table.notes.append("weights: how many are used in turn, so that with few rows none of them is in a cache.")
    means = (f"{name} {math.exp(sum(map(math.log, found)) / len(found)):.2f}" for name, found in speeds.items())
    table.notes.append(f"Geometric means of the speeds from 256 rows on: {', '.join(means)}.")
    return table


def _rows(shape: tuple[int, int, int, int], repeats: int) -> list[list[str | float]]:
    M, N, K, count = shape
    generator = torch.Generator().manual_seed(0)
    x, out = torch.randn(M, K, generator=generator), torch.empty(M, N)
    weights = [torch.randn(N, K, generator=generator) for _ in range(count)]
    works: dict[str, Callable[[], object]] = {"fp32": lambda: [torch.mm(x, w.T) for w in weights]}
    for name, (scheme, weight_scheme) in FORMATS.items():
        runs = [linear(x, scheme, quantized_weight(w, weight_scheme), out) for w in weights]
        works[name] = lambda runs=runs: [run() for run in runs]
    times = interleave(works, repeats)
    return [
        [
            f"{M} x {N} x {K}",
            str(count),
            f"steelyard {name}",
            times[name].best / count * 1e3,
            times["fp32"].median / times[name].median,
            times["fp32"].best / times[name].best,
            AIMS.get((name, min(M, 256)), ""),
        ]
        for name in FORMATS
    ]
