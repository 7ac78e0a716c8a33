"""What a model returns, beside what it returns in float32."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from steelyard.errors import UnsupportedModelError
from steelyard.insight.results import OutputError
from steelyard.insight.statistics import relative_error, snr_db

_ELEMENTS = 1 << 17
"""Numbers that are compared at once: as many as a core's cache holds in float64."""


def find_output(returned: Any, logits: bool | None) -> tuple[torch.Tensor, bool]:
    """The tensor by which a model's results are compared, and whether it is logits.

    That is `.logits` where there is one, otherwise the first floating-point tensor. `logits` says what the user knows.
    """
    named = returned.get("logits") if isinstance(returned, Mapping) else getattr(returned, "logits", None)
    if isinstance(named, torch.Tensor):
        return named, logits is not False
    for leaf in pytree.tree_leaves(dict(returned) if isinstance(returned, Mapping) else returned):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf, bool(logits)
    raise UnsupportedModelError(
        "a model whose error is measured must return a floating-point tensor, also in a tuple or a dict, got "
        f"{type(returned).__name__}"
    )


def find_loss(returned: Any) -> torch.Tensor | None:
    """The loss that a model returns: `.loss`, or its only result if that is one number."""
    loss = returned.get("loss") if isinstance(returned, Mapping) else getattr(returned, "loss", None)
    loss = returned if loss is None else loss
    return loss if isinstance(loss, torch.Tensor) and loss.dim() == 0 and loss.is_floating_point() else None


class OutputTotal:
    """The errors of a model's outputs, over all batches."""

    def __init__(self):
        self.square_sum = 0.0
        self.error_square_sum = 0.0
        self.divergence: float | None = None
        """The sum of the KL divergences of all positions; None where outputs are no logits."""
        self.positions = 0
        self._losses: list[tuple[float, float]] = []

    def add(self, found: torch.Tensor, wanted: torch.Tensor, *, is_logits: bool) -> None:
        """Count the output of one batch, beside what it is in float32."""
        if found.shape != wanted.shape:
            raise UnsupportedModelError(
                f"the outputs of the net and of its model must have one shape, got {tuple(found.shape)} and "
                f"{tuple(wanted.shape)}; call them with what makes them so, such as a fixed seed"
            )
        for own, exact in _pieces(found.detach().reshape(-1), wanted.detach().reshape(-1)):
            self.square_sum += float(exact.square().sum())
            self.error_square_sum += float((own - exact).square().sum())
        if is_logits and wanted.dim():
            self.divergence = (self.divergence or 0.0) + kl_divergence(found, wanted)
            self.positions += wanted.shape[:-1].numel()

    def add_loss(self, found: float, wanted: float) -> None:
        """Count the loss of one batch."""
        self._losses.append((found, wanted))

    def error(self) -> float | None:
        """The KL divergence per position where outputs are logits, otherwise the relative error."""
        if self.divergence is not None:
            return self.divergence / self.positions if self.positions else None
        return self._relative_error()

    def _relative_error(self) -> float | None:
        # An output that is not finite is no missing one.
        is_finite = math.isfinite(self.error_square_sum)
        return relative_error(self.error_square_sum, self.square_sum) if is_finite else self.error_square_sum

    def result(self) -> OutputError:
        """The errors of all batches."""
        errors = self.error_square_sum, self.square_sum
        loss, exact = (
            (math.fsum(pair[side] for pair in self._losses) / len(self._losses)) if self._losses else None
            for side in (0, 1)
        )
        return OutputError(
            relative_error=self._relative_error(),
            snr_db=snr_db(*errors) if math.isfinite(errors[0]) else math.nan,
            kl_divergence=self.divergence / self.positions if self.divergence is not None and self.positions else None,
            loss=loss,
            loss_high_precision=exact,
            loss_difference=None if loss is None or exact is None else loss - exact,
        )


def kl_divergence(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The sum over positions of KL(wanted || found) of the distributions that logits stand for, in nats."""
    total = 0.0
    rows = (x.detach().reshape(-1, x.shape[-1]) for x in (found, wanted))
    for own, exact in _pieces(*rows):
        log_own, log_exact = (x.log_softmax(-1) for x in (own, exact))
        # Logits of -inf have probability 0, and count for nothing.
        terms = torch.where(log_exact == -math.inf, 0.0, log_exact.exp() * (log_exact - log_own))
        total += float(terms.sum())
    return total


def _pieces(found: torch.Tensor, wanted: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both in float64, some rows at a time."""
    rows = max(1, _ELEMENTS // max(1, found[:1].numel()))
    for own, exact in zip(found.split(rows), wanted.split(rows), strict=True):
        yield own.double(), exact.double()
