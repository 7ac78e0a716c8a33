"""What a compiled model must compute in training, without the compiler and its kernels.

A copy of the model in which each linear layer runs its three GEMMs on what the reference quantizes, in float64.
"""

import copy
from functools import partial

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from steelyard import recipes, reference
from steelyard.formats.copies import QuantizedCopy
from steelyard.reference.gemm import operand


class Numerics:
    """A recipe with its state: delayed scales, amax histories, random bits."""

    def __init__(self, recipe: str | recipes.Recipe):
        self.recipe = recipes.get(recipe)
        self.rng = (torch.initial_seed(), 0)
        self.scales: dict[str, torch.Tensor] = {}
        self.histories: dict[str, torch.Tensor] = {}
        self._amaxes: dict[str, torch.Tensor] = {}
        self._weight_scales: dict[str, torch.Tensor] = {}

    def quantize(self, x: torch.Tensor, layer: str, role: str) -> tuple:
        """Both copies of an operand."""
        row, col = self.recipe.schemes(role)
        if row is None and col is None:
            return x, None
        if "delayed" not in {scheme.source for scheme in (row, col) if scheme is not None}:
            return reference.quantize(x, row, col, rng=self.rng)
        name = f"{layer}.{role}"
        scale = self.scales.setdefault(name, torch.ones(()))
        self.histories.setdefault(name, torch.zeros(self.recipe.delayed().amax_history_len))
        amax = reference.amax(x)
        self._amaxes[name] = torch.maximum(amax, self._amaxes.get(name, amax))
        if role == "weight":
            # A weight keeps the scale of its first use until it is written.
            scale = self._weight_scales.setdefault(name, scale)
        return reference.quantize(x, row, col, scale=scale)

    def forget_weights(self) -> None:
        """An optimizer has written the weights."""
        self._weight_scales.clear()

    def update_state(self, *roles: str) -> None:
        """Update the state at the end of a forward (`input`, `weight`) or a backward (`grad_output`)."""
        for name in [name for name in self._amaxes if name.rpartition(".")[2] in roles]:
            history = self.histories[name].clone()
            history[0] = self._amaxes.pop(name)
            scheme, _ = self.recipe.schemes(name.rpartition(".")[2])
            delayed = self.recipe.delayed()
            self.scales[name], self.histories[name] = reference.update_scale(
                self.scales[name], history, scheme, margin=delayed.margin, algorithm=delayed.amax_compute_algo
            )
        if "grad_output" in roles:
            self.rng = (self.rng[0], self.rng[1] + 1)


class _Linear(torch.autograd.Function):
    """y = x w^T + b with the three GEMMs of a recipe; x is [M, K], w is [N, K]."""

    @staticmethod
    def forward(ctx, x, weight, bias, layer, numerics):
        inputs, weights = (numerics.quantize(t, layer, r) for t, r in ((x, "input"), (weight, "weight")))
        ctx.layer, ctx.numerics, ctx.copies = layer, numerics, (inputs, weights)
        ctx.save_for_backward(x, weight)
        return reference.qgemm(inputs[0], weights[0], bias=bias, out_dtype=x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if ctx.numerics.recipe.backward == "dequantized":
            x, weight = (reference.dequantize(rowwise).to(x.dtype) for rowwise, _ in ctx.copies)
        if ctx.numerics.recipe.backward != "normal":
            dx = (gradient.double() @ weight.double()).to(x.dtype) if needs[0] else None
            dw = (gradient.double().T @ x.double()).to(x.dtype) if needs[1] else None
        else:
            (_, inputs), (_, weights) = ctx.copies
            row, col = ctx.numerics.quantize(gradient, ctx.layer, "grad_output")
            dx = reference.qgemm(row, weights, out_dtype=x.dtype) if needs[0] else None
            if col is None and needs[1]:
                dw = (gradient.double().T @ x.double()).to(x.dtype)
            else:
                dw = reference.qgemm(col, inputs, out_dtype=x.dtype) if needs[1] else None
        db = gradient.double().sum(0).to(x.dtype) if needs[2] else None
        return dx, dw, db, None, None


def quantized_linear(x, weight, bias, layer: str, numerics: Numerics) -> torch.Tensor:
    """A linear layer on an input of any rank."""
    product = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias, layer, numerics)
    return product.view(*x.shape[:-1], weight.shape[0])


