"""From the numbers that measuring ops count to what results say."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from steelyard.formats.statistics import (
    COPY_FIELDS,
    MAXIMA,
    PRODUCT_FIELDS,
    SCALE_BINS,
    SMALLEST_EXPONENT,
    finite_codes,
)
from steelyard.insight.results import GradientMeasurement, OperandMeasurement

_MOST_AMAXES = 1024
"""How many amaxes are kept; the oldest go first."""


class Total:
    """The numbers of all calls of one measuring op."""

    def __init__(self, fields: Sequence[str]):
        self._fields = fields
        self._maxima = [index for index, name in enumerate(fields) if name in MAXIMA]
        self._sum: np.ndarray | None = None
        self.last: np.ndarray = np.zeros(len(fields))
        """The numbers of the newest call."""
        self.calls = 0
        self.amaxes: list[float] = []

    def add(self, numbers: torch.Tensor) -> None:
        """Count one call."""
        found = numbers.detach().numpy().copy()
        self.calls += 1
        self.last = found
        if "amax" in self._fields:
            self.amaxes = [*self.amaxes[1 - _MOST_AMAXES :], float(found[self._fields.index("amax")])]
        if self._sum is None:
            self._sum = found
            return
        largest = [np.maximum(self._sum[index], found[index]) for index in self._maxima]
        self._sum = self._sum + found
        self._sum[self._maxima] = largest

    def __getitem__(self, name: str) -> float:
        assert self._sum is not None, "counted at least once"
        return float(self._sum[self._fields.index(name)])

    @property
    def rest(self) -> np.ndarray:
        """What follows the fields."""
        assert self._sum is not None, "counted at least once"
        return self._sum[len(self._fields) :]


def fields_of(side: str) -> Sequence[str]:
    """The fields of what is measured of an operand, or of a result."""
    return PRODUCT_FIELDS if side == "result" else COPY_FIELDS


def relative_error(error_square_sum: float, square_sum: float) -> float | None:
    """The root of a sum of squared errors over that of values; None if there is nothing to compare."""
    if math.isnan(error_square_sum) or (square_sum == 0 and error_square_sum == 0):
        return None
    return math.inf if square_sum == 0 else math.sqrt(error_square_sum / square_sum)


def snr_db(error_square_sum: float, square_sum: float) -> float | None:
    """The ratio of values to errors in decibels, inf where there is no error; None if there is nothing to compare."""
    if math.isnan(error_square_sum) or (square_sum == 0 and error_square_sum == 0):
        return None
    if error_square_sum == 0:
        return math.inf
    return -math.inf if square_sum == 0 else 10 * math.log10(square_sum / error_square_sum)


def operand_measurement(total: Total, role: str, usage: str, scheme: str) -> OperandMeasurement:
    """What quantizing did to an operand."""
    errors = total["error_square_sum"], total["square_sum"]
    elements = total["elements"]
    codes, scales = np.split(total.rest, [len(total.rest) - SCALE_BINS])
    finite = finite_codes(element_of(scheme, len(codes)))
    return OperandMeasurement(
        role=role,
        usage=usage,
        scheme=scheme,
        elements=int(elements),
        snr_db=snr_db(*errors),
        relative_error=relative_error(*errors),
        saturated_share=_share(total["saturated"], elements),
        flushed_share=_share(total["flushed"], elements),
        unused_codes_share=_share(int((codes[finite] == 0).sum()), len(finite)),
        code_histogram=[int(count) for count in codes],
        scale_histogram=_scale_histogram(scales),
        amax=total["amax"],
        amax_history=list(total.amaxes),
        nan_count=int(total["nan_count"]),
        inf_count=int(total["inf_count"]),
        scale=2.0 ** (total["scale_log2_sum"] / total["scale_count"]) if total["scale_count"] else None,
    )


def gradient_measurement(total: Total) -> GradientMeasurement:
    """The gradient that a GEMM computed beside that in high precision."""
    norms = total["square_sum"] * total["result_square_sum"]
    return GradientMeasurement(
        cosine=total["dot"] / math.sqrt(norms) if norms > 0 else None,
        relative_error=relative_error(total["error_square_sum"], total["square_sum"]),
        norm=math.sqrt(total["result_square_sum"]),
        underflow_share=_share(total["underflows"], total["elements"]),
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for less than two values, or where all values of one side are the same."""
    if len(first) < 2:
        return None
    ranks = np.stack([_ranks(np.asarray(each)) for each in (first, second)])
    ranks -= ranks.mean(1, keepdims=True)
    norms = np.sqrt((ranks**2).sum(1)).prod()
    return float((ranks[0] * ranks[1]).sum() / norms) if norms else None


def _ranks(values: np.ndarray) -> np.ndarray:
    """The place of each value among all; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def element_of(scheme: str, codes: int) -> str:
    if codes == 16:
        return "f4E2M1FN"
    return "f8E5M2" if "e5m2" in scheme.lower() else "f8E4M3FN"


def _scale_histogram(counts: np.ndarray) -> list[list[float]]:
    """Each bin that is not empty, by the smallest scale in it."""
    values = [0.0, *(2.0 ** (SMALLEST_EXPONENT + i) for i in range(SCALE_BINS - 2)), math.nan]
    return [[value, float(count)] for value, count in zip(values, counts, strict=True) if count]


def _share(count: float, of: float) -> float:
    return count / of if of else 0.0
