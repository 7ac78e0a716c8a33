"""What a compiled model must compute, without the compiler and its kernels.

A copy of the model in which each linear layer quantizes both operands by the reference, decodes them, and multiplies
in float64.
"""

import copy
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from steelyard import recipes, reference

HALF_PRECISION_SHARE = 0.5
"""What fused epilogues leave out is a rounding to the model's dtype: at 8 bits that flips a code in a hundred."""
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def make_oracle(model: nn.Module, recipe: str | recipes.Recipe, overrides: dict | None = None) -> nn.Module:
    """A copy of the model that quantizes by a recipe; `overrides` maps whole layer names to another one or None."""
    oracle = copy.deepcopy(model)
    for name, module in oracle.named_modules():
        chosen = (overrides or {}).get(name, recipe)
        if isinstance(module, nn.Linear | Conv1D) and chosen is not None:
            module.forward = partial(_quantized_linear, module, recipes.get(chosen))
    return oracle


def assert_follows(got: torch.Tensor, oracle: torch.Tensor, exact: torch.Tensor, share: float = 0.25) -> None:
    """Rounding is discontinuous, so last bits of sums flip codes: a share of the quantization error is allowed."""
    assert got.shape == oracle.shape
    assert got.dtype == oracle.dtype
    allowed = share * (oracle.double() - exact.double()).norm()
    assert allowed > 0, "the oracle quantizes nothing"
    assert (got.double() - oracle.double()).norm() <= allowed


def assert_gemms_are_exact(calls: list) -> None:
    """Each recorded GEMM is within the bound of a float32 sum, and one rounding to the result's dtype."""
    for a, b, options, result in calls:
        left, right = reference.dequantize(a).double(), reference.dequantize(b).double()
        bias, residual = (_addend(options.get(name)) for name in ("bias", "residual"))
        total = left @ right.T + bias
        bound = (left.shape[1] + 9) * 2.0**-24 * (left.abs() @ right.abs().T + bias.abs())
        expected = ACTIVATIONS[options.get("epilogue", "none")](total) + residual
        # No activation has a slope above 1.13; float32 activations and the residual's sum have an error of their own.
        bound = 1.13 * bound + 2.0**-21 * (total.abs() + residual.abs())
        if result.dtype != torch.float32:
            bound = bound + torch.finfo(result.dtype).eps * (expected.abs() + bound) / 2
        assert ((result.double() - expected).abs() <= bound).all()


def _addend(tensor: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros((), dtype=torch.float64) if tensor is None else tensor.double()


def _quantized_linear(module: nn.Module, recipe: recipes.Recipe, x: torch.Tensor) -> torch.Tensor:
    weight = module.weight.T if isinstance(module, Conv1D) else module.weight
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    product = _decoded(x.to(dtype), recipe, "input") @ _decoded(weight.to(dtype), recipe, "weight").T
    if module.bias is not None:
        product = product + module.bias.to(dtype).double()
    return product.to(dtype).reshape(*x.shape[:-1], weight.shape[0])


def _decoded(x: torch.Tensor, recipe: recipes.Recipe, role: str) -> torch.Tensor:
    scheme, _ = recipe.schemes(role)
    scale = torch.ones(()) if scheme.source == "delayed" else None
    copy_, _ = reference.quantize(x.detach(), scheme, None, scale=scale)
    return reference.dequantize(copy_).double()
