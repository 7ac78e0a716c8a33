"""What the functions of programs measured, kept by function and by what it is of."""

import math
from collections.abc import Mapping

import torch

from steelyard.formats.statistics import INFLUENCE_FIELDS
from steelyard.insight.results import GemmMeasurement
from steelyard.insight.statistics import (
    Total,
    fields_of,
    gradient_measurement,
    operand_measurement,
    relative_error,
    snr_db,
)

_RESULT, _INFLUENCE = "result", "influence"


class Collector:
    """The numbers of some calls."""

    def __init__(self):
        self._totals: dict[object, dict[str, Total]] = {}
        """By function, and by the name of what is measured."""
        self.steps = 0

    def add(self, function: object, measures: Mapping[str, torch.Tensor]) -> None:
        """Take what one call of a function measured."""
        totals = self._totals.setdefault(function, {})
        for name, numbers in measures.items():
            side = name.rpartition(":")[2].split(" ")[0]
            fields = INFLUENCE_FIELDS if side == _INFLUENCE else fields_of(side)
            totals.setdefault(name, Total(fields)).add(numbers)

    def has(self, functions: list) -> bool:
        """Whether one of some functions measured anything."""
        return any(function in self._totals for function in functions)

    def fill(self, row: GemmMeasurement, functions: list) -> GemmMeasurement:
        """A row of a GEMM with what some functions measured of it."""
        prefix = f"{row.layer}:{row.kind}:{row.number}:"
        found = [
            (name.removeprefix(prefix), total)
            for function in functions
            for name, total in self._totals.get(function, {}).items()
            if name.startswith(prefix)
        ]
        for what, total in sorted(found, key=lambda pair: pair[0]):
            row.calls = max(row.calls, total.calls)
            if what == _RESULT:
                _fill_result(row, total)
            elif what != _INFLUENCE:
                _, role, usage, scheme = what.split(" ", 3)
                row.operands.append(operand_measurement(total, role, usage, scheme))
        _fill_sizes(row, dict(found))
        return row

    def influences(self) -> dict[str, float]:
        """By layer, the sum of the squares by which errors move the loss."""
        sums: dict[str, float] = {}
        for totals in self._totals.values():
            for name, total in totals.items():
                if name.endswith(f":{_INFLUENCE}"):
                    layer = name.rsplit(":", 3)[0]
                    sums[layer] = sums.get(layer, 0.0) + total["square_sum"]
        return sums


def _fill_result(row: GemmMeasurement, total: Total) -> None:
    errors = total["error_square_sum"], total["square_sum"]
    row.relative_error, row.snr_db = relative_error(*errors), snr_db(*errors)
    row.max_error = total["max_error"] if total["elements"] else None
    if row.kind != "fprop":
        row.gradient = gradient_measurement(total)


def _fill_sizes(row: GemmMeasurement, found: dict[str, Total]) -> None:
    """Find sizes that were not known when the graph was compiled, -1 so far, by the elements of the last call."""
    elements = {what.split(" ")[0]: int(total.last[0]) for what, total in found.items()}
    sides = {"result": (0, 1), "lhs": (0, 2), "rhs": (1, 2)}
    # One size that is found may be what the other side of another pair needs.
    for _ in range(2):
        for side, pair in sides.items():
            unknown = [dim for dim in pair if row.shape[dim] == -1]
            known = [row.shape[dim] for dim in pair if row.shape[dim] > 0]
            if len(unknown) == len(known) == 1 and side in elements:
                row.shape[unknown[0]] = elements[side] // known[0]
                row.flops = 2 * math.prod(row.shape)
