"""`net.profile`: what each step of a call takes, from real runs."""

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from steelyard.errors import SteelyardError, shown
from steelyard.files import write_file
from steelyard.insight.table import format_table
from steelyard.runtime.profiling import Timed, timed

_TORCH = "torch "
_FEWEST_SHARE = 0.005
"""Rows that take less of a call are summed up in the table."""


@dataclass(frozen=True)
class ProfileRow:
    """What one kernel, or one op of torch's, takes in a call."""

    kernel: str
    layer: str
    calls: int
    microseconds: float
    """Of all its calls together, in one call of the net."""
    share: float
    """Of the time of that call."""

    @property
    def is_native(self) -> bool:
        """Whether it is a kernel of ours, and no op of torch's."""
        return not self.kernel.startswith(_TORCH)


class Profile(str):
    """A table of where the time of a call goes, the longest first.

    `rows` has a row per kernel and layer, in the order of the program; `milliseconds` is what a call takes, measured
    without timing its steps.
    """

    rows: list[ProfileRow]
    milliseconds: float
    _steps: list[Timed]

    def __new__(cls, rows: list[ProfileRow], milliseconds: float, steps: list[Timed]):
        text = super().__new__(cls, "\n".join(_text(rows, milliseconds)))
        text.rows = rows
        text.milliseconds = milliseconds
        text._steps = steps
        return text

    def by_layer(self) -> dict[str, float]:
        """Microseconds of each layer."""
        return _summed(self.rows, lambda row: row.layer)

    def by_kernel(self) -> dict[str, float]:
        """Microseconds of each kernel, and of each op of torch's."""
        return _summed(self.rows, lambda row: row.kernel)

    def to_json(self) -> str:
        """The rows as JSON."""
        return json.dumps([asdict(row) for row in self.rows], indent=1)

    def save_trace(self, path: str | Path) -> None:
        """Write the steps of one call as a trace that Chrome's tracing page and Perfetto open."""
        if not isinstance(path, str | Path):
            raise SteelyardError(f"path must be the path of a file, got {shown(path)}")
        first = self._steps[0].begin if self._steps else 0
        events = [
            {
                "name": step.name.kernel,
                "cat": "torch" if step.name.kernel.startswith(_TORCH) else "kernel",
                "ph": "X",
                "ts": (step.begin - first) / 1e3,
                "dur": (step.end - step.begin) / 1e3,
                "pid": 0,
                "tid": 0,
                "args": {"layer": step.name.layer},
            }
            for step in self._steps
        ]
        write_file(Path(path), json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}).encode())


def profile(call: Callable[[], Any], calls: int) -> Profile:
    """Time the steps of some calls: a step takes the median of what it took in each."""
    if not isinstance(calls, int) or isinstance(calls, bool) or calls < 1:
        raise SteelyardError(f"calls must be a number of calls above 0, got {shown(calls)}")
    call()
    whole = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        whole.append(time.perf_counter_ns() - begin)
    runs = time_steps(call, calls)
    if len({len(run) for run in runs}) > 1:
        raise SteelyardError(
            "the steps of a call must be the same in each, and these calls ran "
            f"{' and '.join(sorted({str(len(run)) for run in runs}))} steps; profile calls with arguments of one shape"
        )
    milliseconds = statistics.median(whole) / 1e6
    return Profile(rows_of(runs, milliseconds), milliseconds, runs[-1])


def time_steps(call: Callable[[], Any], calls: int) -> list[list[Timed]]:
    """The steps of some calls."""
    runs = []
    for _ in range(calls):
        with timed() as watch:
            call()
        runs.append(watch.calls)
    return runs


def rows_of(runs: Sequence[Sequence[Timed]], milliseconds: float) -> list[ProfileRow]:
    """A row per kernel and layer, of runs with the same steps; each step takes the median of what it took."""
    spent: dict[tuple[str, str], float] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for steps in zip(*runs, strict=True):
        key = steps[0].name.kernel, steps[0].name.layer
        spent[key] = spent.get(key, 0.0) + statistics.median(step.end - step.begin for step in steps) / 1e3
        counts[key] += 1
    return [
        ProfileRow(kernel, layer, counts[kernel, layer], taken, taken / (milliseconds * 1e3))
        for (kernel, layer), taken in spent.items()
    ]


def _summed(rows: Sequence[ProfileRow], key: Callable[[ProfileRow], str]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for row in rows:
        sums[key(row)] = sums.get(key(row), 0.0) + row.microseconds
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def _text(rows: Sequence[ProfileRow], milliseconds: float) -> list[str]:
    ordered = sorted(rows, key=lambda row: -row.microseconds)
    shown_rows = [row for row in ordered if row.share >= _FEWEST_SHARE]
    cells = [
        [row.kernel, row.layer, str(row.calls), f"{row.microseconds:,.1f}", f"{row.share:.1%}"] for row in shown_rows
    ]
    others = ordered[len(shown_rows) :]
    if others:
        taken, share = sum(row.microseconds for row in others), sum(row.share for row in others)
        cells.append(
            [f"{len(others)} others", "", str(sum(row.calls for row in others)), f"{taken:,.1f}", f"{share:.1%}"]
        )
    kernels = sum(row.microseconds for row in rows if row.is_native) / 1e3
    torch_ops = sum(row.microseconds for row in rows if not row.is_native) / 1e3
    rest = max(milliseconds - kernels - torch_ops, 0.0)
    parts = f"{kernels:.3f} in kernels, {torch_ops:.3f} in torch's ops, {rest:.3f} around them"
    lines = format_table(["step", "layer", "calls", "us", "share"], cells)
    return [*lines, f"a call takes {milliseconds:.3f} ms: {parts}"]


def run_with_backward(
    net: torch.nn.Module, loss: Callable[[Any], torch.Tensor], arguments: tuple, keywords: dict
) -> None:
    """A training step without its optimizer, which leaves no gradients behind."""
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    value = loss(net(*arguments, **keywords))
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise SteelyardError(f"loss must make one number of what the net returns, got {shown(value)}")
    torch.autograd.grad(value, parameters, allow_unused=True)
