"""Which factors can be folded, and that folding them changes nothing, in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from steelyard.recipes import get
from steelyard.tuning.folding import Fold, best_factors, find_folds
from steelyard.tuning.layers import find_layers
from steelyard.tuning.products import find_groups

SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
TOKENS = torch.arange(24).reshape(2, 12)


def folded(model, batch):
    groups = find_groups(model, find_layers(model, ["lm_head"]), batch)
    return {group.name: group for group in groups}, find_folds(model, groups, batch)


def perturbed(model):
    """A model whose norms differ from one, so that wrong folds are noticed."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.rand_like(parameter) if "norm" in name else torch.randn_like(parameter))
    return model.eval()


def applied(model, groups, folds):
    generator = torch.Generator().manual_seed(1)
    for name, fold in folds.items():
        fold.apply(model, groups[name], torch.rand(fold.count, generator=generator).double() + 0.5)


@pytest.mark.parametrize(
    ("kind", "config", "sources"),
    [
        (
            LlamaForCausalLM,
            LlamaConfig(**SIZES, attention_bias=True),
            {
                "self_attn.q_proj|k_proj|v_proj": "input_layernorm",
                "self_attn.o_proj": "self_attn.v_proj",
                "mlp.gate_proj|up_proj": "post_attention_layernorm",
                "mlp.down_proj": "mlp.up_proj",
            },
        ),
        # The norm multiplies by 1 + weight.
        (
            Gemma2ForCausalLM,
            Gemma2Config(**SIZES, head_dim=8),
            {
                "self_attn.q_proj|k_proj|v_proj": "input_layernorm",
                "self_attn.o_proj": "self_attn.v_proj",
                "mlp.gate_proj|up_proj": "pre_feedforward_layernorm",
                "mlp.down_proj": "mlp.up_proj",
            },
        ),
        # The last half of one layer is up.
        (
            Phi3ForCausalLM,
            Phi3Config(**SIZES, tie_word_embeddings=False),
            {
                "self_attn.qkv_proj": "input_layernorm",
                "mlp.gate_up_proj": "post_attention_layernorm",
                "mlp.down_proj": "mlp.gate_up_proj",
            },
        ),
    ],
    ids=["llama", "gemma2", "phi3"],
)
def test_folds_of_transformers(kind, config, sources):
    torch.manual_seed(0)
    model = perturbed(kind(config))
    groups, folds = folded(model, TOKENS)
    expected = {
        f"model.layers.{n}.{name}": f"model.layers.{n}.{source}" for n in (0, 1) for name, source in sources.items()
    }
    assert {name: fold.source for name, fold in folds.items()} == expected
    with torch.no_grad():
        exact = model.double()(TOKENS).logits
        applied(model, groups, folds)
        made = model(TOKENS).logits
    # transformers' norms compute in float32.
    assert (made - exact).norm() < 1e-6 * exact.norm()
    assert any(fold.offset for fold in folds.values()) == (kind is Gemma2ForCausalLM)


def test_shared_key_heads_share_factors():
    model = perturbed(LlamaForCausalLM(LlamaConfig(**SIZES)))
    _, folds = folded(model, TOKENS)
    fold = folds["model.layers.0.self_attn.o_proj"]
    # Heads of 8: query heads 0 and 1 read key head 0, and 2 and 3 read 1.
    assert fold.places == (*range(8), *range(8), *range(8, 16), *range(8, 16))


class Residual(nn.Module):
    """A norm with a bias whose result is also added to the output, unless asked not to."""

    def __init__(self, is_read, activation):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.is_read, self.activation = is_read, activation

    def forward(self, x):
        normed = self.norm(x)
        made = self.second(self.activation(self.first(normed)))
        return made + normed if self.is_read else made


