"""What training refuses, and what it accepts."""

import pytest
import torch
from torch import nn

import steelyard
from steelyard import recipes
from steelyard.errors import TargetError, UnsupportedModelError


def make_net(recipe="mxfp8"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(37, 20), nn.Tanh(), nn.Linear(20, 7))
    return steelyard.compile(model, recipe)


def test_double_backward():
    net, x = make_net(), torch.randn(4, 37, requires_grad=True)
    (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.square().sum().backward()


def test_second_backward_needs_retain_graph():
    loss = make_net()(torch.randn(4, 37)).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()


def test_parameter_written_between_forward_and_backward():
    net = make_net()
    loss = net(torch.randn(4, 37)).sum()
    with torch.no_grad():
        net[2].weight.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: \[torch.FloatTensor \[7, 20\]\]"):
        loss.backward()


def test_input_written_between_forward_and_backward_where_it_is_read():
    net, x = make_net(recipes.MXFP8BlockScaling(backward="high_precision")), torch.randn(4, 37)
    loss = net(x).sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: \[torch.FloatTensor \[4, 37\]\]"):
        loss.backward()


@pytest.mark.every(4)
@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_input_written_between_forward_and_backward_where_codes_are_kept(recipe):
    gradients = []
    for write in (False, True):
        net, x = make_net(recipe), torch.randn(4, 37)
        loss = net(x).sum()
        if write:
            x.fill_(1e9)
        loss.backward()
        gradients.append(net[0].weight.grad.clone())
    assert torch.equal(*gradients)


def test_input_on_another_device():
    with pytest.raises(UnsupportedModelError, match="Move inputs, parameters, and buffers to the same device"):
        make_net()(torch.randn(4, 37, device="meta")).sum().backward()


def test_parameters_on_another_device():
    model = nn.Sequential(nn.Linear(37, 20), nn.Linear(20, 7, device="meta"))
    with pytest.raises(TargetError, match=r"1.weight must be on the CPU for target cpu, got device meta"):
        steelyard.compile(model, "mxfp8")
