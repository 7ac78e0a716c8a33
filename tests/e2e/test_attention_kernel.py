"""Attention in high precision runs in the CPU's own kernel, in inference and in training, with any sizes."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import steelyard

HEADS, SIZE = 4, 16
WIDTH = HEADS * SIZE
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"


class Layer(nn.Module):
    """Attention between projections."""

    def __init__(self, key_heads: int = HEADS, **options):
        super().__init__()
        self.key_heads, self.options = key_heads, options
        self.project = nn.Linear(WIDTH, (HEADS + 2 * key_heads) * SIZE)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None):
        heads = self.project(x).unflatten(2, (-1, SIZE)).transpose(1, 2)
        query, key, value = heads.split([HEADS, self.key_heads, self.key_heads], dim=1)
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=self.key_heads < HEADS, **self.options
        )
        return self.out(attended.transpose(1, 2).flatten(2))


class Cached(nn.Module):
    """One token over keys and values that are there."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, key, value):
        query = self.project(x).unflatten(2, (-1, SIZE)).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return attended.transpose(1, 2).flatten(2)


def unquantized(model: nn.Module):
    """A net whose layers keep float32, so that attention is all that it computes in a way of its own."""
    return steelyard.compile(model, "mxfp8", overrides={"*": None})


def in_float64(model: nn.Module, *arguments) -> torch.Tensor:
    floats = (x.double() if x is not None and x.is_floating_point() else x for x in arguments)
    return copy.deepcopy(model).double()(*floats)


def lowered_attention(net) -> list[str]:
    """The lines of the lowered program that attend, or differentiate that."""
    lines = [line.strip() for line in net.ir("lowered").splitlines()]
    return [line for line in lines if ("call @attention" in line or FLASH in line)]


def inputs(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    "causal": ({"key_heads": 2, "is_causal": True, "scale": 0.5}, None),
    "mask": ({}, inputs(2, 1, 21, 21, seed=3)),
    "boolean mask": ({}, inputs(21, 21, seed=3) > 0),
}


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_inference(case):
    torch.manual_seed(0)
    options, mask = CASES[case]
    model, x = Layer(**options).eval(), inputs(2, 21, WIDTH)
    net = unquantized(model)
    found = net(x, mask)
    wanted = in_float64(model, x, mask)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6)
    (line,) = lowered_attention(net)
    assert "call @attention_0" in line
    (row,) = [row for row in net.explain().rows if row.kernel == "cpu attention"]
    assert row.reason == "attention is one fused op, whose products have no parameter operand"


@torch.no_grad()
def test_inference_in_bfloat16():
    """The kernel sums in float32: its result is the float64 one of the same queries, keys and values, rounded once."""
    query, key, value = (inputs(1, HEADS, 33, SIZE, seed=seed).bfloat16() for seed in range(3))

    class Alone(nn.Module):
        def forward(self, query, key, value):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    net = unquantized(Alone())
    found = net(query, key, value)
    wanted = Alone()(query.double(), key.double(), value.double())
    # One unit in the last place at most, where float32 was near a tie.
    assert ((found.double() - wanted).abs() <= 2**-7 * wanted.abs() + 1e-6).all()
    assert (found == wanted.bfloat16()).double().mean() > 0.99
    assert "call @attention_0" in lowered_attention(net)[0]


@torch.no_grad()
def test_one_token_over_caches_of_any_length():
    torch.manual_seed(0)
    model, x = Cached().eval(), inputs(1, 1, WIDTH)
    net = unquantized(model)
    for tokens in (5, 64, 700):
        key, value = inputs(1, 2, tokens, SIZE, seed=1), inputs(1, 2, tokens, SIZE, seed=2)
        found, wanted = net(x, key, value), in_float64(model, x, key, value)
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6)
    assert any("?" in line and "call @attention" in line for line in lowered_attention(net))


class Appended(Cached):
    """The same, over a cache to which the token's own key and value are appended."""

    def forward(self, x, keys, values):
        new = self.project(x).unflatten(2, (-1, SIZE)).transpose(1, 2)
        key, value = new[:, :2], new[:, 2:]
        empty = torch.tensor([])
        keys, values = torch.cat([empty, keys], dim=-2), torch.cat([empty, values], dim=-2)
        keys, values = torch.cat([keys, key], dim=-2), torch.cat([values, value], dim=-2)
        attended = functional.scaled_dot_product_attention(new, keys, values, enable_gqa=True)
        return attended.transpose(1, 2).flatten(2)


@torch.no_grad()
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_a_cache_is_not_copied_to_append_to_it(tokens):
    torch.manual_seed(0)
    model, x = Appended().eval(), inputs(2, tokens, WIDTH)
    net = unquantized(model)
    for cached in (5, 64, 700):
        keys, values = inputs(2, 2, cached, SIZE, seed=1), inputs(2, 2, cached, SIZE, seed=2)
        found, wanted = net(x, keys, values), in_float64(model, x, keys, values)
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6)
    assert "concatenate" not in net.ir("lowered")
    assert "aten.cat" not in net.ir("lowered")


def test_training():
    """Our forward and backward give the gradients of float64."""
    torch.manual_seed(0)
    model, x, grad = Layer(key_heads=2, is_causal=True), inputs(2, 30, WIDTH), inputs(2, 30, WIDTH, seed=1)
    reference = copy.deepcopy(model).double()
    own = x.clone().requires_grad_()
    net = unquantized(model)
    net(own).backward(grad)
    wanted = x.double().requires_grad_()
    reference(wanted).backward(grad.double())
    torch.testing.assert_close(own.grad.double(), wanted.grad, rtol=0, atol=5e-6)
    for found, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found.grad.double(), expected.grad, rtol=1e-5, atol=1e-4)
    lines = lowered_attention(net)
    assert sum("call @attention_0" in line for line in lines) == 1
    assert sum("call @attention_backward_0" in line for line in lines) == 1
    assert not any(FLASH in line for line in lines)
    kernels = [row.kernel for row in net.explain().rows if "attention" in row.kernel]
    assert kernels == ["cpu attention", "cpu attention_backward"]


def test_dropout_stays_torchs():
    torch.manual_seed(0)
    net = unquantized(Layer(is_causal=True, dropout_p=0.5))
    net(inputs(1, 9, WIDTH))
    assert "call @attention" not in net.ir("lowered")


def test_other_targets_keep_torchs_op():
    net = steelyard.compile(Layer(is_causal=True).eval(), "mxfp8", target="cuda:sm_100a")
    with torch.no_grad():
        net.lower(inputs(1, 16, WIDTH))
    assert "call @attention" not in net.ir("lowered")
    assert FLASH in net.ir("lowered")
    assert any(row.kernel == FLASH for row in net.explain().rows)
