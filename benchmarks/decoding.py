"""Language models that write one token at a time, and that read a prompt, beside eager float32.

A step has its cache as arguments, so that it can be frozen, and so that each call does the same work.
"""

from collections.abc import Callable
from typing import Any

import torch
from contest import Contender, Maker, compete, contest_table
from report import Table
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import steelyard
from steelyard.errors import FileError
from steelyard.tools import trained

RECIPE = "nvfp4"
CACHED = (128, 2048)
PROMPT = 512
LINEAR = 4096
LLAMA_AIMS = {128: 6.0, 2048: 4.0}
SMALL_AIM, PROMPT_AIM = 5.0, 1.6
LINEAR_AIMS = {"nvfp4": 5.5, "fp8-current": 3.0, "mxfp8": 2.7}
FROZEN = "steelyard, frozen"


class Step(nn.Module):
    """A model that continues a text of which it gets the keys and values of each layer."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, position: torch.Tensor, *cached: torch.Tensor) -> torch.Tensor:
        """The logits of the next token."""
        cache = DynamicCache()
        for layer, (key, value) in enumerate(zip(cached[::2], cached[1::2], strict=True)):
            cache.update(key, value, layer)
        return self.model(token, position_ids=position, past_key_values=cache, use_cache=True).logits


def measure(quick: bool = False) -> Table:
    """One row per work, threads and contender."""
    table = contest_table("Decoding and prefill of language models, and a linear of one token", "eager")
    table.notes.append("frozen: by `net.freeze`, with the same results.")
    for threads in (1, 2):
        _measure_linear(table, threads, quick)
        llama = _make_llama(4 if quick else 20)
        for cached in CACHED[:1] if quick else CACHED:
            work = f"Llama of {_millions(llama)} M, 1 token after {cached}"
            _measure_step(table, work, threads, llama, cached, LLAMA_AIMS[cached], quick)
        try:
            small = trained.load().model
        except FileError as error:
            table.notes.append(f"SmolLM2 missing: {error}")
            continue
        _measure_step(table, "SmolLM2-135M, 1 token after 128", threads, small, 128, SMALL_AIM, quick)
        _measure_prompt(table, threads, small, quick)
    return table


def _measure_linear(table: Table, threads: int, quick: bool) -> None:
    size = LINEAR // 4 if quick else LINEAR
    torch.manual_seed(0)
    model, x = nn.Linear(size, size, bias=False).eval(), torch.randn(1, size)
    makers: dict[str, Maker] = {"eager": lambda: Contender(lambda: model(x))}
    for recipe in LINEAR_AIMS:
        net = steelyard.compile(model, recipe)
        makers[f"steelyard {recipe}"] = lambda net=net: Contender(lambda: net(x))
    aims = {f"steelyard {recipe}": aim for recipe, aim in LINEAR_AIMS.items()}
    _compete(table, f"linear {size} x {size}, 1 token", threads, makers, aims, quick)


def _measure_step(table: Table, work: str, threads: int, model: Any, cached: int, aim: float, quick: bool) -> None:
    config = model.config
    size = config.hidden_size // config.num_attention_heads
    heads, layers = config.num_key_value_heads, config.num_hidden_layers
    torch.manual_seed(0)
    caches = [torch.randn(1, heads, cached, size) for _ in range(2 * layers)]
    arguments = (torch.tensor([[5]]), torch.tensor([[cached]]), *caches)
    step = Step(model).eval()
    net = steelyard.compile(step, RECIPE, overrides={"*lm_head": RECIPE})
    makers: dict[str, Maker] = {
        "eager": lambda: Contender(lambda: step(*arguments)),
        "steelyard": lambda: Contender(lambda: net(*arguments)),
        FROZEN: lambda: Contender(_calling(net.freeze(*arguments), arguments)),
    }
    _compete(table, work, threads, makers, {FROZEN: aim}, quick)


def _measure_prompt(table: Table, threads: int, model: Any, quick: bool) -> None:
    tokens = torch.arange(PROMPT).remainder(1000)[None] + 100
    net = steelyard.compile(model, RECIPE, overrides={"*lm_head": RECIPE})
    makers: dict[str, Maker] = {
        "eager": lambda: Contender(lambda: model(tokens, use_cache=False).logits),
        "steelyard": lambda: Contender(lambda: net(tokens, use_cache=False).logits),
    }
    _compete(table, f"SmolLM2-135M, prompt of {PROMPT}", threads, makers, {"steelyard": PROMPT_AIM}, quick)


def _calling(function: Callable[..., torch.Tensor], arguments: tuple) -> Callable[[], torch.Tensor]:
    return lambda: function(*arguments)


def _compete(
    table: Table, work: str, threads: int, makers: dict[str, Maker], aims: dict[str, float], quick: bool
) -> None:
    calls, seconds = (3, 1.0) if quick else (30, 8.0)
    compete(table, work, threads, makers, calls=calls, seconds=seconds, aims=aims if threads == 1 else None)


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
