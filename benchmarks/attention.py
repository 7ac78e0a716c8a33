"""Attention as programs call it, over float32 and over an FP8 cache, beside torch's own kernel for the CPU."""

import itertools
from collections.abc import Callable

import torch
from contest import Contender, Maker, compete, contest_table
from machine import thread_counts
from report import Table

from steelyard.runtime.cpu.attention import attend
from steelyard.runtime.cpu.attention_backward import differentiate
from steelyard.tensor.cached_rows import encode_rows

# Heads, and key heads: those of GPT-2, of SmolLM2 135M, and of a Llama of 302 M parameters.
HEADS = ((12, 12), (9, 3), (16, 8))
SIZE = 64
PROMPTS = (512, 1024, 2048)
CACHES = (128, 1024, 2048, 4096)
_COPIES = 4
"""Of an FP8 cache, which is a quarter as large as a float32 one."""
CACHE_BYTES = 64e6
"""Of the caches that are used in turn, so that none of them is near when its turn comes."""
# Batch, heads and tokens of what a GPT of 4 layers and 512 columns trains on, and of a longer text.
TRAINED = ((4, 8, 512), (1, 8, 2048))
AIMS = {"causal": 1.6, "token": 1.3, "backward": 1.6, "codes": 2.0}
LONG = 2048
OURS, FP8 = "steelyard", "steelyard, FP8 cache"

Attend = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def measure(quick: bool = False) -> Table:
    """One row per sizes, threads and contender."""
    title = "Causal attention of a prompt and its backward, and of one token over cached ones, head size 64"
    table = contest_table(title, "torch", held="keys and values")
    table.notes.append(f"{FP8}: keys and values in E4M3, read as codes; the error is that of the format.")
    table.notes.append(f"FP8 cache beside a float32 one: the baseline is {OURS} over float32 keys and values.")
    table.notes.append("One token: the caches of several layers are used in turn, so that none of them is in a cache.")
    for threads in thread_counts():
        for sizes in TRAINED[:1] if quick else TRAINED:
            for dtype in (torch.float32, torch.bfloat16):
                work = f"backward of {sizes[0]} x {sizes[2]} tokens, {sizes[1]} heads, {str(dtype)[6:]}"
                _compete(table, work, threads, _differentiating(*sizes, dtype), AIMS["backward"], quick)
        for heads, key_heads in HEADS[:1] if quick else HEADS:
            for tokens in PROMPTS[:1] if quick else PROMPTS:
                makers = _makers([_tensors(heads, key_heads, tokens, tokens)], causal=True)
                work = f"{tokens} tokens, {heads} heads, {key_heads} key heads"
                _compete(table, work, threads, makers, AIMS["causal"], quick)
            for tokens in CACHES[:2] if quick else CACHES:
                count = max(1, int(CACHE_BYTES / (tokens * key_heads * SIZE * 8)))
                layers = [_tensors(heads, key_heads, 1, tokens) for _ in range(count)]
                makers = _makers(layers, causal=False) | {FP8: _over_codes(layers)}
                work = f"1 token over {tokens}, {heads} heads, {key_heads} key heads, {count} layers"
                _compete(table, work, threads, makers, AIMS["token"], quick)
                _compete(
                    table, f"{work}, appended to a static cache", threads, _appending(layers), AIMS["token"], quick
                )
                if tokens == LONG:
                    beside = {name: makers[name] for name in (OURS, FP8)}
                    _compete(table, f"{work}, FP8 cache beside a float32 one", threads, beside, AIMS["codes"], quick)
    return table


def _compete(table: Table, work: str, threads: int, makers: dict[str, Maker], aim: float, quick: bool) -> None:
    calls, seconds = (5, 0.5) if quick else (40, 4.0)
    contender = FP8 if next(iter(makers)) == OURS else OURS
    compete(table, work, threads, makers, calls=calls, seconds=seconds, aims={contender: aim} if threads == 1 else {})


def _tensors(heads: int, key_heads: int, queries: int, keys: int) -> list[torch.Tensor]:
    return [torch.randn(1, *sizes, SIZE) for sizes in ((heads, queries), (key_heads, keys), (key_heads, keys))]


def _makers(layers: list[list[torch.Tensor]], *, causal: bool) -> dict[str, Maker]:
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    held = sum(x.numel() * x.element_size() for layer in layers for x in layer[1:])

    def maker(run: Attend) -> Maker:
        return lambda: Contender(lambda: [run(*layer)[0] for layer in layers][-1], held)

    return {
        "torch": maker(lambda query, key, value: flash(query, key, value, 0.0, causal)),
        OURS: maker(lambda query, key, value: attend(query, key, value, None, causal, None)),
    }


def _over_codes(layers: list[list[torch.Tensor]]) -> Maker:
    """The same over as many bytes of codes, so that those are not in a cache either."""

    def make() -> Contender:
        encoded = [(query, encode_rows(key), encode_rows(value)) for query, key, value in layers]
        copies = [[_copied(one) for one in encoded] for _ in range(_COPIES)]
        turn = itertools.cycle(copies)

        def run() -> torch.Tensor:
            made = [
                attend(query, key, value, None, False, None, (key_scales, value_scales))[0]
                for query, (key, key_scales), (value, value_scales) in next(turn)
            ]
            return made[-1]

        held = sum(x.numel() * x.element_size() for _, *pairs in encoded for pair in pairs for x in pair)
        return Contender(run, held)

    return make


def _copied(layer: tuple) -> tuple:
    query, *pairs = layer
    return query, *(tuple(x.clone() for x in pair) for pair in pairs)


def _appending(layers: list[list[torch.Tensor]]) -> dict[str, Maker]:
    """A step over caches of fixed size: as torch's functional graph has it, and as a compiled program writes them."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    last = torch.tensor([layers[0][1].shape[2] - 1])

    def copied(query: torch.Tensor, *caches: torch.Tensor) -> torch.Tensor:
        made = [torch.index_copy(cache, 2, last, cache[:, :, -1:]) for cache in caches]
        out = flash(query, *made, 0.0, False)[0]
        for cache, new in zip(caches, made, strict=True):
            cache.copy_(new)
        return out

    def written(query: torch.Tensor, *caches: torch.Tensor) -> torch.Tensor:
        key, value = (cache.index_copy_(2, last, cache[:, :, -1:].clone()) for cache in caches)
        return attend(query, key, value, None, False, None)[0]

    held = sum(x.numel() * x.element_size() for layer in layers for x in layer[1:])
    runs = {"torch": copied, OURS: written}
    return {
        name: lambda run=run: Contender(lambda: [run(*layer) for layer in layers][-1], held)
        for name, run in runs.items()
    }


def _differentiating(batch: int, heads: int, tokens: int, dtype: torch.dtype) -> dict[str, Maker]:
    """The backward of causal attention; the gradients of query, key and value are one result."""
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    query, key, value, grad_out = (torch.randn(batch, heads, tokens, SIZE).to(dtype) for _ in range(4))
    out, logsumexp = attend(query, key, value, None, True, None)
    given = (grad_out, query, key, value, out, logsumexp)
    runs = {
        "torch": lambda: backward(*given, 0.0, True),
        OURS: lambda: differentiate(*given, None, True, None),
    }
    held = sum(x.numel() * x.element_size() for x in given)
    return {name: lambda run=run: Contender(lambda: torch.stack(run()), held) for name, run in runs.items()}
