"""Gradients of linear layers: each GEMM on captured operands, whose codes the reference makes from x, w and dy."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from training_oracle import Numerics, assert_gemms_are_exact, kind_of, quantized_linear
from transformers.pytorch_utils import Conv1D

import steelyard
from steelyard import recipes

OPERANDS = {"fprop": ("input", "weight"), "dgrad": ("grad_output", "weight"), "wgrad": ("grad_output", "input")}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# No block of any recipe divides 37, 131, 35 or 19; the second shape has several blocks of each; the last is one row.
CASES = [
    ((35, 37), 19, torch.float32, True),
    ((35, 37), 19, torch.float16, False),
    ((2, 67, 131), 133, torch.float32, False),
    ((2, 67, 131), 133, torch.bfloat16, True),
    ((1, 64), 48, torch.bfloat16, False),
]


class Linear(nn.Module):
    """A linear layer with a name."""

    def __init__(self, *sizes, bias=True, dtype=torch.float32):
        super().__init__()
        self.proj = nn.Linear(*sizes, bias=bias, dtype=dtype)

    def forward(self, x):
        return self.proj(x)


def by_kind(calls: list) -> dict[str, list]:
    found = {"fprop": [], "dgrad": [], "wgrad": []}
    for call in calls:
        found[kind_of(call)].append(call)
    return found


def assert_codes(call, operands: dict[str, torch.Tensor], numerics: Numerics, layer: str = "proj") -> None:
    """Both operands equal, byte for byte, what the reference makes of the tensors."""
    for got, role in zip(call[:2], OPERANDS[kind_of(call)], strict=True):
        row, col = numerics.quantize(operands[role], layer, role)
        expected = col if got.columnwise else row
        assert torch.equal(got.codes, expected.codes)
        assert torch.equal(got.scales, expected.scales)
        assert got.amax is None or torch.equal(got.amax, expected.amax)


def assert_is_sum(got: torch.Tensor, terms: torch.Tensor) -> None:
    """A sum over the first dim, in any order, in float32, rounded once."""
    expected = terms.double().sum(0)
    bound = len(terms) * 2.0**-24 * terms.double().abs().sum(0) + torch.finfo(got.dtype).eps * expected.abs()
    assert ((got.double() - expected).abs() <= bound).all()


def run_linear(net, x: torch.Tensor) -> torch.Tensor:
    """Call and differentiate; returns the gradient of the output."""
    y = net(x)
    dy = torch.randn(y.shape).to(y.dtype)
    y.backward(dy)
    return dy.reshape(-1, dy.shape[-1])


def make_input(shape, dtype=torch.float32) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(shape).to(dtype).requires_grad_()


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", recipes.NAMES)
@pytest.mark.parametrize(("shape", "features", "dtype", "bias"), CASES, ids=str)
def test_three_gemms_of_a_linear_layer(shape, features, dtype, bias, recipe, gemm_calls):
    torch.manual_seed(0)
    model = Linear(shape[-1], features, bias=bias, dtype=dtype)
    x = make_input(shape, dtype)
    numerics = Numerics(recipe)
    net = steelyard.compile(model, recipe)
    dy = run_linear(net, x)
    calls = by_kind(gemm_calls)
    assert [len(found) for found in calls.values()] == [1, 1, 1]
    operands = {"input": x.detach(), "weight": model.proj.weight.detach(), "grad_output": dy}
    for call in gemm_calls:
        assert_codes(call, operands, numerics)
    assert_gemms_are_exact(gemm_calls)
    assert torch.equal(x.grad.reshape(-1, shape[-1]), calls["dgrad"][0][-1])
    assert torch.equal(model.proj.weight.grad, calls["wgrad"][0][-1])
    if bias:
        assert_is_sum(model.proj.bias.grad, dy)


@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_inputs_and_gradients_of_any_layout(recipe, gemm_calls):
    torch.manual_seed(0)
    model = Linear(37, 19)
    x = torch.randn(37, 6, 3).transpose(0, 2)[:, ::2].requires_grad_()
    numerics = Numerics(recipe)
    y = steelyard.compile(model, recipe)(x)
    # The gradient of a sum is one expanded element; its transpose has another layout.
    dy = torch.randn(19, 3, 3).permute(2, 1, 0)
    y.backward(dy)
    operands = {"input": x.detach(), "weight": model.proj.weight.detach(), "grad_output": dy}
    for call in gemm_calls:
        assert_codes(call, operands, numerics)
    assert_gemms_are_exact(gemm_calls)
    assert_is_sum(model.proj.bias.grad, dy.reshape(-1, 19))
    assert torch.equal(x.grad.reshape(-1, 37), by_kind(gemm_calls)["dgrad"][0][-1])


def test_the_gradient_of_a_sum(gemm_calls):
    torch.manual_seed(0)
    model = Linear(37, 19)
    steelyard.compile(model, "mxfp8")(make_input((5, 37))).sum().backward()
    # Ones have exact codes, so that dw is the sum of decoded inputs.
    assert_gemms_are_exact(gemm_calls)
    assert torch.equal(model.proj.bias.grad, torch.full((19,), 5.0))


@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_weight_that_is_stored_transposed(recipe, gemm_calls):
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("proj", Conv1D(19, 37))
    model.proj.bias.data.normal_()
    x = make_input((2, 17, 37))
    numerics = Numerics(recipe)
    dy = run_linear(steelyard.compile(model, recipe), x)
    calls = by_kind(gemm_calls)
    assert [len(found) for found in calls.values()] == [1, 1, 1]
    # Rows and columns are those of the weight w[N, K], however it is stored.
    operands = {"input": x.detach(), "weight": model.proj.weight.detach().T, "grad_output": dy}
    for call in gemm_calls:
        assert_codes(call, operands, numerics)
    assert_gemms_are_exact(gemm_calls)
    assert torch.equal(model.proj.weight.grad.T, calls["wgrad"][0][-1])
    assert_is_sum(model.proj.bias.grad, dy)


@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_frozen_weight_has_no_wgrad(recipe, gemm_calls):
    model = Linear(37, 19)
    model.proj.weight.requires_grad_(False)
    x = make_input((5, 37))
    numerics = Numerics(recipe)
    dy = run_linear(steelyard.compile(model, recipe), x)
    calls = by_kind(gemm_calls)
    assert [len(found) for found in calls.values()] == [1, 1, 0]
    assert_codes(calls["dgrad"][0], {"weight": model.proj.weight.detach(), "grad_output": dy}, numerics)
    assert torch.equal(x.grad, calls["dgrad"][0][-1])
    assert model.proj.weight.grad is None
    assert_is_sum(model.proj.bias.grad, dy)


@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_input_without_gradient_has_no_dgrad(recipe, gemm_calls):
    model = Linear(37, 19)
    x = make_input((5, 37)).detach()
    numerics = Numerics(recipe)
    dy = run_linear(steelyard.compile(model, recipe), x)
    calls = by_kind(gemm_calls)
    assert [len(found) for found in calls.values()] == [1, 0, 1]
    assert_codes(calls["wgrad"][0], {"input": x, "grad_output": dy}, numerics)
    assert torch.equal(model.proj.weight.grad, calls["wgrad"][0][-1])


class SharedWeight(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(37, 37, bias=False)
        self.second = nn.Linear(37, 37, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x, linear=None):
        linear = linear or (lambda x, layer: getattr(self, layer)(x))
        return linear(linear(x, "first").tanh(), "second")


class CalledTwice(nn.Module):
    """One layer on two inputs, one of which is its own output."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(37, 37, bias=False)

    def forward(self, x, linear=None):
        linear = linear or (lambda x, layer: self.first(x))
        return linear(linear(x, "first").tanh(), "first")


