"""How long the calls of a net take beside the model's own, and where the time goes."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from steelyard.insight.report import KernelTime, Timing

FEWEST_RUNS, MOST_RUNS = 3, 15
SECONDS = 1.0
"""How long each of both may run beyond the fewest runs."""
_PROFILED_CALLS = 2
_KERNEL, _TORCH = "steelyard ", "aten::"

Call = Callable[[], object]


def time_calls(net: Call, model: Call | None, layers: Collection[str]) -> Timing:
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
    return Timing(
        min(found["net"]),
        min(found["model"]) if model is not None else None,
        len(found["net"]),
        torch.get_num_threads(),
        _profile(net, layers),
    )


def _is_enough(found: Mapping[str, Sequence[float]]) -> bool:
    runs = len(found["net"])
    return runs >= MOST_RUNS or (runs >= FEWEST_RUNS and max(sum(times) for times in found.values()) >= SECONDS)


def _profile(call: Call, layers: Collection[str]) -> list[KernelTime]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(_PROFILED_CALLS):
            call()
    seconds: Counter[tuple[str, str]] = Counter()
    calls: Counter[tuple[str, str]] = Counter()
    for event in _outermost(profiler.events() or ()):
        key = _kernel_and_layer(event.name, layers)
        seconds[key] += event.cpu_time_total / 1e6
        calls[key] += 1
    return [
        KernelTime(kernel, layer, max(1, calls[kernel, layer] // _PROFILED_CALLS), total / _PROFILED_CALLS)
        for (kernel, layer), total in seconds.most_common()
    ]


def _outermost(events) -> Iterator:
    """The kernels of programs and the ops of torch that no other of them contains."""
    for event in events:
        above = event.cpu_parent
        while above is not None and not above.name.startswith((_KERNEL, _TORCH)):
            above = above.cpu_parent
        if above is None and event.name.startswith((_KERNEL, _TORCH)):
            yield event


def _kernel_and_layer(name: str, layers: Collection[str]) -> tuple[str, str]:
    """The two parts of a record's name; a layer's name may have spaces."""
    if not name.startswith(_KERNEL):
        return name.replace("::", "."), ""
    kernel = name.removeprefix(_KERNEL)
    parts = kernel.split(" ")
    for count in range(1, len(parts)):
        layer = " ".join(parts[count:])
        if layer in layers:
            return " ".join(parts[:count]), layer
    return kernel, ""
