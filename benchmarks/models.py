"""Whole models with random weights, written as users write them."""

import torch
from torch import nn
from torch.nn import functional


class GPTBlock(nn.Module):
    """Attention and an MLP, each behind a layer norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 8192, length: int = 1024):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class LlamaBlock(nn.Module):
    """Grouped-query attention over a cache and a gated MLP, each behind an RMS norm."""

    def __init__(self, width: int, hidden: int, heads: int, key_heads: int):
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * self.size, bias=False)
        self.value = nn.Linear(width, key_heads * self.size, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cache: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        normed = self.norm_1(x)
        query = _rotate(self.query(normed).view(batch, tokens, self.heads, self.size).transpose(1, 2), turn)
        key = _rotate(self.key(normed).view(batch, tokens, self.key_heads, self.size).transpose(1, 2), turn)
        value = self.value(normed).view(batch, tokens, self.key_heads, self.size).transpose(1, 2)
        keys, values = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        attention = functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, tokens, width))
        normed = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class LlamaDecoder(nn.Module):
    """One step of a Llama-like decoder: a token and the cache of those before it, to logits."""

    def __init__(
        self,
        layers: int = 20,
        width: int = 1024,
        hidden: int = 2816,
        heads: int = 16,
        key_heads: int = 8,
        vocabulary: int = 32000,
    ):
        super().__init__()
        self.shape = layers, 2, 1, key_heads, width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, hidden, heads, key_heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, token: torch.Tensor, cache: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        x = self.embedding(token)
        for block, part in zip(self.blocks, cache.unbind(), strict=True):
            x = block(x, part, turn)
        return self.head(self.norm(x))

    def inputs(self, cached: int) -> tuple[torch.Tensor, ...]:
        """A token after `cached` others, their keys and values, and the token's rotation."""
        *outer, size = self.shape
        angles = cached / 10000 ** (torch.arange(0, size, 2) / size)
        turn = torch.stack([angles.cos(), angles.sin()])
        return torch.ones(1, 1, dtype=torch.long), torch.randn(*outer, cached, size), turn


def _rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * turn[0] - second * turn[1], second * turn[0] + first * turn[1]], -1)


def millions(model: nn.Module) -> str:
    """The number of parameters."""
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M"
