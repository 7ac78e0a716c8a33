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
