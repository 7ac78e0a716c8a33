"""Gradients of whole models against a copy that trains by the reference."""

import statistics

import pytest
import torch
from small_models import LINEAR_LAYERS, VOCABULARY, make_gpt2, make_llama
from torch import nn
from torch.nn import functional
from training_oracle import Numerics, error_share, gradients_of, make_training_oracle

import steelyard
from steelyard import recipes

FORWARD, BACKWARD = ("input", "weight"), ("grad_output",)


class GPTBlock(nn.Module):
    """Norm, attention, norm, gelu: two residuals."""

    def __init__(self, width: int = 96, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class LlamaBlock(nn.Module):
    """RMS norms, and a gate."""

    def __init__(self, width: int = 96, hidden: int = 200, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        normed = self.norm1(x)
        q, k, v = (layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        normed = self.norm2(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def block_loss(model: nn.Module, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x, target = (torch.randn(2, 17, 96, generator=generator) for _ in range(2))
    return functional.mse_loss(model(x), target)


def language_loss(model: nn.Module, seed: int) -> torch.Tensor:
    tokens = torch.randint(0, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(seed))
    return model(input_ids=tokens, labels=tokens).loss


def make_block(block_class: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return block_class()


MODELS = {
    "gpt block": (lambda: make_block(GPTBlock), block_loss),
    "llama block": (lambda: make_block(LlamaBlock), block_loss),
    "gpt2": (lambda: make_gpt2()[0], language_loss),
    "llama": (lambda: make_llama()[0], language_loss),
}


@pytest.mark.every(5)
@pytest.mark.parametrize("recipe", recipes.NAMES)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_follow_the_oracle(name, recipe):
    make, loss_of = MODELS[name]
    model = make()
    # Models whose dropout is off are in eval mode, and their nets keep the weights of inference.
    numerics = Numerics(recipes.get(recipe).settled(trains=model.training))
    oracle, net = make_training_oracle(model, numerics), steelyard.compile(model, recipe)
    shares = []
    for seed in range(3):
        exact = gradients_of(model, loss_of(model, seed))
        expected = gradients_of(oracle, loss_of(oracle, seed))
        # Nothing writes the weights, so they keep the codes of the first step.
        numerics.update_state(*FORWARD, *BACKWARD)
        shares.append(error_share(gradients_of(net, loss_of(net, seed)), expected, exact))
    # Rounding is discontinuous: the last bit of a sum may flip a code, and in a tensor's largest value, all codes.
    assert statistics.median(shares) <= 0.25
    assert max(shares) <= 1.5


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_linear_layer_has_three_quantized_gemms(name):
    make, loss_of = MODELS[name]
    net = steelyard.compile(make(), "mxfp8")
    loss_of(net, 0).backward()
    found = sorted((row.layer, row.kind) for row in net.explain().rows if not row.reason)
    assert found == sorted((layer, kind) for layer in LINEAR_LAYERS[name] for kind in ("fprop", "dgrad", "wgrad"))


@pytest.mark.every(4)
@pytest.mark.parametrize("name", MODELS)
def test_nothing_quantized_is_eager_autograd(name):
    make, loss_of = MODELS[name]
    model = make()
    exact = gradients_of(model, loss_of(model, 0))
    net = steelyard.compile(model, recipes.CustomRecipe(lambda role: None))
    got = gradients_of(net, loss_of(net, 0))
    assert got.keys() == exact.keys()
    for parameter, gradient in exact.items():
        tolerance = 1e-5 * gradient.abs().max().item()
        torch.testing.assert_close(got[parameter], gradient, rtol=1e-5, atol=tolerance)
