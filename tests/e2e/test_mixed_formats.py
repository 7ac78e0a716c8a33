"""Weights in one format with activations in another, or in none."""

import pytest
import torch
from oracle import assert_follows, make_oracle
from small_models import make_llama
from torch import nn
from training_oracle import Numerics, assert_gemms_are_exact, kind_of, quantized_linear

import steelyard
from steelyard.recipes import DelayedScaling, MXFP4BlockScaling, NVFP4BlockScaling

# Activations of every family, beside weights of every family.
RECIPES = [
    "nvfp4/none",
    "mxfp4/none",
    "fp8-row/none",
    "mxfp4/mxfp8",
    "nvfp4/mxfp8",
    "mxfp4/fp8-block",
    "nvfp4/fp8-current",
    "nvfp4/fp8-row",
    "fp8-block/mxfp4",
    NVFP4BlockScaling(activations=DelayedScaling(amax_history_len=2)),
]


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_three_gemms_of_a_layer(recipe, gemm_calls):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 45))
    x = torch.randn(3, 7, 70, requires_grad=True)
    net, numerics = steelyard.compile(model, recipe), Numerics(recipe)
    dy = torch.randn(3, 7, 45)
    y = net(x)
    y.backward(dy)
    layer = model[0]
    weight, bias, other = (t.detach().clone().requires_grad_() for t in (layer.weight, layer.bias, x))
    expected = quantized_linear(other, weight, bias, "0", numerics)
    expected.backward(dy)
    for got, wanted in ((y, expected), (x.grad, other.grad), (layer.weight.grad, weight.grad)):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())
    assert_gemms_are_exact(gemm_calls)
    only_weights = isinstance(recipe, str) and recipe.endswith("/none")
    assert [kind_of(call) for call in gemm_calls] == ["fprop", "dgrad"] + ["wgrad"] * (not only_weights)


def test_a_delayed_scale_of_activations_alone_is_state():
    model = nn.Sequential(nn.Linear(64, 32))
    net = steelyard.compile(model, "nvfp4/fp8-delayed")
    net(torch.full((4, 64), 7.0)).sum().backward()
    state = {name: tensor for name, tensor in net.state_dict().items() if name.startswith("_steelyard.0")}
    assert {name.split(".")[2] for name in state} == {"input", "grad_output"}
    # After one step the next scale brings the amax of 7 to 448.
    assert state["_steelyard.0.input.scale"].item() == 64.0


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", ["nvfp4/none", "mxfp4/mxfp8"])
def test_a_transformer_follows_the_oracle(recipe):
    model, arguments = make_llama()
    exact = model(**arguments).logits.detach()
    oracle = make_oracle(model, recipe)(**arguments).logits.detach()
    with torch.no_grad():
        assert_follows(steelyard.compile(model, recipe)(**arguments).logits, oracle, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_plain_activations_of_any_layout_and_size(dtype, gemm_calls):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(37, 19)).to(dtype).eval()
    net = steelyard.compile(model, MXFP4BlockScaling(activations=None))
    with torch.no_grad():
        for rows in (1, 5, 0, 21):
            x = torch.randn(37, 6, rows).to(dtype).transpose(0, 2)[:, ::2]
            assert net(x).shape == (rows, 3, 19)
    assert_gemms_are_exact(gemm_calls)


def test_rows_say_what_is_multiplied():
    model = nn.Sequential(nn.Linear(64, 32, dtype=torch.bfloat16))
    net = steelyard.compile(model.eval(), "nvfp4/none")
    with torch.no_grad():
        net(torch.randn(4, 64, dtype=torch.bfloat16))
    (row,) = net.explain().rows
    assert (row.lhs, row.kernel, row.reason, row.is_quantized) == ("bf16", "cpu values*nvfp4 gemm", "", True)
    assert row.rhs.startswith("e2m1 ")


def test_an_override_has_formats_of_its_own():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).eval()
    net = steelyard.compile(model, "mxfp8", overrides={"1": "mxfp4/fp8-row"})
    with torch.no_grad():
        net(torch.randn(4, 64))
    assert [(row.lhs, row.rhs) for row in net.explain().rows] == [
        ("e4m3 1x32", "e4m3 1x32"),
        ("e4m3 row", "e2m1 1x32"),
    ]
