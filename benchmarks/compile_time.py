"""How long `steelyard.compile` takes per layer and in which step, beside inductor, and what the result holds."""

import gc
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from report import Table, progress
from torch import nn

import steelyard
from steelyard.driver import backend, compilation, stages
from steelyard.tools.demo import Block

WIDTH = 256
STEPS = {
    "import": (backend, ("import_graph",)),
    **{name: (stages, (f"make_{name}",)) for name in stages.STAGES if hasattr(stages, f"make_{name}")},
    "print": (compilation, ("print_module",)),
}


def measure(quick: bool = False) -> Table:
    """One row per depth: seconds of the first call, which compiles, and the share of each step."""
    depths = (2, 8) if quick else (2, 6, 12, 24, 48)
    columns = ["layers", "steelyard s", "capture", *STEPS, "inductor s", "speed, inductor = 1", "held MB", "RSS MB"]
    table = Table("Compile time of a GPT, first call (mxfp8 beside inductor in fp32)", columns)
    seconds: dict[int, float] = {}
    inductor: dict[int, float] = {}
    for name in ("steelyard", "inductor"):
        # The first compilation of a process loads what all later ones share.
        progress(f"warming {name} up")
        _first_call(1, name)
    for depth in depths:
        progress(f"compiling {depth} layers")
        seconds[depth], shares, held, grown = _measured_call(depth)
        inductor[depth], *_ = _first_call(depth, "inductor")
        ratio = inductor[depth] / seconds[depth]
        percents = [f"{share / seconds[depth]:.0%}" for share in shares.values()]
        table.rows.append([str(depth), seconds[depth], *percents, inductor[depth], ratio, held, grown])
    progress("")
    table.notes.append(_slopes("steelyard", seconds))
    table.notes.append(_slopes("inductor", inductor))
    table.notes.append("held: quantized weights and work memory by net.memory(). RSS: how much the process grew.")
    return table


def _slopes(name: str, seconds: dict[int, float]) -> str:
    depths = list(seconds)
    pairs = list(itertools.pairwise(depths))
    slopes = [(seconds[b] - seconds[a]) / (b - a) * 1e3 for a, b in pairs]
    words = [f"{a} to {b}: {slope:.0f}" for (a, b), slope in zip(pairs, slopes, strict=True)]
    return f"{name}, ms per layer from {', '.join(words)}."


def _measured_call(depth: int) -> tuple[float, dict[str, float], float, float]:
    """Seconds in total and of each step, and megabytes: what the net says it holds, and how much the process grew."""
    spent: dict[str, float] = dict.fromkeys(("capture", *STEPS), 0.0)
    with _timed(spent):
        total, net, grown = _first_call(depth, "steelyard")
    spent["capture"] = total - sum(spent.values())
    memory = net.memory()
    return total, spent, (sum(memory.values()) - memory["parameters"]) / 1e6, grown


@contextmanager
def _timed(spent: dict[str, float]) -> Iterator[None]:
    """Add up the time that each step takes."""
    originals = [(module, name, getattr(module, name)) for module, names in STEPS.values() for name in names]
    for step, (module, names) in STEPS.items():
        for name in names:
            setattr(module, name, _timer(getattr(module, name), step, spent))
    try:
        yield
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


def _timer(function: Any, step: str, spent: dict[str, float]) -> Any:
    def timed(*arguments, **keywords):
        start = time.perf_counter()
        try:
            return function(*arguments, **keywords)
        finally:
            spent[step] += time.perf_counter() - start

    return timed


def _first_call(depth: int, compiler: str) -> tuple[float, Any, float]:
    """Seconds of the first call, the net, and how many megabytes the process grew."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(*(Block() for _ in range(depth))).eval()
    x = torch.randn(2, 16, WIDTH)
    net = steelyard.compile(model, "mxfp8") if compiler == "steelyard" else torch.compile(model, backend=compiler)
    before = _resident_bytes()
    start = time.perf_counter()
    # Inductor caches on disk what it has compiled.
    with torch.no_grad(), torch.compiler.config.patch(force_disable_caches=True):
        net(x)
    total = time.perf_counter() - start
    return total, net, (_resident_bytes() - before) / 1e6


def _resident_bytes() -> int:
    gc.collect()
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096