class UsedElsewhere(nn.Module):
    """A weight that is also read outside of a GEMM."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(37, 37, bias=False)

    def forward(self, x, linear=None):
        linear = linear or (lambda x, layer: self.first(x))
        return linear(x, "first") + (self.first.weight**2).sum(0)


class TiedEmbedding(nn.Module):
    """A head that shares its weight with an embedding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(37, 64)
        self.first = nn.Linear(64, 37, bias=False)
        self.first.weight = self.embed.weight

    def forward(self, x, linear=None):
        linear = linear or (lambda x, layer: self.first(x))
        tokens = x.argsort(dim=-1)[:, :6]
        return linear(self.embed(tokens) * x[:, :6, None], "first")


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", recipes.NAMES)
@pytest.mark.parametrize("model_class", [SharedWeight, CalledTwice, UsedElsewhere, TiedEmbedding])
def test_every_use_of_a_weight_adds_to_its_gradient(model_class, recipe, gemm_calls):
    torch.manual_seed(0)
    model, x = model_class(), make_input((35, 37))
    numerics = Numerics(recipe)
    oracle = model_class()
    oracle.load_state_dict(model.state_dict())
    x_oracle = x.detach().clone().requires_grad_()
    weight = oracle.first.weight
    expected = oracle(x_oracle, lambda x, layer: quantized_linear(x, weight, None, layer, numerics))
    y = steelyard.compile(model, recipe)(x)
    dy = torch.randn(y.shape)
    y.backward(dy)
    expected.backward(dy)
    assert_gemms_are_exact(gemm_calls)
    for got, oracle_gradient in ((model.first.weight.grad, weight.grad), (x.grad, x_oracle.grad)):
        torch.testing.assert_close(got, oracle_gradient, rtol=1e-4, atol=1e-4 * oracle_gradient.abs().max().item())


