"""Speed of SmolLM2-135M in the formats that tuning chooses among, lm_head in float32: a prompt, and one token.

What a weight is rounded to changes no time, so the nets are those of plain recipes.
"""

import torch
from contest import Contender, Maker, compete, contest_table
from decoding import Step
from report import Table

import steelyard
from steelyard.tools import trained

FORMATS = ("nvfp4-4over6", "nvfp4", "nvfp4-4over6/mxfp8", "nvfp4-4over6/none", "mxfp8")
PROMPT, CACHED = (4, 256), 128


def measure(quick: bool = False) -> Table:
    """One row per work and contender, on one thread."""
    table = contest_table("SmolLM2-135M in the formats of tuning, lm_head in float32", "eager")
    model = trained.load().model
    rows, length = (1, 64) if quick else PROMPT
    tokens = torch.arange(rows * length).remainder(1000).reshape(rows, length) + 100
    prompts: dict[str, Maker] = {"eager": lambda: Contender(lambda: model(tokens, use_cache=False).logits)}
    for name in FORMATS:
        net = steelyard.compile(model, name, overrides=trained.OVERRIDES)
        prompts[name] = lambda net=net: Contender(lambda: net(tokens, use_cache=False).logits)
    compete(table, f"prompt of {rows} x {length}", 1, prompts, calls=5, seconds=8.0)

    arguments, step = _step(model)
    steps: dict[str, Maker] = {"eager": lambda: Contender(lambda: step(*arguments))}
    for name in FORMATS:
        net = steelyard.compile(step, name, overrides={"*lm_head": None})
        steps[f"{name}, frozen"] = lambda net=net: _frozen(net, arguments)
    compete(table, f"1 token after {CACHED}", 1, steps, calls=3 if quick else 30, seconds=4.0)
    return table


def _step(model) -> tuple[tuple[torch.Tensor, ...], Step]:
    """A step that continues a text, and what it is called with."""
    config = model.config
    torch.manual_seed(0)
    shape = (1, config.num_key_value_heads, CACHED, config.hidden_size // config.num_attention_heads)
    caches = [torch.randn(shape) for _ in range(2 * config.num_hidden_layers)]
    return (torch.tensor([[5]]), torch.tensor([[CACHED]]), *caches), Step(model).eval()


def _frozen(net, arguments: tuple[torch.Tensor, ...]) -> Contender:
    frozen = net.freeze(*arguments)
    return Contender(lambda: frozen(*arguments))
