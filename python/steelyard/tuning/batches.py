"""Calibration batches: how a model is called with one, and what of its output counts."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from steelyard.errors import UnsupportedModelError

_ROWS = 128
"""How many rows of logits are decoded in float64 at a time: a vocabulary is large."""

Batch = Any
"""What a model is called with: a tensor, a tuple of positional arguments, or a mapping of keywords."""


def as_list(batches: Iterable[Batch], what: str = "batches") -> list[Batch]:
    """The batches; raises where there are none."""
    is_one = isinstance(batches, torch.Tensor | Mapping | str)
    found = [] if is_one or not isinstance(batches, Iterable) else list(batches)
    # Mappings of other kinds, such as a tokenizer's, are seen into as dicts are.
    found = [dict(each) if isinstance(each, Mapping) else each for each in found]
    if not found:
        got = f"one {type(batches).__name__}" if is_one else "none"
        raise UnsupportedModelError(
            f"{what} must be a list of what the model is called with, each a tensor, a tuple of arguments or a dict "
            f"of keywords, got {got}; a few thousand tokens of the model's own kind of text will do"
        )
    return found


def call(model: nn.Module, batch: Batch) -> Any:
    """Call a model with a batch."""
    if isinstance(batch, torch.Tensor):
        return model(batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch)


def copied(values: Any) -> Any:
    """Arguments of a call that it may write to."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, values)


def output_of(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, bool]:
    """What a model computes from a batch, and whether that is logits, whose softmax counts."""
    made = call(model, batch)
    logits = getattr(made, "logits", None)
    if isinstance(logits, torch.Tensor):
        return logits, True
    hidden = getattr(made, "last_hidden_state", None)
    found = hidden if hidden is not None else made
    while isinstance(found, tuple | list) and found:
        found = found[0]
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        raise UnsupportedModelError(
            "a model that is tuned must return a tensor, a tuple that begins with one, or an output of transformers "
            f"with logits or last_hidden_state, got {type(made).__name__}; wrap it in a module that does"
        )
    return found, False


def divergence(output: torch.Tensor, exact: torch.Tensor, *, is_logits: bool) -> float:
    """How far an output is from that in high precision.

    Of logits, the mean KL divergence per row; of anything else, the squared error as a part of the squared values.
    """
    if not is_logits:
        return float((output - exact).double().square().sum() / exact.double().square().sum().clamp(min=1e-300))
    total, rows = 0.0, [each.flatten(0, -2).split(_ROWS) for each in (output, exact)]
    for parts in zip(*rows, strict=True):
        ours, theirs = (functional.log_softmax(part.double(), -1) for part in parts)
        total += float(functional.kl_div(ours, theirs, log_target=True, reduction="sum"))
    return total / exact.shape[:-1].numel()


@contextmanager
def for_inference(model: nn.Module) -> Iterator[None]:
    """A model in eval mode that keeps no caches of keys and values, as it was afterwards."""
    trained = [module for module in model.modules() if module.training]
    config = getattr(model, "config", None)
    caches = getattr(config, "use_cache", None)
    try:
        model.eval()
        if caches is not None:
            setattr(config, "use_cache", False)  # noqa: B010
        yield
    finally:
        for module in trained:
            module.training = True
        if caches is not None:
            setattr(config, "use_cache", caches)  # noqa: B010
