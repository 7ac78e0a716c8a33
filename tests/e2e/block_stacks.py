"""Models with enough repeated blocks to be cut, and what training them leaves."""

import torch
from torch import nn

LAYERS = 4
WIDTH = 40


class Block(nn.Module):
    """A feed-forward block whose sizes are not multiples of a tile."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 72)
        self.down = nn.Linear(72, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Blocks in a loop."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x):
        for block in self.blocks:
            x = self.call(block, x)
        return x

    def call(self, block, x):
        return block(x)


def make_input(seed: int) -> torch.Tensor:
    return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(seed))


def compilations(net) -> list:
    return net._steelyard.backend.compilations


def is_cut(net) -> bool:
    """Whether each block has a program, most of them shared, and nothing else was compiled.

    The first block takes no gradient of its input if the net takes none.
    """
    return len(compilations(net)) == LAYERS and len({compilation.source for compilation in compilations(net)}) <= 2


def state_of(net) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in net._steelyard.backend.state.tensors.items()}


def gradients_of(module: nn.Module) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert all(gradient is not None for gradient in found.values())
    return {f"gradient of {name}": gradient.clone() for name, gradient in found.items() if gradient is not None}


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    assert [name for name in got if not torch.equal(got[name], expected[name])] == []
