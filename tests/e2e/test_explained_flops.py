"""No FLOP is missing from `explain()`: the rows add up to what the eager model computes."""

from collections.abc import Callable

import pytest
import torch
from flop_count import count_flops
from small_models import MODELS, VOCABULARY
from torch import nn
from torch.utils._pytree import tree_leaves
from transformers import MixtralConfig, MixtralForCausalLM, T5Config, T5ForConditionalGeneration

import steelyard


class Recurrent(nn.Module):
    """Torch never captures these layers: they run between two graphs."""

    def __init__(self, layer: type):
        super().__init__()
        self.first = nn.Linear(24, 32)
        self.layer = layer(32, 20, num_layers=2, batch_first=True)
        self.last = nn.Linear(20, 24)

    def forward(self, x):
        return self.last(self.layer(self.first(x))[0])


class Experts(nn.Module):
    """A loop over the experts that were chosen: torch cannot capture how many tokens each one has."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(32, 4)
        self.up = nn.Parameter(torch.randn(4, 32, 48) / 6)
        self.down = nn.Linear(48, 32)

    def forward(self, x):
        scores, chosen = self.gate(x).softmax(-1).max(-1)
        result = torch.zeros(len(x), 48)
        for expert in chosen.unique().tolist():
            tokens = (chosen == expert).nonzero().squeeze(1)
            result = result.index_add(0, tokens, x[tokens] @ self.up[expert] * scores[tokens, None])
        return self.down(result)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4), nn.Flatten()),
            *(nn.Linear(8 * 4 * 4, 20), nn.Unflatten(1, (5, 4)), nn.Conv1d(5, 2, 2), nn.ConvTranspose1d(2, 3, 3)),
        )

    def forward(self, x):
        return self.layers(x)


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(48, 3, batch_first=True)

    def forward(self, x, context):
        return self.attention(x, context, context, need_weights=False)[0]


def make_recurrent(layer: type) -> tuple[nn.Module, dict]:
    return Recurrent(layer).eval(), {"x": torch.randn(3, 7, 24)}


def make_encoder() -> tuple[nn.Module, dict]:
    layer = nn.TransformerEncoderLayer(48, 3, 80, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval(), {"src": torch.randn(2, 7, 48)}


def make_cross_attention() -> tuple[nn.Module, dict]:
    return CrossAttention().eval(), {"x": torch.randn(2, 7, 48), "context": torch.randn(2, 5, 48)}


def make_double() -> tuple[nn.Module, dict]:
    model, arguments = MODELS["mlp"]()
    return model.double(), {"input": arguments["input"].double()}


def make_t5() -> tuple[nn.Module, dict]:
    config = T5Config(
        vocab_size=VOCABULARY, d_model=48, d_kv=16, d_ff=80, num_layers=1, num_heads=3, decoder_start_token_id=0
    )
    tokens = torch.randint(0, VOCABULARY, (2, 9))
    return T5ForConditionalGeneration(config).eval(), {"input_ids": tokens, "decoder_input_ids": tokens[:, :5]}


def make_mixtral() -> tuple[nn.Module, dict]:
    config = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    return MixtralForCausalLM(config).eval(), {"input_ids": torch.randint(0, VOCABULARY, (2, 9))}


FAMILIES: dict[str, Callable[[], tuple[nn.Module, dict]]] = MODELS | {
    "lstm": lambda: make_recurrent(nn.LSTM),
    "gru": lambda: make_recurrent(nn.GRU),
    "experts": lambda: (Experts(), {"x": torch.randn(30, 32)}),
    "convolutions": lambda: (Convolutions(), {"x": torch.randn(2, 3, 14, 14)}),
    "encoder": make_encoder,
    "cross attention": make_cross_attention,
    "float64": make_double,
    "t5": make_t5,
    "mixtral": make_mixtral,
}
SLOW_TO_TRAIN = ("t5", "mixtral", "llama", "gpt2", "vit")


def train(model: nn.Module, arguments: dict) -> None:
    outputs = [x for x in tree_leaves(model(**arguments)) if isinstance(x, torch.Tensor) and x.requires_grad]
    sum(x.float().square().sum() for x in outputs).backward()


def infer(model: nn.Module, arguments: dict) -> None:
    with torch.no_grad():
        model(**arguments)


@pytest.mark.every(5)
@pytest.mark.filterwarnings("ignore:only .* of the FLOPs")
@pytest.mark.parametrize("name", FAMILIES)
def test_no_flop_of_inference_is_missing(name):
    assert_all_counted(name, infer)


@pytest.mark.every(7)
@pytest.mark.filterwarnings("ignore:only .* of the FLOPs")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW_TO_TRAIN)) for name in FAMILIES]
)
def test_no_flop_of_training_is_missing(name):
    assert_all_counted(name, train)


def test_sizes_known_only_at_run_time_are_counted_as_they_ran():
    torch.manual_seed(0)
    model, _ = MODELS["mlp"]()
    net = steelyard.compile(model, "mxfp8")
    counted = []
    for tokens in (5, 9):
        arguments = {"input": torch.randn(tokens, 37)}
        infer(net, arguments)
        counted.append(count_flops(model, lambda arguments=arguments: infer(model, arguments)))
    rows = net.explain().rows
    assert [row.M for row in rows] == ["5", "5", "5", "?", "?", "?"]
    assert [sum(row.flops for row in some) for some in (rows[:3], rows[3:])] == counted


@pytest.mark.filterwarnings("ignore:only .* of the FLOPs")
def test_products_of_attention_are_counted_where_they_are_quantized():
    torch.manual_seed(0)
    model, arguments = make_cross_attention()
    net = steelyard.compile(model, "mxfp8", attention=True)
    infer(net, arguments)
    assert sum(row.flops for row in net.explain().rows) == count_flops(model, lambda: infer(model, arguments))
    assert sum(row.is_quantized for row in net.explain().rows) == 5


def assert_all_counted(name: str, run: Callable[[nn.Module, dict], None]) -> None:
    torch.manual_seed(0)
    model, arguments = FAMILIES[name]()
    expected = count_flops(model, lambda: run(model, arguments))
    net = steelyard.compile(model, "mxfp8")
    run(net, arguments)
    rows = net.explain().rows
    assert sum(row.flops for row in rows) == expected > 0, f"{net.explain()}\n{[row.flops for row in rows]}"
    assert all(row.reason or row.is_quantized for row in rows)
    # Another call finds nothing new.
    run(net, arguments)
    assert set(net.explain().rows) == set(rows)
