"""Alarms: a layer whose values saturate, whose scale collapses, or whose gradient underflows, while a net trains."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from steelyard.errors import RecipeError, shown
from steelyard.insight.results import GemmMeasurement, Measurement, OperandMeasurement


@dataclass(frozen=True)
class Alarm:
    """Something that ruins a training run, in one layer and step."""

    what: str
    """`saturation`, `scale`, `underflow` or `not_finite`."""
    layer: str
    kind: str
    """`fprop`, `dgrad` or `wgrad`: the GEMM that reads the operand."""
    role: str
    """`input`, `weight` or `grad_output`: the operand."""
    step: int
    value: float
    threshold: float
    found: str
    """What was found, in words."""
    remedy: str
    """What to do."""

    def __str__(self) -> str:
        return f"step {self.step}, layer '{self.layer}', {self.role} of {self.kind}: {self.found}; {self.remedy}"


@dataclass(frozen=True)
class Watch:
    """What to watch for, for `steelyard.compile(..., watch=Watch(...))`."""

    every: int = 100
    """Every so many calls of the net one is measured."""
    saturation: float = 0.1
    """The largest share of an operand's values that may saturate. NVFP4 saturates some of each block: about 0.03."""
    underflow: float = 0.5
    """The largest share of a gradient's values that may become 0."""
    collapse: float = 2.0**-16
    """How far a scale may fall below the largest that it had. Delayed scales count once they have moved."""
    callback: Callable[[Alarm], Any] | None = None
    """What is called with each alarm. Without it, each layer has a warning, once for each kind of alarm."""

    def __post_init__(self):
        is_number = isinstance(self.every, int) and not isinstance(self.every, bool)
        if not is_number or self.every < 1:
            raise RecipeError(f"every must be a number of calls, at least 1, got {shown(self.every)}")
        for name in ("saturation", "underflow", "collapse"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise RecipeError(f"{name} must be from 0 to 1, got {shown(value)}")
        if self.callback is not None and not callable(self.callback):
            raise RecipeError(f"callback must be a function of an Alarm, got {shown(self.callback)}")


def make_watch(chosen: Any) -> Watch | None:
    """What a user means by `watch`: True, a callback, or a `Watch`; None or False for nothing."""
    if chosen is None or chosen is False:
        return None
    if isinstance(chosen, Watch):
        return chosen
    if chosen is True:
        return Watch()
    if callable(chosen):
        return Watch(callback=chosen)
    raise RecipeError(f"watch must be True, a function of an Alarm, or a steelyard.Watch, got {shown(chosen)}")


class Watcher:
    """Finds alarms in what each step measures; `warn` is told those that no callback is called with."""

    def __init__(self, watch: Watch, warn: Callable[[str], None]):
        self._watch = watch
        self._warn = warn
        self._scales: dict[tuple[str, str, int, str, int], float] = {}
        """The largest scale that each operand had."""
        self._said: set[tuple[str, str, str]] = set()

    def look(self, step: int, measured: Measurement) -> None:
        """Raise the alarms of one step."""
        for row in measured.rows:
            for number, operand in enumerate(row.operands):
                for alarm in self._alarms(step, row, operand, number):
                    self._raise(alarm)

    def _raise(self, alarm: Alarm) -> None:
        if self._watch.callback is not None:
            self._watch.callback(alarm)
            return
        key = alarm.layer, alarm.role, alarm.what
        if key not in self._said:
            self._said.add(key)
            self._warn(str(alarm))

    def _alarms(self, step: int, row: GemmMeasurement, operand: OperandMeasurement, number: int) -> Iterator[Alarm]:
        def alarm(what: str, value: float, threshold: float, found: str, remedy: str) -> Alarm:
            return Alarm(what, row.layer, row.kind, operand.role, step, value, threshold, found, remedy)

        watch, layer = self._watch, row.layer
        other = f'compile with overrides={{"{layer}": None}} to keep the layer in high precision'
        count = operand.nan_count + operand.inf_count
        if count:
            found = f"{operand.nan_count} values are NaN and {operand.inf_count} infinite"
            yield alarm("not_finite", count, 0, found, "find the op before it by check_finite=True, or lower the rate")
        if operand.saturated_share > watch.saturation:
            found = f"{operand.saturated_share:.1%} of the values saturate"
            yield alarm(
                "saturation", operand.saturated_share, watch.saturation, found, f"{_range(operand)}, or {other}"
            )
        if operand.role == "grad_output" and operand.flushed_share > watch.underflow:
            found = f"{operand.flushed_share:.1%} of the gradient becomes 0"
            remedy = f"{_range(operand)}, scale the loss, or {other}"
            yield alarm("underflow", operand.flushed_share, watch.underflow, found, remedy)
        yield from self._collapse(row, operand, number, alarm, other)

    def _collapse(
        self, row: GemmMeasurement, operand: OperandMeasurement, number: int, alarm: Callable[..., Alarm], other: str
    ) -> Iterator[Alarm]:
        """A scale that is 0, not finite, or far below what it was."""
        if not operand.elements or operand.amax == 0 or math.isnan(operand.amax):
            return
        key = row.layer, row.kind, row.number, operand.role, number
        before = self._scales.get(key, 0.0)
        now = operand.scale or 0.0
        if "delayed" in operand.scheme and now == 1 and not before:
            return  # where every delayed scale begins
        self._scales[key] = max(before, now)
        if now == 0 or now < before * self._watch.collapse:
            found = f"its scale is {now:.3g}, and was up to {before:.3g}"
            yield alarm("scale", now, before * self._watch.collapse, found, f"{_range(operand)}, or {other}")


def _range(operand: OperandMeasurement) -> str:
    """What helps where the scale of an operand does not fit its values."""
    if "delayed" in operand.scheme:
        return "its delayed scale does not follow: use fp8-current, or a shorter amax_history_len"
    if "static" in operand.scheme:
        return "its static scale does not fit: measure it again"
    if operand.scheme.startswith(("nvfp4", "mxfp4")):
        return "use mxfp8 for the layer"
    return "use a recipe with scales per block, such as mxfp8, for the layer"
