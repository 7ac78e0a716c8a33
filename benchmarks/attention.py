"""Attention in float32 as programs call it, beside torch's own kernel for the CPU."""

from collections.abc import Callable

import torch
from contest import Contender, Maker, compete, contest_table
from report import Table

from steelyard.runtime.cpu.attention import attend

# Heads, and key heads: those of GPT-2, and those of SmolLM2 135M.
HEADS = ((12, 12), (9, 3))
SIZE = 64
PROMPTS = (512, 1024, 2048)
CACHES = (128, 1024, 2048, 4096)
CACHE_BYTES = 64e6
"""Of the caches that are used in turn, so that none of them is near when its turn comes."""
AIMS = {"causal": 1.6, "token": 1.3}

Attend = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def measure(quick: bool = False) -> Table:
    """One row per sizes, threads and contender."""
    title = "Causal attention of a prompt, and of one token over cached ones, float32, head size 64"
    table = contest_table(title, "torch", held="keys and values")
    table.notes.append("One token: the caches of several layers are used in turn, so that none of them is in a cache.")
    for threads in (1, 2):
        for heads, key_heads in HEADS[:1] if quick else HEADS:
            for tokens in PROMPTS[:1] if quick else PROMPTS:
                makers = _makers([_tensors(heads, key_heads, tokens, tokens)], causal=True)
                work = f"{tokens} tokens, {heads} heads, {key_heads} key heads"
                _compete(table, work, threads, makers, AIMS["causal"], quick)
            for tokens in CACHES[:2] if quick else CACHES:
                count = max(1, int(CACHE_BYTES / (tokens * key_heads * SIZE * 8)))
                makers = _makers([_tensors(heads, key_heads, 1, tokens) for _ in range(count)], causal=False)
                work = f"1 token over {tokens}, {heads} heads, {key_heads} key heads, {count} layers"
                _compete(table, work, threads, makers, AIMS["token"], quick)
    return table


def _compete(table: Table, work: str, threads: int, makers: dict[str, Maker], aim: float, quick: bool) -> None:
    calls, seconds = (5, 0.5) if quick else (40, 4.0)
    compete(table, work, threads, makers, calls=calls, seconds=seconds, aims={"steelyard": aim} if threads == 1 else {})


def _tensors(heads: int, key_heads: int, queries: int, keys: int) -> list[torch.Tensor]:
    return [torch.randn(1, *sizes, SIZE) for sizes in ((heads, queries), (key_heads, keys), (key_heads, keys))]


def _makers(layers: list[list[torch.Tensor]], *, causal: bool) -> dict[str, Maker]:
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    held = sum(x.numel() * x.element_size() for layer in layers for x in layer[1:])

    def maker(run: Attend) -> Maker:
        return lambda: Contender(lambda: [run(*layer)[0] for layer in layers][-1], held)

    return {
        "torch": maker(lambda query, key, value: flash(query, key, value, 0.0, causal)),
        "steelyard": maker(lambda query, key, value: attend(query, key, value, None, causal, None)),
    }
