"""Gradients flow through quantize, dequantize, view and reshape as through the identity."""

import torch

from steelyard.tensor import MXFP8Quantizer, QuantizedTensor

E4M3 = torch.float8_e4m3fn


def test_quantize_and_dequantize_pass_the_gradient(quantizer):
    x = torch.randn(32, 48, dtype=torch.bfloat16, requires_grad=True)
    quantized = quantizer(x)
    assert isinstance(quantized, QuantizedTensor)
    assert quantized.requires_grad
    gradient = torch.randn(32, 48)
    quantized.dequantize(dtype=torch.float32).backward(gradient)
    assert torch.equal(x.grad, gradient.bfloat16())


def test_views_pass_the_gradient(quantizer):
    x = torch.randn(4, 8, 32, requires_grad=True)
    gradient = torch.randn(32, 32)
    viewed = quantizer(x).view(32, 32)
    assert isinstance(viewed, QuantizedTensor)
    viewed.reshape(2, 16, 32).dequantize().backward(gradient.view(2, 16, 32))
    assert torch.equal(x.grad, gradient.view(4, 8, 32))


def test_slices_and_transposes_pass_the_gradient(quantizer):
    x = torch.randn(64, 32, requires_grad=True)
    quantizer(x)[32:].t().sum().backward()
    expected = torch.zeros(64, 32)
    expected[32:] = 1
    assert torch.equal(x.grad, expected)


def test_other_operations_have_the_gradient_of_the_decoded_values(quantizer):
    x, w = torch.randn(16, 32, requires_grad=True), torch.randn(8, 32, requires_grad=True)
    quantized_x, quantized_w = quantizer(x), quantizer(w)
    gradient = torch.randn(16, 8)
    torch.nn.functional.linear(quantized_x, quantized_w).backward(gradient)
    torch.testing.assert_close(x.grad, gradient @ quantized_w.dequantize().detach())
    torch.testing.assert_close(w.grad, gradient.t() @ quantized_x.dequantize().detach())


def test_quantized_gradients_are_decoded():
    x = torch.randn(4, 32, requires_grad=True)
    gradient = MXFP8Quantizer(E4M3)(torch.randn(4, 32))
    MXFP8Quantizer(E4M3)(x).backward(gradient)
    assert type(x.grad) is torch.Tensor
    assert torch.equal(x.grad, gradient.dequantize())


def test_no_graph_without_grad(quantizer):
    x = torch.randn(4, 32, requires_grad=True)
    with torch.no_grad():
        assert not quantizer(x).requires_grad
    parameter = torch.nn.Parameter(quantizer(x.detach()))
    with torch.no_grad():
        assert not parameter.dequantize().requires_grad
    assert parameter.dequantize().requires_grad
