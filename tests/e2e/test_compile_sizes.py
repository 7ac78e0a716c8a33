"""Arithmetic of sizes known only at run time: every function that torch puts in its graphs means what Python means."""

import math
import operator

import pytest
import torch
from torch import nn

import steelyard

FUNCTIONS = {
    "sym_sum": lambda a, b: torch.sym_sum([a, b, 3]),
    "sym_max": torch.sym_max,
    "sym_min": torch.sym_min,
    "sym_ite": lambda a, b: torch.sym_ite(a > b, a, b),
    "sym_not": lambda a, b: torch.sym_ite(torch.sym_not(a > b), a, b),
    "sym_float": lambda a, b: torch.sym_float(a) + b,
    "float before int": lambda a, b: torch.sym_ite(a / 4 < b, 2, 3),
    "int before float": lambda a, b: torch.sym_ite(a < b / 4, 2, 3),
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": lambda a, b: -a,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "floordiv of a negative": lambda a, b: -a // b,
    "mod": operator.mod,
    "mod of a negative": lambda a, b: -a % b,
    "pow by an int": lambda a, b: a**2,
    "pow of an int": lambda a, b: 2**b,
    "pow by a float": lambda a, b: a**1.5,
    "shifts": lambda a, b: (a << 2) + (b >> 1),
    "bits": lambda a, b: (a & b) + 16 * (a | b) + 256 * (a ^ b),
    "abs": lambda a, b: abs(a - b),
    "ceil": lambda a, b: math.ceil(a / 4),
    "floor": lambda a, b: math.floor(-a / 4),
    "trunc": lambda a, b: int(-a / 4),
    "round": lambda a, b: round(a / 4),
    "sqrt": lambda a, b: math.sqrt(a * b),
    "log2": lambda a, b: math.log2(a),
    "sin": lambda a, b: math.sin(a),
    "tanh": lambda a, b: math.tanh(a / b),
}
SIZES = ((4, 6), (7, 3), (9, 9), (5, 12))


class Numbers(nn.Module):
    """A layer, and the results of functions of the first two sizes of its input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        a, b = x.shape[:2]
        numbers = {name: function(a, b) for name, function in FUNCTIONS.items()}
        return self.layer(x), {name: torch.full((1,), n, dtype=torch.float64) for name, n in numbers.items()}


@pytest.fixture(scope="module")
def computed():
    """The results by sizes, computed by compiled programs."""
    net = steelyard.compile(Numbers(), "mxfp8")
    with torch.no_grad():
        found = {sizes: net(torch.randn(*sizes, 32))[1] for sizes in SIZES}
    rows = net.explain().rows
    # Two graphs: one for the first sizes, one for all others that compare alike.
    assert any(row.M == "?" for row in rows)
    assert all(row.is_quantized for row in rows)
    yield found
    torch._dynamo.reset()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_of_sizes(name, computed):
    expected = {sizes: float(FUNCTIONS[name](*sizes)) for sizes in SIZES}
    assert {sizes: results[name].item() for sizes, results in computed.items()} == expected


class Pooled(nn.Module):
    """Swin's head: an average over tokens, of a transpose."""

    def __init__(self):
        super().__init__()
        self.layer, self.pool, self.head = nn.Linear(32, 32), nn.AdaptiveAvgPool1d(1), nn.Linear(32, 8)

    def forward(self, x):
        return self.head(torch.flatten(self.pool(self.layer(x).transpose(1, 2)), 1))


class Averaged(Pooled):
    """The same with a mean."""

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


def test_pooling_to_one_of_a_transpose():
    torch.manual_seed(0)
    model, plain = Pooled(), Averaged()
    plain.load_state_dict(model.state_dict())
    net, other = steelyard.compile(model, "mxfp8"), steelyard.compile(plain, "mxfp8")
    for shape in ((2, 7, 32), (3, 7, 32), (4, 9, 32)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(net(x), other(x))
        for trained, module in ((net, model), (other, plain)):
            module.zero_grad()
            trained(x).square().sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, plain.get_parameter(name).grad)
    assert all(row.is_quantized for row in net.explain().rows)


class Windows(nn.Module):
    """Overlapping windows by `as_strided`, whose elements a program must gather."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 8)

    def forward(self, x):
        y = x * 2
        return self.layer(x), torch.as_strided(y, (3, 4), (2, 1), 1)


def test_overlapping_windows():
    x = torch.randn(4, 32)
    with torch.no_grad():
        _, windows = steelyard.compile(Windows(), "mxfp8")(x)
    assert torch.equal(windows, torch.stack([2 * x.flatten()[1 + 2 * i : 5 + 2 * i] for i in range(3)]))
