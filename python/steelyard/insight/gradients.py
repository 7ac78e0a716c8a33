"""The gradients of a model's parameters, beside those of the model in float32."""

import math
from collections.abc import Mapping

import torch

from steelyard.insight.results import ParameterGradient
from steelyard.insight.statistics import relative_error


class GradientTotal:
    """The sums of each parameter's gradients, over all batches."""

    def __init__(self):
        self._sums: dict[str, tuple[float, float, float, float]] = {}
        """By parameter: of both gradients the sums of squares, of their products, and of the squares of differences."""

    def add(self, found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
        """Count the gradients of one batch, beside what they are in float32; parameters that lack one are left out."""
        for name in found.keys() & wanted.keys():
            own, exact = (one[name].detach().to_dense().double().flatten() for one in (found, wanted))
            squares = [float(torch.dot(one, one)) for one in (own, exact, own - exact)]
            new = squares[0], squares[1], float(torch.dot(own, exact)), squares[2]
            before = self._sums.get(name, (0.0, 0.0, 0.0, 0.0))
            self._sums[name] = before[0] + new[0], before[1] + new[1], before[2] + new[2], before[3] + new[3]

    def result(self) -> list[ParameterGradient]:
        """One entry per parameter, by name."""
        rows = []
        for name, (own, exact, products, differences) in sorted(self._sums.items()):
            norms = math.sqrt(own * exact)
            cosine = products / norms if norms > 0 else None
            rows.append(
                ParameterGradient(name, cosine, relative_error(differences, exact), math.sqrt(own), math.sqrt(exact))
            )
        return rows
