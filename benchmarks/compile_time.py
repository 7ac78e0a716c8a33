"""How long `steelyard.compile` takes a layer, beside torch.compile's inductor on the same model."""

import time

import torch
from report import Table, progress
from torch import nn

import steelyard
from steelyard.tools.demo import Block

WIDTH = 256


def measure(quick: bool = False) -> Table:
    """A row a depth: seconds of the first call, which compiles."""
    depths = (2, 8) if quick else (2, 6, 12, 24, 48)
    columns = ["layers", "steelyard s", "of it in MLIR", "inductor s", "steelyard / inductor"]
    table = Table("Compile time of a GPT, first call (mxfp8 beside inductor in fp32)", columns)
    seconds = {}
    for name in ("steelyard", "inductor"):
        # The first compilation of a process loads what all later ones share.
        progress(f"warming {name} up")
        _first_call(1, name)
    for depth in depths:
        progress(f"compiling {depth} layers")
        ours, passes = _first_call(depth, "steelyard")
        inductor, _ = _first_call(depth, "inductor")
        seconds[depth] = ours
        table.rows.append([str(depth), ours, f"{passes:.0%}", inductor, ours / inductor])
    progress("")
    first, last = depths[0], depths[-1]
    slope = (seconds[last] - seconds[first]) / (last - first)
    table.notes.append(f"{slope * 1e3:.0f} ms a layer between {first} and {last} layers.")
    return table


def _first_call(depth: int, compiler: str) -> tuple[float, float]:
    """Seconds of the first call, and the share of it that the MLIR stages took."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(*(Block() for _ in range(depth))).eval()
    x = torch.randn(2, 16, WIDTH)
    net = steelyard.compile(model, "mxfp8") if compiler == "steelyard" else torch.compile(model, backend=compiler)
    start = time.perf_counter()
    with torch.no_grad():
        net(x)
    total = time.perf_counter() - start
    if compiler != "steelyard":
        return total, 0.0
    return total, sum(c.seconds for c in net._steelyard.backend.compilations) / total
