"""`steelyard.tune` on layers that are no plain linear: experts, transposed weights, and weights that layers share."""

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import steelyard
from steelyard.recipes import get
from steelyard.tensor.stack import QuantizedStack
from steelyard.tuning.batches import divergence
from steelyard.tuning.calibration import compensated
from steelyard.tuning.emulation import quantized_inputs, rounded_weights
from steelyard.tuning.gptq import Options
from steelyard.tuning.layers import find_layers
from steelyard.tuning.products import Product, find_groups

WORDS = 48
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
MIXTRAL = MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
QWEN = Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=8)
LLAMA4 = Llama4TextConfig(**SIZES, intermediate_size_mlp=64, num_local_experts=4, head_dim=8)
GPT2 = GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0)
MODELS = {
    "mixtral": (MixtralForCausalLM, MIXTRAL),
    "qwen3-moe": (Qwen3MoeForCausalLM, QWEN),
    "llama4": (Llama4ForCausalLM, LLAMA4),
    "gpt2": (GPT2LMHeadModel, GPT2),
}
MODULES = ("mlp", "feed_forward")
STACKS = {
    f"model.layers.{block}.{mlp}.experts.{name}"
    for block in (0, 1)
    for mlp in MODULES
    for name in ("gate_up_proj", "down_proj")
}


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(WORDS, (4, 16), generator=generator) for _ in range(6)]


@pytest.mark.every(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_tuned_net_computes_what_was_judged(name, batches):
    torch.manual_seed(0)
    kind, config = MODELS[name]
    model = kind(config).eval()
    tuned, recipe = steelyard.tune(model, batches, bits=4.5, formats=["nvfp4-4over6"])
    layers = find_layers(model, ["lm_head"])
    stacks = {each for each, layer in layers.items() if layer.is_stack}
    assert stacks == {each for each in STACKS if each in layers}
    assert bool(stacks) == (name != "gpt2")
    own = {each: recipe.recipe_of(each) for each in layers}
    reached = {each for group in find_groups(model, layers, batches[0]) for each in group.layers}
    assert stacks <= reached
    net = steelyard.compile(tuned, recipe)
    with torch.no_grad():
        given = net(batches[0]).logits
        exact = model(batches[0]).logits
        with quantized_inputs(tuned, own):
            judged = tuned(batches[0]).logits
        with rounded_weights(model, own), quantized_inputs(model, own):
            nearest = model(batches[0]).logits
    assert divergence(given, judged, is_logits=False) < 1e-6
    assert divergence(given, exact, is_logits=True) < divergence(nearest, exact, is_logits=True)
    rows = {row.layer: row for row in net.explain().rows if row.N}
    assert {each for each, row in rows.items() if row.is_quantized} == reached
    for each in stacks:
        assert isinstance(tuned.get_parameter(each), QuantizedStack)


def test_each_expert_compensates_for_the_rows_that_it_is_given():
    """Codes of an expert are those of a linear layer that is given its rows alone."""
    torch.manual_seed(0)

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 32, 16))

        def forward(self, x):
            return torch._grouped_mm(x, self.weight, offs=torch.tensor([8, 8, 40], dtype=torch.int32))

    model, recipe = Experts(), get("mxfp8").settled(trains=False)
    batches = [torch.randn(40, 32) for _ in range(3)]
    groups = find_groups(model, find_layers(model, []), batches[0])
    assert [group.layers for group in groups] == [("weight",)]
    tuned = compensated(model, batches, groups, {"weight": recipe}, Options())
    for expert, rows in ((0, slice(0, 8)), (2, slice(8, 40))):
        linear = nn.Linear(32, 16, bias=False)
        linear.weight.data = model.weight.data[expert].t().contiguous()
        own = [batch[rows] for batch in batches]
        chain = nn.Sequential(linear)
        alone = compensated(chain, own, find_groups(chain, find_layers(chain, []), own[0]), {"0": recipe}, Options())
        assert torch.equal(tuned.weight[expert].dequantize().t(), alone[0].weight.dequantize())
    # No row is given to the second expert: its codes are near its values all the same.
    assert (tuned.weight[1].dequantize() - model.weight[1]).norm() < 0.05 * model.weight[1].norm()


def test_rows_of_experts():
    x = torch.arange(10.0).reshape(5, 2)
    product = Product("experts", x, (2, 2, 5))
    assert [len(rows) for rows in product.rows()] == [2, 0, 3]
    matrices = torch.stack([torch.eye(2), torch.zeros(2, 2), 2 * torch.eye(2)])
    assert torch.equal(product.times(matrices, x), torch.cat([x[:2], 2 * x[2:]]))


class Shared(nn.Module):
    """Two layers with one weight, and one with its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(32, 32, bias=False) for _ in range(3))
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


def test_layers_that_share_a_weight_share_its_codes_and_recipe():
    torch.manual_seed(0)
    model, batches = Shared().eval(), [torch.randn(16, 32) for _ in range(6)]
    layers = find_layers(model, [])
    assert list(layers) == ["first", "third"]
    assert [group.layers for group in find_groups(model, layers, batches[0])] == [("third",), ("first",)]
    tuned, recipe = steelyard.tune(model, batches, bits=6.5, formats=["nvfp4-4over6/none", "mxfp8"])
    assert tuned.first.weight is tuned.second.weight
    assert recipe.recipe_of("first") == recipe.recipe_of("second")
    # One weight of 1,024 numbers counts once: one of the two in 8.25 bits, the other in 4.5.
    assert recipe.about["tried"][-1]["bits"] == (4.5 + 8.25) / 2
    net = steelyard.compile(tuned, recipe)
    with torch.no_grad():
        given = net(batches[0])
        with quantized_inputs(tuned, {name: recipe.recipe_of(name) for name in layers}):
            judged = tuned(batches[0])
    assert divergence(given, judged, is_logits=False) < 1e-9
