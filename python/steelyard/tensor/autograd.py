"""Gradients pass through quantize and dequantize unchanged."""

import torch


def _decoded(grad: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    dense = grad.dequantize() if hasattr(grad, "get_usages") else grad
    return dense.to(dtype)


class QuantizeFunction(torch.autograd.Function):
    """Quantize, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, tensor, quantizer, dtype):
        ctx.input_dtype = tensor.dtype
        made = quantizer.quantize_impl(tensor.detach())
        return made if dtype is None else made.to_dtype(dtype)

    @staticmethod
    def backward(ctx, *grads):
        return _decoded(grads[0], ctx.input_dtype), None, None


class DequantizeFunction(torch.autograd.Function):
    """Dequantize, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, quantized, dtype):
        # Without autograd there is no context.
        if ctx is not None:
            ctx.input_dtype = quantized.dtype
        return quantized._decode(dtype)

    @staticmethod
    def backward(ctx, *grads):
        return _decoded(grads[0], ctx.input_dtype), None
