"""SmolLM2-135M, a trained model, beside eager float32 and the runtimes that others use on CPUs."""

from functools import partial
from typing import Any

import peers
import torch
from contest import Contender, Maker, contest_table
from decoding import FROZEN, FROZEN_NOTE, OURS, Step, compete_on_threads, compiled, ours, step_makers
from report import Table
from torch import nn

from steelyard.tools import trained

CACHED, PROMPT, WRITTEN = 128, 512, 64
SMALL_AIM, PROMPT_AIM = 5.0, 1.6
OPENVINO = ("NVFP4",)
LLAMA_CPP = "llama.cpp Q4_1"


class Prompt(nn.Module):
    """A model that reads a text."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of each next token."""
        return self.model(tokens, use_cache=False).logits


def measure(quick: bool = False) -> Table:
    """One row per work, threads and contender."""
    table = contest_table("Decoding and prefill of SmolLM2-135M", "eager")
    table.notes.append(FROZEN_NOTE)
    table.notes.append(
        "OpenVINO: weights compressed by NNCF, activations in float32. llama.cpp: the published 4-bit file of the "
        "model, whose values are the float32 weights that all others start from, with activations in 8-bit integers."
    )
    table.notes.append(
        "generate: a call of transformers' `generate`, its search included, until all tokens are written; the error is "
        "that of the first one's logits."
    )
    small = trained.load()
    _measure_small(table, small, quick)
    _measure_generate(table, small, quick)
    return table


def _measure_small(table: Table, small: trained.Trained, quick: bool) -> None:
    """A trained model: its cache is that of a text, so that all contenders have the same logits to come near to."""
    model, cached = small.model, CACHED
    tokens = small.tokens(PROMPT)
    read, token = tokens[:, :cached], tokens[:, cached : cached + 1]
    with torch.no_grad():
        layers = model(read, use_cache=True).past_key_values.layers
    step = Step(model).eval()
    arguments = token, torch.tensor([[cached]]), *(part for layer in layers for part in (layer.keys, layer.values))
    makers = step_makers(step, arguments)
    makers |= {f"OpenVINO {mode} weights": partial(peers.openvino, step, arguments, mode) for mode in OPENVINO}
    file = str(trained.find())
    makers[LLAMA_CPP] = partial(peers.llama_cpp, file, read[0].tolist(), token[0].tolist())
    compete_on_threads(table, f"SmolLM2-135M, 1 token after {cached}", makers, {FROZEN: SMALL_AIM}, quick)
    prompt = Prompt(model).eval()
    makers = {
        "eager": partial(peers.eager, prompt, (tokens,)),
        OURS: partial(ours, compiled(prompt), (tokens,)),
        **{f"OpenVINO {mode} weights": partial(peers.openvino, prompt, (tokens,), mode) for mode in OPENVINO},
        LLAMA_CPP: partial(peers.llama_cpp, file, [], tokens[0].tolist()),
    }
    compete_on_threads(table, f"SmolLM2-135M, prompt of {PROMPT}", makers, {OURS: PROMPT_AIM}, quick)


def _measure_generate(table: Table, small: trained.Trained, quick: bool) -> None:
    """What users call: each step with the Python of transformers around it."""
    read = small.tokens(CACHED)
    net = compiled(small.model)
    makers: dict[str, Maker] = {
        "eager": partial(_writer, small.model, read, None),
        "eager, static cache": partial(_writer, small.model, read, "static"),
        OURS: partial(_writer, net, read, None),
        f"{OURS}, static cache": partial(_writer, net, read, "static"),
    }
    compete_on_threads(table, f"SmolLM2-135M, generate {WRITTEN} after {CACHED}", makers, {}, quick)


def _writer(model: Any, read: torch.Tensor, cache: str | None) -> Contender:
    def run() -> torch.Tensor:
        written = model.generate(
            read,
            attention_mask=torch.ones_like(read),
            max_new_tokens=WRITTEN,
            min_new_tokens=WRITTEN,
            do_sample=False,
            cache_implementation=cache,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return written.logits[0]

    run()
    return Contender(run)
