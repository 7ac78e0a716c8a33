"""A batch of rows times a parameter of three dims is a product of experts, however the model spells it."""

import pytest
import torch
from torch import nn

import steelyard
from steelyard import recipes

EXPERTS, WIDTH, HIDDEN = 4, 32, 48
SPELLINGS = {
    "bmm": lambda x, up, down: torch.bmm(torch.bmm(x, up), down.transpose(1, 2)),
    "matmul": lambda x, up, down: torch.matmul(torch.matmul(x, up), down.mT),
    "operator": lambda x, up, down: (x @ up) @ down.permute(0, 2, 1),
    "method": lambda x, up, down: x.bmm(up).bmm(down.swapaxes(-1, -2)),
}


class Experts(nn.Module):
    """Two layers of experts that all take as many rows, as in Llama 4."""

    def __init__(self, multiply):
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / 8)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / 8)
        self._multiply = multiply

    def forward(self, x):
        return self._multiply(x.view(EXPERTS, -1, WIDTH), self.up, self.down).reshape(-1, WIDTH)


def one_by_one(model: Experts, recipe: str, x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The results and gradients of each expert as two linear layers of its own."""
    results, inputs, up, down = [], [], [], []
    for expert, rows in enumerate(x.view(EXPERTS, -1, WIDTH)):
        layers = nn.Sequential(nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False))
        layers[0].weight = nn.Parameter(model.up[expert].detach().t().contiguous())
        layers[1].weight = nn.Parameter(model.down[expert].detach().clone())
        given = rows.detach().requires_grad_()
        result = steelyard.compile(layers, recipe)(given)
        result.backward(dy.view(EXPERTS, -1, WIDTH)[expert])
        results.append(result.detach())
        inputs.append(given.grad)
        up.append(layers[0].weight.grad.t())
        down.append(layers[1].weight.grad)
    return torch.cat(results), torch.cat(inputs), torch.stack(up), torch.stack(down)


@pytest.mark.every(3)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_expert_is_a_matrix_of_its_own(spelling):
    model = Experts(SPELLINGS[spelling])
    x, dy = torch.randn(2, EXPERTS * 5, WIDTH)
    net = steelyard.compile(model, "mxfp8")
    given = x.clone().requires_grad_()
    result = net(given)
    result.backward(dy)
    found = result.detach(), given.grad, model.up.grad, model.down.grad
    torch.testing.assert_close(found, one_by_one(model, "mxfp8", x, dy), rtol=1e-5, atol=1e-5)
    rows = net.explain().rows
    assert [row.layer for row in rows if row.kind == "fprop"] == ["up", "down"]
    assert len(rows) == 6
    assert all(row.is_quantized for row in rows)


@pytest.mark.every(4)
@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_other_numbers_of_rows(recipe):
    model = Experts(SPELLINGS["bmm"]).eval().requires_grad_(False)
    net = steelyard.compile(model, recipe)
    for rows in (3, 7, 1, 16):
        x = torch.randn(EXPERTS * rows, WIDTH)
        with torch.no_grad():
            error = (net(x) - model(x)).norm() / model(x).norm()
        assert 1e-3 < error < (0.35 if "fp4" in recipe else 0.1)
    assert all(row.is_quantized for row in net.explain().rows)


def test_products_that_are_none_of_experts_stay_batched():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.one = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(1, WIDTH, HIDDEN))

        def forward(self, x):
            y = self.project(x)
            return torch.bmm(y, x.transpose(1, 2)), torch.matmul(y, self.one)

    model = Attention().eval()
    net, x = steelyard.compile(model, "mxfp8"), torch.randn(3, 5, WIDTH)
    with torch.no_grad():
        net(x)
    assert not [row for row in net.explain().rows if "experts" in row.kernel]
