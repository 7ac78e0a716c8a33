"""torch.compile takes quantized tensors as inputs, weights and targets of writes."""

import copy

import pytest
import torch
from torch import nn

from steelyard.tensor import QuantizedTensor

formats = pytest.mark.parametrize("make_quantizer", ["delayed", "nvfp4-rht"], indirect=True)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(function, backend="aot_eager")


@formats
def test_inputs_and_views(quantizer):
    quantized, x = quantizer(torch.randn(64, 48)), torch.randn(4, 48)

    def function(weight, x):
        return x @ weight.t() + 1, weight.view(-1), weight[32:].sum()

    product, flat, total = compiled(function)(quantized, x)
    expected = function(quantized, x)
    assert torch.equal(product, expected[0])
    assert isinstance(flat, QuantizedTensor)
    assert torch.equal(flat.dequantize(), quantized.dequantize().view(-1))
    assert torch.equal(total, expected[2])


@formats
def test_training_equals_eager(quantizer):
    eager = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 8))
    eager[0].weight = nn.Parameter(quantizer(eager[0].weight.detach()))
    twin = copy.deepcopy(eager)
    x = torch.randn(16, 48)
    for model in (eager, compiled(twin)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert isinstance(twin[0].weight, QuantizedTensor)
    assert torch.equal(twin[0].weight.dequantize(), eager[0].weight.dequantize())


@pytest.mark.parametrize("make_quantizer", ["current", "mxfp8"], indirect=True)
def test_writes(quantizer):
    x = torch.randn(32, 48)
    quantized, twin = quantizer(x), quantizer(x)

    def write(tensor):
        tensor.mul_(2)
        return tensor + 1

    assert torch.equal(compiled(write)(quantized), write(twin))
    assert torch.equal(quantized.dequantize(), twin.dequantize())


@pytest.mark.filterwarnings("ignore:Dynamo:UserWarning")
@pytest.mark.parametrize("make_quantizer", ["mxfp8"], indirect=True)
def test_quantizing_inside(quantizer):
    x = torch.randn(32, 48)
    assert torch.equal(compiled(lambda x: quantizer(x).dequantize() * 2)(x), quantizer(x).dequantize() * 2)
