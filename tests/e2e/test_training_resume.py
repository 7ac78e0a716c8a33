"""A run that is saved and resumed in another process equals, bit for bit, one that never stopped."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import steelyard
from steelyard import recipes

# One worker makes the runs once, for all tests.
pytestmark = pytest.mark.xdist_group("resume")
STEPS = 10


class Run:
    """A small training run with dropout."""

    def __init__(self, recipe: str):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(40, 56), nn.GELU(), nn.Dropout(0.1), nn.Linear(56, 40))
        self.net = steelyard.compile(model, recipe)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(self, first: int) -> None:
        for step in range(first, first + STEPS):
            torch.manual_seed(step)
            x = torch.randn(20, 40)
            (self.net(x) - x.flip(1)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict:
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}


def go_on(folder: str) -> None:
    for recipe in recipes.NAMES:
        run = Run(recipe)
        saved = torch.load(Path(folder, f"{recipe}.pt"), weights_only=True)
        run.net.load_state_dict(saved["net"])
        run.optimizer.load_state_dict(saved["optimizer"])
        run.train(STEPS)
        torch.save(run.state(), Path(folder, f"{recipe}.resumed.pt"))


@pytest.fixture(scope="module")
def resumed(tmp_path_factory) -> tuple[Path, dict[str, dict]]:
    """The folder of the runs of another process, and the runs that never stopped."""
    folder = tmp_path_factory.mktemp("resume")
    whole = {}
    for recipe in recipes.NAMES:
        run = Run(recipe)
        run.train(0)
        torch.save(run.state(), folder / f"{recipe}.pt")
        run.train(STEPS)
        whole[recipe] = run.state()
    subprocess.run([sys.executable, __file__, str(folder)], check=True)
    return folder, whole


@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_goes_on_bit_for_bit(resumed, recipe):
    folder, whole = resumed
    expected, got = whole[recipe]["net"], torch.load(folder / f"{recipe}.resumed.pt", weights_only=True)["net"]
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())
    before = torch.load(folder / f"{recipe}.pt", weights_only=True)["net"]
    assert not torch.equal(before["0.weight"], got["0.weight"])


if __name__ == "__main__":
    go_on(sys.argv[1])