def test_nothing_quantized_is_autograd_in_float32():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(37, 50), nn.GELU(), nn.LayerNorm(50), nn.Linear(50, 7))
    exact = copy.deepcopy(model).double()
    results = []
    for module in (exact, steelyard.compile(model, recipes.CustomRecipe(lambda role: None))):
        x = make_input((5, 37)).detach().to(next(module.parameters()).dtype).requires_grad_()
        module(x).square().sum().backward()
        results.append([x.grad, *(parameter.grad for parameter in module.parameters())])
    for wanted, found in zip(*results, strict=True):
        assert (found - wanted).norm() <= 1e-6 * wanted.norm()


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", recipes.NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backward", ["high_precision", "dequantized"])
def test_backward_in_high_precision(backward, dtype, recipe, gemm_calls):
    torch.manual_seed(0)
    model, x = Linear(37, 19, dtype=dtype), make_input((2, 17, 37), dtype)
    chosen = type(recipes.get(recipe))(backward=backward)
    numerics = Numerics(chosen)
    net = steelyard.compile(model, chosen)
    dy = run_linear(net, x)
    assert [kind_of(call) for call in gemm_calls] == ["fprop"]
    assert_codes(gemm_calls[0], {"input": x.detach(), "weight": model.proj.weight.detach()}, numerics)
    x_oracle = x.detach().clone().requires_grad_()
    weight, bias = (p.detach().clone().requires_grad_() for p in model.proj.parameters())
    quantized_linear(x_oracle, weight, bias, "proj", numerics).backward(dy.view(2, 17, 19))
    tolerance = 4 * torch.finfo(dtype).eps
    for got, oracle in ((x, x_oracle), (model.proj.weight, weight), (model.proj.bias, bias)):
        torch.testing.assert_close(
            got.grad, oracle.grad, rtol=tolerance, atol=tolerance * oracle.grad.abs().max().item()
        )
    rows = {row.kind: row for row in net.explain().rows}
    assert rows.keys() == {"fprop", "dgrad", "wgrad"}
    assert not rows["fprop"].reason
    expected = "decoded" if backward == "dequantized" else "in high precision"
    assert all(expected in rows[kind].reason for kind in ("dgrad", "wgrad"))


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_decoded_backward_of_any_size(recipe):
    """The codes tell the backward how many rows there were."""
    torch.manual_seed(0)
    model = Linear(37, 19)
    chosen = type(recipes.get(recipe))(backward="dequantized")
    # Delayed scales follow each net's own history, whose first scale is 1.
    for rows in (5, 8):
        numerics, net = Numerics(chosen), steelyard.compile(model, chosen)
        x = make_input((rows, 37), torch.float32)
        torch._dynamo.mark_dynamic(x, 0)
        dy = run_linear(net, x)
        x_oracle = x.detach().clone().requires_grad_()
        weight, bias = (p.detach().clone().requires_grad_() for p in model.proj.parameters())
        quantized_linear(x_oracle, weight, bias, "proj", numerics).backward(dy)
        assert "scaled.tensor<?x37xf32," in net.ir("partitioned")
        for got, oracle in ((x, x_oracle), (model.proj.weight, weight)):
            torch.testing.assert_close(got.grad, oracle.grad, rtol=1e-6, atol=1e-5)
        model.zero_grad()


