"""`check_finite=True` names the first operand of a GEMM that is not finite."""

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import NonFiniteError


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 56), nn.GELU(), nn.Linear(56, 24))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_the_first_operand_that_is_not_finite_is_named(model, value):
    net = steelyard.compile(model, "mxfp8", check_finite=True)
    x = torch.randn(20, 40)
    net(x).sum().backward()
    x[3, 4] = value
    with pytest.raises(
        NonFiniteError, match=r"input of layer '0' must be finite, got 1 of 800 .* in call 2 of the net"
    ):
        net(x)
    x[3, 4] = 0
    with pytest.raises(NonFiniteError, match=r"grad_output of layer '2' must be finite, got 480 of 480"):
        (net(x).sum() * value).backward()
    with torch.no_grad():
        model[2].weight[1, 1] = value
    with pytest.raises(NonFiniteError, match=r"weight of layer '2' must be finite, got 1 of 1344"):
        net(x)


def test_without_the_check_nothing_is_raised(model):
    x = torch.full((20, 40), torch.inf)
    assert steelyard.compile(model, "mxfp8")(x).shape == (20, 24)
