"""Time against rows, columns, depth and layers: awkward sizes beside the nearest round ones."""

from collections.abc import Callable
from typing import Any

import torch
from machine import pinned
from models import GPTBlock
from report import Table, progress
from timing import interleave
from torch import nn

import steelyard
from steelyard import recipes
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu

RECIPES = ("fp8-current", "fp8-block", "mxfp8", "nvfp4")
BASE = 512
# Awkward sizes (odd, prime, not a multiple of 16, 32 or 128) and round ones. One column may cost as much as 16.
PAIRS = {
    "M": ((257, 256), (509, 512), (1021, 1024)),
    "N": ((1, 16), (257, 256), (509, 512), (1000, 1024), (1021, 1024)),
    "K": ((257, 256), (509, 512), (1000, 1024), (1021, 1024)),
}
QUICK_PAIRS = {"M": ((257, 256),), "N": ((1, 16), (509, 512)), "K": ((509, 512),)}
LIMIT = 0.77
SPEED = "speed, round size = 1"


def measure(quick: bool = False) -> Table:
    """One row per recipe and pair of sizes; the ratio is of the time per element of work."""
    columns = ["recipe", "size", "round size", "ms", "round size ms", SPEED]
    table = Table(f"Scaling of quantize and GEMM, other sizes {BASE}", columns)
    table.labels, table.ratio = ["recipe", "size"], SPEED
    repeats = 7 if quick else 25
    with pinned(1):
        for recipe in RECIPES:
            for dim, pairs in (QUICK_PAIRS if quick else PAIRS).items():
                for pair in pairs:
                    progress(f"{recipe}, {dim} = {pair[0]}")
                    table.rows.append(_pair(recipe, dim, *pair, repeats))
    awkward = list(table.rows)
    table.rows.append(_layers(2, 8 if quick else 16, repeats))
    progress("")
    worst = min(awkward, key=lambda row: row[-1])
    table.notes += [
        f"speed: elements of work per second, with the round size as 1, by medians; {LIMIT} is the limit.",
        f"slowest of the sizes: {worst[-1]:.2f} ({worst[0]}, {worst[1]}).",
        "layers: speed per layer of a compiled model, with the shallow model as 1.",
    ]
    return table


def _pair(recipe: str, dim: str, size: int, beside: int, repeats: int) -> list[str | float]:
    works = {name: linear(recipe, **{dim: value}) for name, value in (("size", size), ("beside", beside))}
    times = {name: found.median for name, found in interleave(works, repeats, seconds=3.0).items()}
    # A single column need not cost a sixteenth.
    share = 1.0 if size == 1 else size / beside
    ratio = share * times["beside"] / times["size"]
    return [recipe, f"{dim}={size}", f"{dim}={beside}", times["size"] * 1e3, times["beside"] * 1e3, ratio]


def _layers(few: int, many: int, repeats: int) -> list[str | float]:
    """One row: a deep model beside a shallow one."""
    progress(f"mxfp8, {many} layers")
    torch.manual_seed(0)
    x = torch.randn(1, 64, 256)
    with pinned(1), torch.no_grad():
        models = {n: nn.Sequential(*(GPTBlock(256, 4) for _ in range(n))).eval() for n in (few, many)}
        nets = {n: steelyard.compile(model, "mxfp8").lower(x) for n, model in models.items()}
        works = {str(n): lambda net=net: net(x) for n, net in nets.items()}
        times = interleave(works, repeats, seconds=3.0)
    shallow, deep = (times[str(n)].median for n in (few, many))
    return ["mxfp8", f"{many} layers", f"{few} layers", deep * 1e3, shallow * 1e3, shallow / deep * many / few]


def linear(recipe: str, M: int = BASE, N: int = BASE, K: int = BASE) -> Callable[[], Any]:
    """What a linear does in a step: quantize x, and multiply by a weight that was quantized, and packed, before."""
    torch.manual_seed(0)
    chosen = recipes.get(recipe)
    row, _ = chosen.schemes("input")
    weight_row, _ = chosen.schemes("weight")
    x, w = torch.randn(M, K), torch.randn(N, K)
    weight, _ = cpu.quantize(w, weight_row, None)
    assert weight is not None
    assert isinstance(row, Scheme)
    kept = cpu.pack(weight) if weight.scheme.family == "nvfp4" else weight
    return lambda: cpu.qgemm(cpu.quantize(x, row, None)[0], kept)