class Activated(nn.Module):
    """An activation whose input the backward reads, and whose output nothing quantizes."""

    def __init__(self, activation: nn.Module):
        super().__init__()
        self.proj = nn.Linear(37, 19)
        self.activation = activation

    def forward(self, x, linear=None):
        return self.activation((linear or self.proj)(x)).softmax(-1)


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("activation", [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.ReLU()], ids=str)
@pytest.mark.parametrize("rows", [[5], [5, 7, 9]], ids=["fixed", "any size"])
def test_fused_activation_gives_what_it_was_given_to_the_backward(rows, activation, recipe):
    torch.manual_seed(1)
    model, numerics = Activated(activation), Numerics(recipe)
    net = steelyard.compile(model, recipe)
    for count in rows:
        x = make_input((2, count, 37))
        x_oracle = x.detach().clone().requires_grad_()
        weight, bias = (p.detach().clone().requires_grad_() for p in model.proj.parameters())
        y = net(x)
        dy = torch.randn(y.shape)
        y.backward(dy)
        linear = partial(quantized_linear, weight=weight, bias=bias, layer="proj", numerics=numerics)
        expected = model(x_oracle, linear)
        expected.backward(dy)
        numerics.update_state("grad_output")
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
        assert cosine(x.grad, x_oracle.grad) > 0.999
        assert cosine(model.proj.bias.grad, bias.grad) > 1 - 1e-9
        assert cosine(model.proj.weight.grad, weight.grad) > 0.999
        model.zero_grad()
    epilogues = {row.epilogue for row in net.explain().rows if row.kind == "fprop"}
    assert len(epilogues) == 1
    assert epilogues.pop().startswith("bias, ")


def cosine(got: torch.Tensor, expected: torch.Tensor) -> float:
    return functional.cosine_similarity(got.double().flatten(), expected.double().flatten(), dim=0).item()


def test_explain_has_a_row_for_each_of_the_three_gemms():
    model, x = Linear(37, 19), make_input((5, 37))
    net = steelyard.compile(model, "nvfp4")
    functional.mse_loss(net(x), torch.zeros(5, 19)).backward()
    rows = [(row.layer, row.kind, row.M, row.N, row.K, row.lhs, row.rhs, row.reason) for row in net.explain().rows]
    assert sorted(rows) == [
        ("proj", "dgrad", "5", "37", "19", "e2m1 1x16", "e2m1 16x16", ""),
        ("proj", "fprop", "5", "19", "37", "e2m1 1x16", "e2m1 16x16", ""),
        ("proj", "wgrad", "19", "37", "5", "e2m1 1x16", "e2m1 1x16", ""),
    ]


class Upsampled(nn.Module):
    """A picture of 2x2 points made by a linear layer, each point repeated; torch's backward is an indexed sum."""

    def __init__(self):
        super().__init__()
        self.linear, self.upsample = nn.Linear(32, 12), nn.Upsample(scale_factor=2.0, mode="nearest")

    def forward(self, x):
        return self.upsample(self.linear(x).view(-1, 3, 2, 2))


def test_gradients_flow_through_repeated_points():
    torch.manual_seed(0)
    net = steelyard.compile(Upsampled(), "mxfp8")
    picture_gradient = torch.randn(5, 3, 4, 4)
    net(torch.randn(5, 32)).backward(picture_gradient)
    expected = picture_gradient.view(5, 3, 2, 2, 2, 2).sum((0, 3, 5)).flatten()
    torch.testing.assert_close(net.linear.bias.grad, expected)
    assert {row.kind for row in net.explain().rows if row.is_quantized} == {"fprop", "wgrad"}
