"""A language model that writes one token at a time, and a linear of one token, beside eager float32.

A step has its cache as arguments, so that it can be frozen, and so that each call does the same work.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import peers
import torch
from contest import Contender, Maker, compete, contest_table
from machine import thread_counts
from report import Table
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer

import steelyard

RECIPE = "nvfp4"
CACHED = (128, 2048)
LINEAR = 4096
LLAMA_AIMS = {128: 6.0, 2048: 4.0}
LINEAR_AIMS = {"nvfp4": 5.5, "fp8-current": 3.0, "mxfp8": 2.7}
OURS, FROZEN = f"steelyard {RECIPE}", f"steelyard {RECIPE}, frozen"
FROZEN_NOTE = "frozen: by `net.freeze`, with the same results. All linears are quantized, the head too."


class Step(nn.Module):
    """A model that continues a text of which it gets the keys and values of each layer."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, position: torch.Tensor, *cached: torch.Tensor) -> torch.Tensor:
        """The logits of the next token."""
        cache = DynamicCache()
        for key, value in zip(cached[::2], cached[1::2], strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(key, value)
            # Not by `update`, which would copy them.
            layer.keys, layer.values = key, value
            cache.layers.append(layer)
        return self.model(token, position_ids=position, past_key_values=cache, use_cache=True).logits


def measure(quick: bool = False) -> Table:
    """One row per work, threads and contender."""
    table = contest_table("Decoding of a Llama with random weights, and a linear of one token", "eager")
    table.notes.append(FROZEN_NOTE)
    table.notes.append("The error of a Llama with random weights and caches says nothing about trained ones.")
    _measure_linear(table, quick)
    llama = _make_llama(4 if quick else 20)
    for cached in CACHED[:1] if quick else CACHED:
        torch.manual_seed(0)
        work = f"Llama of {_millions(llama)} M, 1 token after {cached}"
        arguments = torch.tensor([[5]]), torch.tensor([[cached]]), *_random_cache(llama, cached)
        makers = step_makers(Step(llama).eval(), arguments)
        compete_on_threads(table, work, makers, {FROZEN: LLAMA_AIMS[cached]}, quick)
    return table


def _measure_linear(table: Table, quick: bool) -> None:
    size = LINEAR // 4 if quick else LINEAR
    torch.manual_seed(0)
    model, x = nn.Linear(size, size, bias=False).eval(), torch.randn(1, size)
    makers: dict[str, Maker] = {"eager": partial(peers.eager, model, (x,))}
    for recipe in LINEAR_AIMS:
        makers[f"steelyard {recipe}"] = partial(ours, steelyard.compile(model, recipe), (x,))
    aims = {f"steelyard {recipe}": aim for recipe, aim in LINEAR_AIMS.items()}
    compete_on_threads(table, f"linear {size} x {size}, 1 token", makers, aims, quick)


def _random_cache(model: Any, cached: int) -> list[torch.Tensor]:
    config = model.config
    shape = 1, config.num_key_value_heads, cached, config.hidden_size // config.num_attention_heads
    return [torch.randn(shape) for _ in range(2 * config.num_hidden_layers)]


def step_makers(step: Step, arguments: tuple) -> dict[str, Maker]:
    """Eager, compiled and frozen."""
    net = compiled(step)
    return {
        "eager": partial(peers.eager, step, arguments),
        OURS: partial(ours, net, arguments),
        FROZEN: partial(ours, net, arguments, freeze=True),
    }


def compiled(model: nn.Module, **options: Any) -> Any:
    """A net of a language model whose linears are all quantized."""
    return steelyard.compile(model, RECIPE, overrides={"*lm_head": RECIPE}, **options)


def ours(net: Any, arguments: tuple, *, freeze: bool = False) -> Contender:
    """A net, which holds the parameters beside the quantized weights."""
    net(*arguments)
    memory = net.memory()
    run: Callable[..., torch.Tensor] = net.freeze(*arguments) if freeze else net
    return Contender(lambda: run(*arguments), memory["parameters"] + memory["quantized_weights"])


def compete_on_threads(table: Table, work: str, makers: dict[str, Maker], aims: dict[str, float], quick: bool) -> None:
    """Rows for one thread, which has the aims, and for all."""
    calls, seconds = (3, 1.0) if quick else (30, 8.0)
    for threads in thread_counts():
        own = aims if threads == 1 else None
        compete(table, work, threads, makers, calls=calls, seconds=seconds, aims=own)


def _make_llama(layers: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


def _millions(model: nn.Module) -> int:
    return round(sum(parameter.numel() for parameter in model.parameters()) / 1e6)
