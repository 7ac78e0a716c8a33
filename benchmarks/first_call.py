"""The first call of a Llama: `python benchmarks/first_call.py WORK LAYERS CONTENDER` prints its seconds.

A program of its own, because only the first compilation of a process pays for all that later ones share. Libraries are
imported and the model is built before the clock starts.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import steelyard

VOCABULARY = 1024
TOKENS = 16
CONTENDERS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "steelyard": lambda model: steelyard.compile(model, "mxfp8"),
    "steelyard, blocks=False": lambda model: steelyard.compile(model, "mxfp8", blocks=False),
    "eager fp32": lambda model: model,
    "inductor fp32": torch.compile,
}


def make_model(layers: int) -> Any:
    """A Llama of the width of a small one that people use, with few words."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval()


def forward(net: Any, tokens: int = TOKENS) -> torch.Tensor:
    """What the net says of some words."""
    with torch.no_grad():
        return net(_words(tokens)).logits


def training_step(net: Any, tokens: int = TOKENS) -> torch.Tensor:
    """The gradients of the loss, of which it returns that of the words."""
    net.zero_grad()
    words = _words(tokens)
    net(words, labels=words).loss.backward()
    return net.get_input_embeddings().weight.grad


def _words(tokens: int) -> torch.Tensor:
    return torch.arange(tokens).remainder(VOCABULARY).unsqueeze(0)


WORKS = {"forward": forward, "training step": training_step}


def main(work: str, layers: str, contender: str) -> None:
    """Time the first call."""
    torch.set_num_threads(1)
    net = CONTENDERS[contender](make_model(int(layers)))
    start = time.perf_counter()
    WORKS[work](net)
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
