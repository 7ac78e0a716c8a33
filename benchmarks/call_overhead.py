"""What a compiled call costs beyond its kernels: many small linears beside the same kernel calls in a loop."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from report import Table, progress
from timing import median_seconds
from torch import nn

import steelyard
from steelyard.runtime.cpu import bound

SIZE = 16
RECIPES = ("fp8-current", "mxfp8", "nvfp4")


def measure(quick: bool = False) -> Table:
    """One row per recipe and depth, in microseconds."""
    depths = (1, 16) if quick else (1, 16, 64, 256)
    columns = [
        "recipe",
        "linears",
        "eager us",
        "compiled us",
        "frozen us",
        "kernels us",
        "overhead us",
        "overhead us per op",
    ]
    table = Table(f"Call overhead: linears of {SIZE}x{SIZE}, 1 thread", columns)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for recipe in RECIPES:
            for depth in depths:
                progress(f"{recipe}, {depth} linears")
                table.rows.append([recipe, str(depth), *_row(recipe, depth, repeats=50 if quick else 200)])
    finally:
        torch.set_num_threads(threads)
    progress("")
    table.notes.append("frozen: by `net.freeze`, which checks nothing but its arguments; overhead is that of compiled.")
    table.notes.append("kernels: the quantizes and GEMMs of one call, recorded and called again on their own.")
    table.notes.append(
        "per op: a linear has two, a quantize and a GEMM. With 1 linear they bear the fixed cost of a call."
    )
    return table


@torch.no_grad()
def _row(recipe: str, depth: int, repeats: int) -> list[float]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in range(depth))).eval()
    x = torch.randn(SIZE, SIZE)
    with _recorded() as calls:
        net = steelyard.compile(model, recipe)
        net(x)
        calls.clear()
        expected = net(x)
    assert len(calls) == 2 * depth
    # The recorded calls use the same memory again, so it must still exist: `x`, `expected` and the net's own.
    net = steelyard.compile(model, recipe).lower(x)
    frozen = net.freeze(x)
    works = (lambda: net(x), lambda: frozen(x), lambda: _replay(calls), lambda: model(x))
    compiled, by_frozen, kernels, eager = (median_seconds(work, repeats) * 1e6 for work in works)
    del expected
    overhead = compiled - kernels
    return [eager, compiled, by_frozen, kernels, overhead, overhead / (2 * depth)]


def _replay(calls: list[tuple[Callable, tuple]]) -> None:
    for run, values in calls:
        run(*values)


@contextmanager
def _recorded() -> Iterator[list[tuple[Callable, tuple]]]:
    """The kernels that programs call, with their arguments."""
    calls: list[tuple[Callable, tuple]] = []
    original = bound.bind

    def bind_recorded(call, quantizers):
        run, allocate = original(call, quantizers)

        def recorded(*values):
            calls.append((run, values))
            return run(*values)

        return recorded, allocate

    bound.bind = bind_recorded
    # Calls on a tape are seen by no Python.
    os.environ["STEELYARD_TAPE"] = "0"
    try:
        yield calls
    finally:
        del os.environ["STEELYARD_TAPE"]
        bound.bind = original
