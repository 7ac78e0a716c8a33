"""Products of experts and of batches run on tapes, with the bits of programs that Python calls kernel by kernel."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from expert_models import EXPERTS, IN, Experts
from tape_calls import calls_of_steps
from torch import nn

import steelyard
from steelyard import recipes

pytestmark = pytest.mark.usefixtures("with_tapes")


class Mixture(nn.Module):
    """Two layers of experts, so that kernels follow each other."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Experts(width=IN), Experts()

    def forward(self, x, ends):
        return self.second(self.first(x, ends), ends)


class Products(nn.Module):
    """Products of two activations, one for each entry of a batch."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(48, 48)

    def forward(self, x):
        heads = self.project(x).unflatten(-1, (3, 16)).transpose(1, 2)
        scores = heads @ heads.transpose(-1, -2)
        return scores @ heads, scores


def ends_of(*counts):
    return torch.tensor(counts).cumsum(0).to(torch.int32)


def batches():
    generator = torch.Generator().manual_seed(1)
    for counts in ((7, 0, 20, 3), (0, 0, 1, 0), (16, 32, 1, 17), (5, 0, 0, 0), (0, 0, 0, 0)):
        rows = sum(counts)
        # Rows behind the last group belong to none.
        yield torch.randn(rows + rows % 3, IN, generator=generator), ends_of(*counts)


def train(net, model, x, *others):
    model.zero_grad()
    torch.manual_seed(5)
    x = x.clone().requires_grad_()
    outputs = net(x, *others)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(output.square().sum() for output in outputs).backward()
    return [*outputs, x.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8-current", "fp8-block"])
def test_experts_of_any_rows(recipe, without_tapes):
    torch.manual_seed(0)
    model = Mixture().eval()
    plain, taped = without_tapes(model, recipe), steelyard.compile(model, recipe)
    with torch.no_grad():
        for x, ends in batches():
            assert torch.equal(plain(x, ends), taped(x, ends))
    assert {("grouped_gemm", True), ("grouped_quantize", True)} <= calls_of_steps(taped.ir("lowered"))
    assert "groups" in taped.ir("tape")


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", ["nvfp4", "fp8-delayed"])
def test_training_of_experts(recipe, without_tapes):
    torch.manual_seed(0)
    model = Mixture()
    nets = without_tapes(model, recipe), steelyard.compile(model, recipe)
    for x, ends in list(batches())[:3]:
        assert all(map(torch.equal, *(train(net, model, x, ends) for net in nets)))
    steps = calls_of_steps(nets[1].ir("lowered"))
    assert {("grouped_gemm", True), ("grouped_quantize", True)} <= steps
    assert ("grouped_quantize", False) not in steps


def test_experts_in_many_threads():
    model = Mixture().eval()
    net = steelyard.compile(model, "nvfp4")
    given = list(batches())
    with torch.no_grad():
        expected = [net(*one) for one in given]

    def check(number):
        with torch.no_grad():
            return torch.equal(net(*given[number % len(given)]), expected[number % len(given)])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(100)))


def test_groups_that_decrease_are_refused(without_tapes):
    model = Mixture().eval()
    x, ends = torch.randn(9, IN), torch.tensor([3, 9, 4, 9], dtype=torch.int32)
    assert len(ends) == EXPERTS
    for net in (without_tapes(model, "mxfp8"), steelyard.compile(model, "mxfp8")):
        with torch.no_grad(), pytest.raises(ValueError, match="the ends of groups must not decrease"):
            net(x, ends)


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8-current"])
def test_products_of_batches(recipe, without_tapes):
    """The sizes of scores are known only at run time, also those that are reduced."""
    torch.manual_seed(0)
    model = Products()
    nets = without_tapes(model, recipe, attention=True), steelyard.compile(model, recipe, attention=True)
    for tokens in (5, 16, 33, 1):
        x = torch.randn(2, tokens, 48, generator=torch.Generator().manual_seed(tokens))
        assert all(map(torch.equal, *(train(net, model, x) for net in nets)))
    with torch.no_grad():
        assert all(map(torch.equal, *(net(x) for net in nets)))
    lowered = nets[1].ir("lowered")
    assert "batch_dims" in lowered
    # A GEMM alone between ops of torch needs no tape.
    assert ("gemm", True) in calls_of_steps(lowered.split("module @graph")[-1])


def test_quantizes_that_pad_at_run_time(without_tapes):
    """The transform of gradients needs whole blocks of 16 rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 40), nn.Linear(40, 24), nn.Linear(24, 8))
    recipe = recipes.NVFP4BlockScaling(rht=True)
    nets = without_tapes(model, recipe), steelyard.compile(model, recipe)
    for rows in (7, 16, 40, 1):
        x = torch.randn(rows, 48, generator=torch.Generator().manual_seed(rows))
        assert all(map(torch.equal, *(train(net, model, x) for net in nets)))
    assert ("quantize", False) not in calls_of_steps(nets[1].ir("lowered"))
    assert "8*rows(" in nets[1].ir("tape")


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", [recipes.MXFP8BlockScaling, recipes.Float8BlockScaling])
def test_decoded_operands_of_a_backward(recipe, without_tapes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 40), nn.Linear(40, 24))
    recipe = recipe(backward="dequantized")
    nets = without_tapes(model, recipe), steelyard.compile(model, recipe)
    for rows in (7, 40):
        x = torch.randn(rows, 48, generator=torch.Generator().manual_seed(rows))
        assert all(map(torch.equal, *(train(net, model, x) for net in nets)))
    assert "dequantize_" in nets[1].ir("lowered")
