"""What more threads give: quantize and GEMM on all threads beside one, and torch's own products for comparison."""

import time
from collections.abc import Callable

import torch
from machine import pinned, thread_counts
from report import Table, progress
from scaling import RECIPES, linear
from timing import interleave

# M, N and K
SHAPES = ((1024, 1024, 1024), (512, 3072, 768), (1, 4096, 4096))
AIM = 1.8


def measure(quick: bool = False) -> Table:
    """One row per shape and contender."""
    columns = ["M x N x K", "threads", "contender", "ms, 1 thread", "ms, threads", "speed, 1 thread = 1", "aim"]
    table = Table(
        "What more threads give", columns, labels=["M x N x K", "threads", "contender"], ratio="speed, 1 thread = 1"
    )
    for threads in thread_counts()[1:]:
        for shape in SHAPES[:1] if quick else SHAPES:
            table.rows += _rows(shape, threads, calls=7 if quick else 25)
    progress("")
    table.notes.append("By the best calls, in wall time: beside other processes, only those had all cores.")
    if not table.rows:
        table.notes.append("There is one core only.")
    return table


def _rows(shape: tuple[int, int, int], threads: int, calls: int) -> list[list[str | float]]:
    M, N, K = shape
    size = f"{M} x {N} x {K}"
    progress(f"{size}, {threads} threads")
    x, w = torch.randn(M, K), torch.randn(N, K)
    works = {"torch fp32": lambda: torch.mm(x, w.T)}
    works |= {f"steelyard {recipe}": linear(recipe, M=M, N=N, K=K) for recipe in RECIPES}
    timed = {(name, n): _with_threads(work, n) for name, work in works.items() for n in (1, threads)}
    with pinned(threads):
        times = interleave(timed, calls, seconds=3.0, clock=time.perf_counter)
    rows: list[list[str | float]] = []
    for name in works:
        one, all_ = (times[name, n].best for n in (1, threads))
        # A product with one row waits for memory, which cores share.
        aim = AIM if M > 1 and name.startswith("steelyard") else ""
        rows.append([size, str(threads), name, one * 1e3, all_ * 1e3, one / all_, aim])
    return rows


def _with_threads(work: Callable[[], object], threads: int) -> Callable[[], object]:
    def run() -> None:
        torch.set_num_threads(threads)
        work()

    return run
