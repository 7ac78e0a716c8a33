"""Find the layer that ruins a model in low precision, in three commands.

The model has a planted outlier: one weight that is millions of times as large as the others. In float32 it does no
harm, because what it is multiplied by is small. In NVFP4, whose scales span a limited range, the other weights of that
layer become zero. In this folder:

    steelyard report find_the_layer:make_model --recipe nvfp4 --data find_the_layer:batches --output before.html
    steelyard report find_the_layer:make_model --recipe nvfp4 --data find_the_layer:batches --output after.html \\
        --override blocks.3.up=mxfp8
    steelyard compare before.json after.json --html compare.html

The first names the layer, in the terminal and on the page. The second gives it another format. The third shows what
that changed. `python find_the_layer.py` runs them one after the other.
"""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from steelyard.tools import cli

BLOCKS, WIDTH = 6, 128
PLANTED = "blocks.3.up"


class Block(nn.Module):
    """A norm and an MLP with a residual."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Some blocks and a head."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


def make_model() -> nn.Module:
    """The model with its outlier."""
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        block = model.get_submodule(PLANTED.rpartition(".")[0])
        block.norm.weight[7] = 1e-6
        block.up.weight[3, 7] = 500_000.0
    return model


def batches() -> Iterator[torch.Tensor]:
    """What it is measured with."""
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(64, WIDTH, generator=generator)


def main() -> int:
    """Run the three commands of the docstring."""
    assert __doc__ is not None
    sys.path.insert(0, str(Path(__file__).parent))
    text = __doc__.replace("\\\n", " ")
    for line in (line.strip() for line in text.splitlines() if line.startswith("    steelyard ")):
        print(f"$ {' '.join(line.split())}", flush=True)
        code = cli.main(shlex.split(line)[1:])
        if code:
            return code
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
