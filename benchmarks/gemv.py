"""Linear layers with few rows and weights from memory, beside torch's float32 products."""

import torch
from linears import GEMMS, linear, quantized_weight
from machine import pinned
from report import SPEED, SPEED_BEST, Table, progress
from timing import interleave

# M, N = K, and how many weights are used in turn so that none of them is in a cache.
SHAPES = ((1, 2048, 24), (4, 2048, 24), (8, 2048, 24), (16, 2048, 24), (1, 8192, 1), (4, 8192, 1))
QUICK_SHAPES = ((1, 2048, 12), (4, 2048, 12))
AIMS = {("nvfp4", 1): 5.0, ("nvfp4", 4): 5.0, ("fp8", 1): 3.0, ("mxfp8", 1): 2.7}


def measure(quick: bool = False) -> Table:
    """One row per shape and recipe."""
    columns = ["M x N x K", "weights", "recipe", "us per layer", "GB/s of weights", SPEED, SPEED_BEST, "aim"]
    title = "Linear layer with few rows, weights from DRAM, 1 thread"
    table = Table(title, columns, labels=["M x N x K", "recipe"], ratio=SPEED)
    with pinned(1):
        for M, side, count in QUICK_SHAPES if quick else SHAPES:
            progress(f"{M} x {side} x {side}")
            table.rows += _rows(M, side, count, repeats=5 if quick else 15)
    progress("")
    table.notes.append(
        "speed: CPU time of torch's float32 product / CPU time, by medians and by the best calls; above 1 is faster."
    )
    table.notes.append("weights: how many are used in turn, so that none of them is in a cache.")
    return table


def _rows(M: int, side: int, count: int, repeats: int) -> list[list[str | float]]:
    generator = torch.Generator().manual_seed(0)
    x, out = torch.randn(M, side, generator=generator), torch.empty(M, side)
    weights = [torch.randn(side, side, generator=generator) for _ in range(count)]
    works = {"fp32": lambda: [torch.mm(x, w.T) for w in weights]}
    sizes = {}
    for name, (scheme, weight_scheme) in GEMMS.items():
        kept = [quantized_weight(w, weight_scheme) for w in weights]
        runs = [linear(x, scheme, w, out) for w in kept]
        works[name] = lambda runs=runs: [run() for run in runs]
        sizes[name] = sum(_bytes(w) for w in kept)
    times = interleave(works, repeats)
    return [
        [
            f"{M} x {side} x {side}",
            str(count),
            f"steelyard {name}",
            times[name].best / count * 1e6,
            sizes[name] / times[name].best * 1e-9,
            times["fp32"].median / times[name].median,
            times["fp32"].best / times[name].best,
            AIMS.get((name, M), ""),
        ]
        for name in GEMMS
    ]


def _bytes(weight) -> int:
    parts = [weight.data] if hasattr(weight, "data") else [weight.codes, weight.scales]
    return sum(part.numel() * part.element_size() for part in parts)