class _Product(torch.autograd.Function):
    """A batched product and its two gradients, each operand quantized along what the product reduces over."""

    @staticmethod
    def forward(ctx, left, right, numerics):
        ctx.numerics = numerics
        ctx.save_for_backward(left, right)
        return _multiply(numerics, (left, "input"), (right, "input"))

    @staticmethod
    def backward(ctx, gradient):
        left, right = (operand.transpose(-1, -2) for operand in ctx.saved_tensors)
        given = gradient, "grad_output"
        return (
            _multiply(ctx.numerics, given, (right, "input")),
            _multiply(ctx.numerics, (left, "input"), given),
            None,
        )


def _multiply(numerics: Numerics, left: tuple, right: tuple) -> torch.Tensor:
    """The product of two tensors, each given with its role."""
    (lhs, lhs_role), (rhs, rhs_role) = left, right
    return (_decoded(numerics, lhs, lhs_role) @ _decoded(numerics, rhs.transpose(-1, -2), rhs_role).mT).to(lhs.dtype)


def _decoded(numerics: Numerics, x: torch.Tensor, role: str) -> torch.Tensor:
    row, _ = numerics.recipe.schemes(role)
    copy_, _ = reference.quantize(x.detach(), row, None, rng=numerics.rng)
    return reference.dequantize(copy_).double().reshape(x.shape)


def quantized_product(left: torch.Tensor, right: torch.Tensor, numerics: Numerics) -> torch.Tensor:
    """A product of attention with its gradients."""
    return _Product.apply(left, right, numerics)


class QuantizedProducts(TorchFunctionMode):
    """Every product of two tensors of heads is quantized."""

    def __init__(self, numerics: Numerics):
        super().__init__()
        self._numerics = numerics

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is torch.matmul and all(operand.dim() == 4 for operand in arguments):
            return quantized_product(*arguments, self._numerics)
        return function(*arguments, **(options or {}))


def make_training_oracle(model: nn.Module, numerics: Numerics) -> nn.Module:
    """A copy of the model that trains by a recipe."""
    oracle = copy.deepcopy(model)
    for name, module in oracle.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            module.forward = partial(_forward, module, name, numerics)
    return oracle


def _forward(module: nn.Module, name: str, numerics: Numerics, x: torch.Tensor) -> torch.Tensor:
    weight = module.weight.T if isinstance(module, Conv1D) else module.weight
    return quantized_linear(x, weight, module.bias, name, numerics)


def gradients_of(model: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of the parameters that have one, by name; they are cleared from the model."""
    model.zero_grad()
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def error_share(got: dict, oracle: dict, exact: dict) -> float:
    """The difference of gradients from the oracle's, as a share of the quantization error."""
    assert got.keys() == oracle.keys() == exact.keys()
    distance, error = 0.0, 0.0
    for name in got:
        assert got[name].shape == oracle[name].shape
        assert got[name].dtype == oracle[name].dtype
        distance += (got[name].double() - oracle[name].double()).square().sum().item()
        error += (oracle[name].double() - exact[name].double()).square().sum().item()
    assert error > 0, "the oracle quantizes nothing"
    return (distance / error) ** 0.5


def kind_of(call: tuple) -> str:
    """Which of the three GEMMs a recorded call is."""
    usages = tuple(isinstance(operand, QuantizedCopy) and operand.columnwise for operand in call[:2])
    return {(False, False): "fprop", (False, True): "dgrad", (True, True): "wgrad"}[usages]


def assert_gemms_are_exact(calls: list) -> None:
    """Each recorded GEMM without an activation is within the bound of a float32 sum, and one rounding of the result."""
    assert calls
    for a, b, options, result in calls:
        assert options["epilogue"] == "none"
        left, right = (torch.from_numpy(operand(copy_)) for copy_ in (a, b))
        addends = [options[name].double() for name in ("bias", "residual") if name in options]
        expected = sum(addends, left @ right.T)
        magnitude = sum((addend.abs() for addend in addends), left.abs() @ right.abs().T)
        bound = (left.shape[1] + 8 + len(addends)) * 2.0**-24 * magnitude
        if result.dtype != torch.float32:
            bound = bound + torch.finfo(result.dtype).eps * (expected.abs() + bound) / 2
        assert ((result.double() - expected).abs() <= bound).all()
