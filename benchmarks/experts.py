"""A layer of experts beside eager torch: a Mixtral layer of half the width, by transformers' own code."""

from functools import partial

import peers
import torch
from contest import compete, contest_table
from machine import thread_counts
from models import millions
from report import Table

EXPERTS, PER_TOKEN = 8, 2
AIMS = {512: {"steelyard mxfp8": 1.0, "steelyard nvfp4": 1.5}, 1: {"steelyard nvfp4": 4.0}}


def measure(quick: bool = False) -> Table:
    """One row per contender, number of tokens and number of threads."""
    table = contest_table("A layer of experts, inference", "eager fp32")
    table.notes.append("eager fp32: transformers with experts_implementation='grouped_mm', its default.")
    width, hidden = (512, 1792) if quick else (2048, 7168)
    layer = _layer(width, hidden)
    for threads in (1,) if quick else thread_counts():
        for tokens, aims in AIMS.items():
            torch._dynamo.reset()
            inputs = (torch.randn(1, tokens, width),)
            makers = {
                "eager fp32": partial(peers.eager, layer, inputs),
                **{f"steelyard {recipe}": partial(peers.ours, layer, inputs, recipe) for recipe in peers.RECIPES},
            }
            work = f"{EXPERTS} experts, {PER_TOKEN} per token, {millions(layer)}, {tokens} token{'s' * (tokens > 1)}"
            compete(table, work, threads, makers, calls=9, seconds=0.5 if quick else 3.0, aims=aims)
    return table


def _layer(width: int, hidden: int) -> torch.nn.Module:
    """The sparse MLP of a Mixtral layer with random weights."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=width, intermediate_size=hidden, num_local_experts=EXPERTS, num_experts_per_tok=PER_TOKEN
    )
    config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    layer = MixtralSparseMoeBlock(config).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, 0.02)
    return layer
