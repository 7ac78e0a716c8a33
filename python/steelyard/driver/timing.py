"""How long the calls of a net take beside the model's own, and where the time goes."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from steelyard.driver.profiles import rows_of, time_steps
from steelyard.insight.report import KernelTime, Timing

FEWEST_RUNS, MOST_RUNS = 3, 15
SECONDS = 1.0
"""How long each of both may run beyond the fewest runs."""
_OWN = "steelyard "

Call = Callable[[], object]


def time_calls(net: Call, model: Call | None) -> Timing:
    """Time calls of a net, and of its model if that runs, in turns: what disturbs one disturbs the other."""
    calls = {"net": net} if model is None else {"net": net, "model": model}
    # The first call compiles, and the memory of a call is there from then on.
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    while not _is_enough(found):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - start)
    seconds = min(found["net"])
    exact = min(found["model"]) if model is not None else None
    runs = len(found["net"])
    return Timing(seconds, exact, runs, torch.get_num_threads(), _steps(net, runs, seconds))


def _is_enough(found: Mapping[str, Sequence[float]]) -> bool:
    runs = len(found["net"])
    return runs >= MOST_RUNS or (runs >= FEWEST_RUNS and max(sum(times) for times in found.values()) >= SECONDS)


def _steps(call: Call, calls: int, seconds: float) -> list[KernelTime]:
    runs = time_steps(call, calls)
    # What a model runs may depend on random numbers: those that ran the steps of the last are compared.
    alike = [run for run in runs if [step.name for step in run] == [step.name for step in runs[-1]]]
    return [
        KernelTime(row.kernel.removeprefix(_OWN), row.layer, row.calls, row.microseconds / 1e6)
        for row in rows_of(alike, 1e3 * seconds)
    ]
