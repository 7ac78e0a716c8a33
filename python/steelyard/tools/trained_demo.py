"""`steelyard demo`: the text, speed, size and perplexity of a trained model by several recipes."""

import functools
import itertools
import math
import time
from pathlib import Path
from typing import Any

from torch import nn

import steelyard
from steelyard.driver import progress
from steelyard.tools import trained
from steelyard.tools.console import aligned, announce, indented, show

FLOAT32 = "float32"
RECIPES = ("fp8-row", "mxfp8", "nvfp4-4over6/none", "nvfp4-4over6/mxfp8", "nvfp4/none", "nvfp4", "mxfp4/mxfp8")
PROMPT, NEW_TOKENS, ROUNDS = "The capital of Italy is Rome. The capital of France is", 12, 3
TOKENS = 512
SHOWN, LAYER, STAGE = "mxfp8", "model.layers.0.mlp.up_proj", "quantized"
HEADER = ("recipe", "ms per token", "speed", "GEMM weights", "perplexity", "text")


class Clock:
    """A streamer of `generate`, which is given the prompt, then a token at a time, that knows the shortest step."""

    def __init__(self):
        self.shortest = math.inf
        self._times: list[float] = []

    def put(self, _: Any) -> None:
        self._times.append(time.perf_counter())

    def end(self) -> None:
        steps = [after - before for before, after in itertools.pairwise(self._times[1:])]
        self.shortest = min([self.shortest, *steps])
        self._times.clear()


def run(file: Path) -> int:
    """Load, compile, compare and print, with a line before each step that takes a while."""
    announce(f"loading {file.stem}")
    with progress.doing(lambda: "decoding weights"):
        model = trained.load(file)
    nets = {FLOAT32: model.model}
    for recipe in RECIPES:
        nets[recipe] = steelyard.compile(model.model, recipe, overrides=trained.OVERRIDES)
    perplexities = {name: _perplexity(model, name, net) for name, net in nets.items()}
    # Before anything else is compiled, a net has one graph.
    gemms = f"{nets[SHOWN].explain().shares}\n{nets[SHOWN].ir(STAGE, layer=LAYER)}"
    texts, times = _generate(model, nets)

    def row(name: str) -> tuple[str, ...]:
        speed = f"{times[FLOAT32] / times[name]:.2f}"
        size = f"{_weight_bytes(nets[name]) / 1e6:.0f} MB"
        return name, f"{times[name] * 1e3:.1f}", speed, size, f"{perplexities[name]:.2f}", " ".join(texts[name].split())

    show(f"\n{file.stem} after {PROMPT!r}; perplexity of {TOKENS} tokens of Python's documentation;")
    show(f"lm_head, which is the embedding, stays in {FLOAT32} and is not counted among the GEMM weights;")
    show("ms per token are those of the shortest step, which other programs disturb least:\n")
    show(indented(aligned([HEADER, *map(row, nets)])))
    show(f'\nThe layer {LAYER}: print(net.ir("{STAGE}", layer="{LAYER}"))  [{SHOWN}]\n')
    show(indented(gemms))
    return 0


def _perplexity(model: trained.Trained, name: str, net: Any) -> float:
    code = "" if name == FLOAT32 else f" of steelyard.compile(model, {name!r}, overrides={trained.OVERRIDES})"
    announce(f"perplexity in {name}{code}")
    with progress.doing(lambda: f"reading {TOKENS} tokens in {name}"):
        return trained.perplexity(net, model.tokens(TOKENS))


def _generate(model: trained.Trained, nets: dict[str, Any]) -> tuple[dict[str, str], dict[str, float]]:
    """The text of each net, and its shortest time for a token. They take turns, so that no lull favours one."""
    announce(f"generating {NEW_TOKENS} tokens by each, {ROUNDS} times")
    texts, clocks = {}, {name: Clock() for name in nets}
    for turn in range(ROUNDS):
        for name, net in nets.items():
            with progress.doing(functools.partial("generating by {}, {} of {}".format, name, turn + 1, ROUNDS)):
                texts[name] = model.complete(net, PROMPT, NEW_TOKENS, clocks[name])
    return texts, {name: clock.shortest for name, clock in clocks.items()}


def _weight_bytes(net: Any) -> int:
    """What the weights of all linear layers but the head take."""
    if hasattr(net, "memory"):
        return net.memory()["quantized_weights"]
    layers = [module for name, module in net.named_modules() if isinstance(module, nn.Linear) and name != "lm_head"]
    return sum(layer.weight.nbytes for layer in layers)
