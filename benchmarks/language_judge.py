"""How well a language model in few bits predicts text, for programs of this project and of others: torch alone."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

ROWS = 4
"""How many rows of tokens are predicted at a time."""


@torch.no_grad()
def judge(net: Callable[[torch.Tensor], Any], model: Callable[[torch.Tensor], Any], tokens: torch.Tensor) -> dict:
    """The perplexity of rows of tokens, and the KL divergence to the model in float32."""
    losses, divergences = [], []
    for part in tokens.split(ROWS):
        logits = net(part).logits[:, :-1].flatten(0, 1)
        losses.append(functional.cross_entropy(logits, part[:, 1:].flatten()).item())
        exact = model(part).logits[:, :-1].flatten(0, 1).log_softmax(-1)
        divergences.append(functional.kl_div(logits.log_softmax(-1), exact, log_target=True, reduction="batchmean"))
    return {
        "perplexity": math.exp(sum(losses) / len(losses)),
        "divergence": float(sum(divergences) / len(divergences)),
    }
