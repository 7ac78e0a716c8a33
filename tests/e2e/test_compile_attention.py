"""`attention=True`: the products of attention are quantized too, in the forward and in the backward."""

from functools import partial

import pytest
import torch
from oracle import assert_follows
from small_models import VOCABULARY, make_llama
from torch import nn
from torch.nn import functional
from training_oracle import (
    Numerics,
    QuantizedProducts,
    error_share,
    gradients_of,
    make_training_oracle,
    quantized_product,
)

import steelyard
from steelyard import recipes

HEADS, WIDTH = 3, 40
ROW_SCALED = recipes.NVFP4BlockScaling(row_scaled=True, rht=False, weight_tiles=False, stochastic_rounding=False)
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


def oracle_product(recipe: str):
    return partial(quantized_product, numerics=Numerics(recipe))


def without_projection(model: nn.Module, recipe: str):
    return steelyard.compile(model, recipe, attention=True, overrides={"out": None})


@torch.no_grad()
@pytest.mark.parametrize("recipe", QUANTIZING)
def test_products_follow_the_oracle(recipe):
    torch.manual_seed(0)
    model, heads = Attention(fused=False).eval(), make_heads()
    net = without_projection(model, recipe)
    got, exact = net(*heads), model(*heads)
    assert_follows(got, model(*heads, multiply=oracle_product(recipe)), exact)
    rows = [row for row in net.explain().rows if not row.reason]
    assert [(row.M, row.N, row.K) for row in rows] == [("17", "21", "40"), ("17", "40", "21")]


@torch.no_grad()
def test_torchs_fused_attention_is_taken_apart():
    torch.manual_seed(0)
    fused, plain, heads = Attention(fused=True).eval(), Attention(fused=False).eval(), make_heads()
    plain.load_state_dict(fused.state_dict())
    net = without_projection(fused, "mxfp8")
    assert_follows(net(*heads), plain(*heads, multiply=oracle_product("mxfp8")), plain(*heads))
    assert len([row for row in net.explain().rows if not row.reason]) == 2
    # Without the option it stays one op, and the row says why.
    untouched = steelyard.compile(fused, "mxfp8")
    untouched(*heads)
    assert ["attention" in row.reason for row in untouched.explain().rows] == [True, False]


def gradients_for(heads: list[torch.Tensor], result: torch.Tensor) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.autograd.grad(result, heads, torch.randn(result.shape, generator=generator)))


@pytest.mark.parametrize(
    ("recipe", "fused"),
    [*((name, False) for name in QUANTIZING), (recipes.MXFP8BlockScaling(fp8_format="HYBRID"), True)],
    ids=str,
)
def test_gradients_follow_the_oracle(recipe, fused):
    torch.manual_seed(0)
    model, heads = Attention(fused), [head.requires_grad_() for head in make_heads()]
    plain = Attention(fused=False)
    plain.load_state_dict(model.state_dict())
    net = without_projection(model, recipe)
    got, exact = (gradients_for(heads, run(*heads)) for run in (net, plain))
    expected = gradients_for(heads, plain(*heads, multiply=oracle_product(recipe)))
    for triple in zip(got, expected, exact, strict=True):
        assert_follows(*triple)
    rows = [row for row in net.explain().rows if not row.reason]
    # dV and dP, then dK and dQ.
    sizes = [("21", "40", "17"), ("17", "21", "40"), ("40", "21", "17"), ("17", "40", "21")]
    assert [(row.kind, row.M, row.N, row.K) for row in rows[2:]] == [("dgrad", *each) for each in sizes]


def test_gradients_of_a_transformer_follow_the_oracle():
    tokens = torch.randint(0, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))
    model, _ = make_llama()
    # A model in eval mode would have its weights in other blocks.
    model.train().set_attn_implementation("eager")
    numerics = Numerics("nvfp4")
    oracle, net = make_training_oracle(model, numerics), steelyard.compile(model, "nvfp4", attention=True)
    exact = gradients_of(model, model(input_ids=tokens, labels=tokens).loss)
    with QuantizedProducts(numerics):
        expected = gradients_of(oracle, oracle(input_ids=tokens, labels=tokens).loss)
    got = gradients_of(net, net(input_ids=tokens, labels=tokens).loss)
    assert error_share(got, expected, exact) <= 0.25
    explained = net.explain()
    assert explained.shares.quantized_flops == explained.shares.flops
    assert sum(row.layer.endswith("self_attn") for row in explained.rows) == 2 * 6


@torch.no_grad()
def test_products_reduce_over_sizes_known_only_at_run_time():
    torch.manual_seed(0)
    model, (query, *others) = Attention(fused=False).eval(), make_heads()
    net = without_projection(model, "nvfp4")
    # Odd and even numbers of keys: the last byte of FP4 codes is half full. From the second on, one program takes all.
    for keys in (21, 20, 19, 5):
        heads = [query, *(other[:, :, :keys] for other in others)]
        assert_follows(net(*heads), model(*heads, multiply=oracle_product("nvfp4")), model(*heads))
    sizes = [(row.M, row.N, row.K) for row in net.explain().rows if not row.reason]
    assert sizes == [("17", "21", "40"), ("17", "40", "21"), ("17", "?", "40"), ("17", "40", "?")]


@pytest.mark.parametrize(
    ("recipe", "reasons"),
    [
        ("fp8-delayed", ["state of their own"] * 6),
        (recipes.MXFP8BlockScaling(backward="high_precision"), [None] * 2 + ["leaves the grad_output"] * 4),
        # What is scaled by rows is multiplied by a gradient on its right, and by none on its left.
        (ROW_SCALED, ["per row must be on lhs"] * 2 + [None, "per row must be on lhs"] * 2),
    ],
    ids=["delayed", "high precision", "row scaled"],
)
@pytest.mark.filterwarnings("ignore:only .* of the FLOPs")
def test_what_stays_in_high_precision_says_why(recipe, reasons):
    torch.manual_seed(0)
    model, heads = Attention(fused=False), [head.requires_grad_() for head in make_heads()]
    net = without_projection(model, recipe)
    gradients_for(heads, net(*heads))
    rows = [row for row in net.explain().rows if not row.layer]
    assert [row.kind for row in rows] == ["fprop"] * 2 + ["dgrad"] * 4
    for row, reason in zip(rows, reasons, strict=True):
        assert (not row.reason) if reason is None else (reason in row.reason)