@pytest.mark.parametrize(
    ("is_read", "activation", "sources"),
    [
        (False, functional.relu, {"first": "norm", "second": "first"}),
        (False, nn.Identity(), {"first": "norm", "second": "first"}),
        (False, functional.gelu, {"first": "norm"}),
        (True, functional.relu, {"second": "first"}),
    ],
)
def test_what_is_not_exact_is_not_folded(is_read, activation, sources):
    torch.manual_seed(0)
    model = perturbed(Residual(is_read, activation))
    x = torch.randn(4, 16)
    groups, folds = folded(model, x)
    assert {name: fold.source for name, fold in folds.items()} == sources
    with torch.no_grad():
        exact = model.double()(x.double())
        applied(model, groups, folds)
        assert (model(x.double()) - exact).norm() < 1e-12 * exact.norm()


def test_what_others_read_is_not_folded():
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": Residual(False, functional.relu), "b": Residual(False, functional.relu)})
    model["b"].norm.weight = model["a"].norm.weight
    chain = perturbed(nn.Sequential(model["a"], model["b"]))
    _, folds = folded(chain, torch.randn(4, 16))
    assert {name: fold.source for name, fold in folds.items()} == {"0.second": "0.first", "1.second": "1.first"}


def test_factors_help_inputs_with_large_columns():
    torch.manual_seed(0)
    x, weight = torch.randn(64, 32), torch.randn(48, 32)
    x[:, ::16] *= 30
    fold = Fold("norm", 0, tuple(range(32)))
    factors = best_factors(fold, x, [weight], get("nvfp4-4over6"))
    assert factors is not None
    assert factors[::16].min() > 2 * factors[1:16].max()
    # Inputs that are not rounded and weights of one size have nothing to gain from factors that differ much.
    even = best_factors(fold, torch.ones(64, 32), [torch.ones(48, 32)], get("nvfp4-4over6/none"))
    assert even is None


class Experts(nn.Module):
    """Layers of which each is called with the rows that have its number first."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(3))

    def forward(self, x):
        made = [expert(x[x[:, 0] == number]) for number, expert in enumerate(self.experts) if number in x[:, 0]]
        return torch.cat(made)


def routed(numbers):
    x = torch.randn(len(numbers), 16)
    x[:, 0] = torch.tensor(numbers)
    return x


@pytest.mark.parametrize("numbers", [[0, 1, 2, 0, 1, 2], [2, 1, 0]])
def test_layers_that_do_not_read_each_other_are_not_folded(numbers):
    """Neither where the first row, which folds are tried with, reaches one of them only, nor where it reaches none."""
    torch.manual_seed(0)
    groups, folds = folded(Experts().eval(), routed(numbers))
    assert len(groups) == 3
    assert folds == {}


class Unused(nn.Module):
    """A layer whose input is read by the next, which the output does not depend on."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        self.second(torch.zeros_like(self.first(x)))
        return self.third(x)


def test_layers_that_are_given_nothing_of_a_source_are_not_folded():
    _, folds = folded(perturbed(Unused()), torch.randn(4, 16))
    assert folds == {}


class Fixed(nn.Module):
    """Takes rows of 24 tokens only."""

    def __init__(self):
        super().__init__()
        self.embedding, self.first, self.second = nn.Embedding(48, 8), nn.Linear(192, 32), nn.Linear(32, 48)

    def forward(self, tokens):
        return self.second(torch.relu(self.first(self.embedding(tokens).flatten(1))))


class Turned(nn.Module):
    """Takes columns: the first dimension counts features."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return self.second(torch.relu(self.first(x.t()))).t()


class Strict(Turned):
    """Refuses what is not in float32, by an error of its own."""

    def forward(self, x):
        if x.dtype != torch.float32:
            raise ValueError("x must be in float32")
        return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "batch", "sources"),
    [
        (Fixed, torch.arange(48).reshape(2, 24), {"second": "first"}),
        (Turned, torch.ones(16, 5), {"second": "first"}),
        (Strict, torch.ones(16, 5), {}),
    ],
)
def test_what_cannot_be_tried_with_one_row_is_tried_with_all_or_not_folded(kind, batch, sources):
    _, folds = folded(perturbed(kind()), batch)
    assert {name: fold.source for name, fold in folds.items()} == sources
