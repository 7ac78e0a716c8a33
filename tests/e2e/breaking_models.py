"""Models whose forwards torch captures in several graphs."""

import torch
from torch import nn


class Pair(nn.Module):
    """Two layers with a graph break between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(torch.relu(x))


class Pairs(nn.Module):
    """Two pairs: after the breaks, torch compiles the forward of their class, which all nets share."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.ModuleList([Pair(), Pair()])

    def forward(self, x):
        for pair in self.pairs:
            x = pair(x)
        return x


class Block(nn.Module):
    """A residual block: torch captures its two halves, each once for all blocks."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x):
        y = self.up(self.norm(x))
        torch._dynamo.graph_break()
        return x + self.down(torch.relu(y))


class Blocks(nn.Module):
    """Equal blocks between an embedding and a head."""

    def __init__(self, depth: int = 3):
        super().__init__()
        self.embedding = nn.Linear(64, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(64, 32)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
