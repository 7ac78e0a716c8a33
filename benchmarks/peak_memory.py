"""The largest size of a process that runs a model: while it compiles, and in the calls after that.

    python benchmarks/run.py memory
    python benchmarks/peak_memory.py "GPT 4 x 512, training step" mxfp8

The second command is what a row runs in a process of its own.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from models import GPT, LlamaDecoder
from report import Table, progress
from torch.nn import functional

import steelyard

WAYS = ("eager", "mxfp8", "nvfp4")
CALLS = 8
MEGABYTE = 1e6


def measure(quick: bool = False) -> Table:
    """One row per model and way to run it."""
    columns = ["work", "contender", "parameters MB", "first calls MB", "later calls MB"]
    table = Table("Peak memory", columns, labels=["work", "contender"])
    works = [name for name in WORKS if not quick or "training" in name]
    for work in works:
        for way in WAYS:
            progress(f"{work}, {way}")
            command = [sys.executable, __file__, work, way]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            name = way if way == "eager" else f"steelyard {way}"
            table.rows.append([work, name, *(found[each] / MEGABYTE for each in ("parameters", "first", "later"))])
    progress("")
    table.notes.append("Growth of the process over its size with the model built and the compiler loaded, on 1 thread.")
    table.notes.append("First calls compile and quantize weights, and hold those beside the parameters afterwards.")
    table.notes.append("Later calls: the peak of what is held and of what a call needs for a moment.")
    return table


def _gpt() -> Callable[[], object]:
    model, tokens = GPT().eval(), torch.randint(0, 8192, (1, 512))
    return _inference(model, (tokens,))


def _decoder() -> Callable[[], object]:
    model = LlamaDecoder().eval()
    return _inference(model, model.inputs(cached=2048))


def _inference(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> object:
        return run.net(*inputs)

    run.model = run.net = model
    return run


def _training() -> Callable[[], object]:
    model = GPT(layers=4, width=512, heads=8, vocabulary=1024)
    tokens, wanted = torch.randint(0, 1024, (4, 128)), torch.randint(0, 1024, (4, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def run() -> object:
        optimizer.zero_grad()
        loss = functional.cross_entropy(run.net(tokens).flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()
        return loss

    run.model = run.net = model
    return run


WORKS = {
    "GPT 12 x 768, 512 tokens": _gpt,
    "Llama decode, 302 M, 1 token after 2048": _decoder,
    "GPT 4 x 512, training step": _training,
}


def main(work: str, way: str) -> None:
    """Print what one way to run a model takes, in bytes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = WORKS[work]()
    parameters = sum(p.nbytes for p in run.model.parameters())
    if way != "eager":
        _load_compiler(way)
        run.net = steelyard.compile(run.model, way)
    before = _size("VmRSS")
    first, later = _peak(run), _peak(run)
    print(json.dumps({"parameters": parameters, "first": first - before, "later": later - before}))


def _load_compiler(recipe: str) -> None:
    """Have all modules imported that compile something, so that they do not count."""
    small = torch.nn.Linear(32, 32)
    steelyard.compile(small, recipe)(torch.randn(4, 32)).sum().backward()


def _peak(run: Callable[[], object]) -> int:
    """The largest size of this process in some calls."""
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(CALLS):
        run()
    return _size("VmHWM")


def _size(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, f"/proc/self/status must have {name}"
    return int(found[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
