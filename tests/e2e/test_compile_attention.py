"""`attention=True`: the products of attention are quantized too."""

import pytest
import torch
from oracle import assert_follows
from torch import nn
from torch.nn import functional

import steelyard
from steelyard import recipes, reference

HEADS, WIDTH = 3, 40
QUANTIZING = [name for name in recipes.NAMES if name != "fp8-delayed"]


class Attention(nn.Module):
    """Attention without projections; `fused` calls torch's single op."""

    def __init__(self, fused: bool):
        super().__init__()
        self.fused = fused
        self.out = nn.Linear(HEADS * WIDTH, 24)

    def forward(self, query, key, value, multiply=torch.matmul):
        if self.fused:
            attended = functional.scaled_dot_product_attention(query, key, value, scale=1.0)
        else:
            weights = torch.softmax(multiply(query, key.transpose(-1, -2)), dim=-1)
            attended = multiply(weights, value)
        return self.out(attended.transpose(1, 2).flatten(2))


def make_heads() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (17, 21, 21)
    return [0.4 * torch.randn(2, HEADS, size, WIDTH, generator=generator) for size in sizes]


def quantized_product(recipe: str):
    scheme, _ = recipes.get(recipe).schemes("input")

    def decoded(x):
        copy, _ = reference.quantize(x, scheme, None)
        return reference.dequantize(copy).double().reshape(x.shape)

    def multiply(left, right):
        # Both operands are quantized along the dim that the product reduces over.
        return (decoded(left) @ decoded(right.transpose(-1, -2)).transpose(-1, -2)).float()

    return multiply


def without_projection(model: nn.Module, recipe: str):
    return steelyard.compile(model, recipe, attention=True, overrides={"out": None})


@torch.no_grad()
@pytest.mark.parametrize("recipe", QUANTIZING)
def test_products_follow_the_oracle(recipe):
    torch.manual_seed(0)
    model, heads = Attention(fused=False).eval(), make_heads()
    net = without_projection(model, recipe)
    got, exact = net(*heads), model(*heads)
    assert_follows(got, model(*heads, multiply=quantized_product(recipe)), exact)
    rows = [row for row in net.explain().rows if not row.reason]
    assert [(row.M, row.N, row.K) for row in rows] == [("17", "21", "40"), ("17", "40", "21")]


@torch.no_grad()
def test_torchs_fused_attention_is_taken_apart():
    torch.manual_seed(0)
    fused, plain, heads = Attention(fused=True).eval(), Attention(fused=False).eval(), make_heads()
    plain.load_state_dict(fused.state_dict())
    net = without_projection(fused, "mxfp8")
    assert_follows(net(*heads), plain(*heads, multiply=quantized_product("mxfp8")), plain(*heads))
    assert len([row for row in net.explain().rows if not row.reason]) == 2
    # Without the option it stays one op, and the row says why.
    untouched = steelyard.compile(fused, "mxfp8")
    untouched(*heads)
    assert ["attention" in row.reason for row in untouched.explain().rows] == [True, False]


def test_delayed_scales_and_the_backward_stay_in_high_precision():
    torch.manual_seed(0)
    model, heads = Attention(fused=False), make_heads()
    net = steelyard.compile(model, "fp8-delayed", attention=True)
    with torch.no_grad():
        net(*heads)
    assert ["state of their own" in row.reason for row in net.explain().rows] == [True, True, False]
    trained = steelyard.compile(model, "mxfp8", attention=True)
    for head in heads:
        head.requires_grad_()
    trained(*heads).square().sum().backward()
    reasons = [row.reason for row in trained.explain().rows]
    assert reasons.count("a batched product of the backward, such as those of attention") == 4
    gradients = [head.grad.clone() for head in heads]
    for head in heads:
        head.grad = None
    model(*heads).square().sum().backward()
    for head, gradient in zip(heads, gradients, strict=True):
        assert (gradient - head.grad).norm() <= 0.15 * head.grad.norm()
