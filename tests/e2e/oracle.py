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

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def make_oracle(
    model: nn.Module, recipe: str | recipes.Recipe, overrides: dict | None = None, *, rounded: bool = True
) -> nn.Module:
    """A copy of the model that quantizes by a recipe; `overrides` maps whole layer names to another one or None.

    A model in eval mode is for inference, and any other for training, where a recipe leaves that open.
    Unless `rounded`, products stay in float64 up to the next linear layer, as if an activation is part of the GEMM.
    """
    oracle = copy.deepcopy(model)
    for name, module in oracle.named_modules():
        chosen = (overrides or {}).get(name, recipe)
        if isinstance(module, nn.Linear | Conv1D) and chosen is not None:
            settled = recipes.get(chosen).settled(trains=model.training)
            module.forward = partial(_quantized_linear, module, settled, rounded)
    return oracle


def assert_follows(got: torch.Tensor, oracle: torch.Tensor, exact: torch.Tensor) -> None:
    """Rounding is discontinuous: last bits of sums flip codes, so a quarter of the quantization error is allowed."""
    assert got.shape == oracle.shape
    assert got.dtype == oracle.dtype
    allowed = 0.25 * (oracle.double() - exact.double()).norm()
    assert allowed > 0, "the oracle quantizes nothing"
    assert (got.double() - oracle.double()).norm() <= allowed


@torch.no_grad()
def nearest_oracle(got: torch.Tensor, model: nn.Module, recipe: str, x: torch.Tensor) -> torch.Tensor:
    """For half precision: an activation may or may not be part of the GEMM before it, which saves one rounding."""
    candidates = [make_oracle(model, recipe, rounded=rounded)(x).to(got.dtype) for rounded in (True, False)]
    return min(candidates, key=lambda candidate: (got.double() - candidate.double()).norm())


def assert_no_worse(got: torch.Tensor, oracle: torch.Tensor, exact: torch.Tensor) -> None:
    """For deep models in half precision: each rounding that fusion saves flips codes, and those flip others."""
    assert got.shape == oracle.shape
    assert got.dtype == oracle.dtype
    assert (got.double() - exact.double()).norm() <= 1.25 * (oracle.double() - exact.double()).norm()


def assert_gemms_are_exact(calls: list) -> None:
    """Each recorded GEMM is within the bound of a float32 sum, and one rounding to the result's dtype."""
    for a, b, options, result in calls:
        left, right = reference.dequantize(a).double(), reference.dequantize(b).double()
        bias, residual = (_addend(options.get(name)) for name in ("bias", "residual"))
        total = left @ right.T + bias
        bound = (left.shape[1] + 9) * 2.0**-24 * (left.abs() @ right.abs().T + bias.abs())
        expected = ACTIVATIONS[options.get("epilogue", "none")](total) + residual
        # No activation has a slope above 1.13; float32 activations and the sum with the residual add their own error.
        bound = 1.13 * bound + 2.0**-21 * (total.abs() + residual.abs())
        if result.dtype != torch.float32:
            bound = bound + torch.finfo(result.dtype).eps * (expected.abs() + bound) / 2
        assert ((result.double() - expected).abs() <= bound).all()


def _addend(tensor: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros((), dtype=torch.float64) if tensor is None else tensor.double()


def _quantized_linear(module: nn.Module, recipe: recipes.Recipe, rounded: bool, x: torch.Tensor) -> torch.Tensor:
    weight = module.weight.T if isinstance(module, Conv1D) else module.weight
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else weight.dtype
    product = _decoded(x.to(dtype), recipe, "input") @ _decoded(weight.to(dtype), recipe, "weight").T
    if module.bias is not None:
        product = product + module.bias.to(dtype).double()
    return product.to(dtype if rounded else torch.float64).reshape(*x.shape[:-1], weight.shape[0])


def _decoded(x: torch.Tensor, recipe: recipes.Recipe, role: str) -> torch.Tensor:
    scheme, _ = recipe.schemes(role)
    if scheme is None:
        return x.detach().double().reshape(-1, x.shape[-1])
    scale = torch.ones(()) if scheme.source == "delayed" else None
    copy_, _ = reference.quantize(x.detach(), scheme, None, scale=scale)
    return reference.dequantize(copy_).double()
