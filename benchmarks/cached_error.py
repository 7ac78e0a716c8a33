"""What an FP8 cache does to SmolLM2-135M, a trained model: to keys, values, attention, logits and perplexity."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from contest import relative_error
from report import Table, progress
from torch.nn import functional
from transformers import DynamicCache

import steelyard
from steelyard.tools import trained

TOKENS, WINDOWS = 2048, (512, 2048)
READ_AT_ONCE = 64
COLUMNS = [
    *("cached tokens", "cache", "MB", "error of keys", "of values", "of attention", "largest of a layer"),
    *("of logits", "perplexity", "same most likely token"),
]

Attended = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@torch.no_grad()
def measure(quick: bool = False) -> Table:
    """Two rows per number of cached tokens: a float32 cache, and one in E4M3 with a scale per token and head."""
    model = (read := trained.load()).model
    tokens = read.tokens(TOKENS + 1)
    table = Table(f"The FP8 cache of SmolLM2-135M, on {TOKENS} tokens of text", COLUMNS)
    table.notes = [
        "Errors are relative norms, of what the last token reads: the cache of all before it, quantized at once. "
        "Those of keys, values and attention are means over all layers; attention is computed in float64 with the "
        "queries of the float32 model.",
        f"Perplexity: windows of so many tokens, each read {READ_AT_ONCE} at a time into its cache.",
        "All else is float32.",
    ]
    for window in WINDOWS[:1] if quick else WINDOWS:
        progress(f"{window} cached tokens")
        table.rows += _rows(model, tokens, window)
    progress("")
    return table


def _rows(model: Any, tokens: torch.Tensor, window: int) -> list[list]:
    exact, coded = (_last_token(model, tokens[:, :window], quantized=quantized) for quantized in (False, True))
    pairs = [*zip(exact.layers, coded.layers, strict=True)]
    keys, values = (sum(relative_error(other[part], one[part]) for one, other in pairs) / len(pairs) for part in (1, 2))
    attention = [relative_error(_attend(one[0], *other[1:]), _attend(*one)) for one, other in pairs]
    expected, found = (_read(model, tokens, window, quantized=quantized) for quantized in (False, True))
    same = (found.argmax(-1) == expected.argmax(-1)).float().mean().item()
    return [
        [str(window), "float32", exact.nbytes / 1e6, *[""] * 5, _perplexity(expected, tokens), ""],
        [
            *(str(window), "E4M3", coded.nbytes / 1e6, keys, values),
            *(sum(attention) / len(attention), max(attention), relative_error(coded.logits, exact.logits)),
            *(_perplexity(found, tokens), same),
        ],
    ]


def _perplexity(logits: torch.Tensor, tokens: torch.Tensor) -> str:
    return f"{math.exp(functional.cross_entropy(logits, tokens[0, 1:]).item()):.2f}"


class _LastToken(NamedTuple):
    """What the last token of a text met."""

    layers: list[Attended]
    logits: torch.Tensor
    nbytes: int
    """Of the cache."""


def _last_token(model: Any, tokens: torch.Tensor, *, quantized: bool) -> _LastToken:
    cache = DynamicCache(config=model.config)
    model(tokens[:, :-1], past_key_values=cache)
    if quantized:
        steelyard.quantize_cache(cache)
    with _attended() as layers:
        logits = model(tokens[:, -1:], past_key_values=cache).logits
    return _LastToken(layers, logits, sum(_bytes(layer) for layer in cache.layers))


def _bytes(layer: Any) -> int:
    return layer.nbytes if hasattr(layer, "nbytes") else layer.keys.nbytes + layer.values.nbytes


@contextmanager
def _attended() -> Iterator[list[Attended]]:
    """The query, keys and values of each call of attention."""
    found: list[Attended] = []
    plain = functional.scaled_dot_product_attention

    def recorded(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any) -> Any:
        found.append((query, key, value))
        return plain(query, key, value, *rest, **options)

    functional.scaled_dot_product_attention = recorded
    try:
        yield found
    finally:
        functional.scaled_dot_product_attention = plain


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    shared = query.shape[1] // key.shape[1]
    key, value = (part.double().repeat_interleave(shared, 1) for part in (key, value))
    scores = query.double() @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return scores.softmax(-1) @ value


def _read(model: Any, tokens: torch.Tensor, window: int, *, quantized: bool) -> torch.Tensor:
    """The logits of each token but the first, by a cache for each window."""
    logits = []
    for text in tokens[:, :-1].split(window, 1):
        cache = DynamicCache(config=model.config)
        if quantized:
            steelyard.quantize_cache(cache)
        logits += [model(part, past_key_values=cache).logits[0] for part in text.split(READ_AT_ONCE, 1)]
    return torch.cat(logits)
