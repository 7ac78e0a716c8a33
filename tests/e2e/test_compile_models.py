import copy

import pytest
import torch
from oracle import assert_follows, assert_gemms_are_exact, assert_no_worse, make_oracle, nearest_oracle
from small_models import LINEAR_LAYERS, MODELS, make_bert, make_gpt2, make_llama, make_mlp, quantized_layers
from torch import nn

import steelyard
from steelyard import recipes

HIGH_PRECISION = {
    "mlp": {},
    "gpt2": {f"transformer.h.{i}.attn": "attention" for i in range(2)},
    "llama": {f"model.layers.{i}.self_attn": "attention" for i in range(2)},
    "bert": {f"encoder.layer.{i}.attention.self": "attention" for i in range(2)},
    "vit": {"embeddings.patch_embeddings.projection": "convolution"}
    | {f"layers.{i}.attention": "attention" for i in range(2)},
}


@torch.no_grad()
def first_output(model: nn.Module, arguments: dict) -> torch.Tensor:
    result = model(**arguments)
    return result if isinstance(result, torch.Tensor) else result[0]


@pytest.mark.every(5)
@pytest.mark.parametrize("recipe", recipes.NAMES)
@pytest.mark.parametrize("name", MODELS)
def test_model_follows_the_oracle(name, recipe, gemm_calls):
    model, arguments = MODELS[name]()
    exact = first_output(model, arguments)
    expected = first_output(make_oracle(model, recipe), arguments)
    net = steelyard.compile(model, recipe)
    assert_follows(first_output(net, arguments), expected, exact)
    assert quantized_layers(net) == LINEAR_LAYERS[name]
    kept = {row.layer: row.reason for row in net.explain().rows if row.reason}
    assert kept.keys() == HIGH_PRECISION[name].keys()
    assert all(word in kept[layer] for layer, word in HIGH_PRECISION[name].items())
    assert len(gemm_calls) == len(LINEAR_LAYERS[name])
    assert_gemms_are_exact(gemm_calls)


def in_dtype(arguments: dict, dtype: torch.dtype) -> dict:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in arguments.items()}


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", recipes.NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_mlp_follows_the_oracle(dtype, recipe, gemm_calls):
    model, arguments = make_mlp()
    exact = first_output(model, arguments)
    model.to(dtype)
    arguments = in_dtype(arguments, dtype)
    got = first_output(steelyard.compile(model, recipe), arguments)
    assert got.dtype == dtype
    assert_follows(got, nearest_oracle(got, model, recipe, arguments["input"]), exact)
    assert_gemms_are_exact(gemm_calls)


class NormalHeads(nn.Module):
    """A norm of each head, whose weight is as long as a head, and a linear of all heads."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm, self.project = norm, nn.Linear(32, 32)

    def forward(self, x):
        return self.project(self.norm(x.view(-1, 4, 8)).reshape(-1, 32))


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(8), RMSNorm], ids=["layer norm", "RMS norm"])
def test_norms_of_heads_follow_the_oracle(make, gemm_calls):
    torch.manual_seed(0)
    model, x = NormalHeads(make()), torch.randn(6, 32)
    got = steelyard.compile(model, "mxfp8")(x)
    assert_follows(got, make_oracle(model, "mxfp8")(x), model(x))
    assert_gemms_are_exact(gemm_calls)


class SumOfASum(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.dims, self.project = dims, nn.Linear(32, 32)

    def forward(self, x):
        return self.project(x).sum().sum(self.dims)


@torch.no_grad()
@pytest.mark.parametrize("dims", [0, -1])
def test_sums_of_a_number(dims):
    torch.manual_seed(0)
    model, x = SumOfASum(dims), torch.randn(4, 32)
    got = steelyard.compile(model, "mxfp8")(x)
    assert_follows(got, make_oracle(model, "mxfp8")(x), model(x))


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_llama_is_no_worse_than_the_oracle(dtype, gemm_calls):
    model, arguments = make_llama()
    exact = first_output(model, arguments)
    model.to(dtype)
    net = steelyard.compile(model, "mxfp8")
    assert_no_worse(first_output(net, arguments), first_output(make_oracle(model, "mxfp8"), arguments), exact)
    assert quantized_layers(net) == LINEAR_LAYERS["llama"]
    assert len(gemm_calls) == len(LINEAR_LAYERS["llama"])
    assert_gemms_are_exact(gemm_calls)


def test_autocast_quantizes_the_values_that_it_casts(gemm_calls):
    model, arguments = make_mlp()
    exact = first_output(model, arguments)
    net = steelyard.compile(model, "mxfp8")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = first_output(net, arguments)
        expected = nearest_oracle(got, model, "mxfp8", arguments["input"])
    assert_follows(got, expected, exact)
    assert {result.dtype for *_, result in gemm_calls} == {torch.bfloat16}
    # Outside of autocast, the same net computes in the model's own dtype.
    assert_follows(first_output(net, arguments), first_output(make_oracle(model, "mxfp8"), arguments), exact)
    assert gemm_calls[-1][-1].dtype == torch.float32


def test_gpt2_under_autocast_is_no_worse_than_the_oracle(gemm_calls):
    model, arguments = make_gpt2()
    exact = first_output(model, arguments)
    net = steelyard.compile(model, "mxfp8")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = first_output(make_oracle(model, "mxfp8"), arguments), first_output(net, arguments)
    assert_no_worse(got, expected, exact)
    assert quantized_layers(net) == LINEAR_LAYERS["gpt2"]
    assert_gemms_are_exact(gemm_calls)


def test_positional_and_keyword_arguments_are_one_call():
    model, arguments = make_bert()
    mask = torch.ones_like(arguments["input_ids"])
    mask[:, -3:] = 0
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        positional = net(arguments["input_ids"], mask)
        keyword = net(attention_mask=mask, input_ids=arguments["input_ids"])
        exact = model(arguments["input_ids"], mask)
        expected = make_oracle(model, "mxfp8")(arguments["input_ids"], mask)
    assert torch.equal(positional.last_hidden_state, keyword.last_hidden_state)
    assert_follows(positional.last_hidden_state, expected.last_hidden_state, exact.last_hidden_state)
    assert_follows(positional.pooler_output, expected.pooler_output, exact.pooler_output)


class Nested(nn.Module):
    """Takes and returns containers, which also hold values that are not tensors."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(33, 20)
        self.second = nn.Linear(20, 7)

    def forward(self, pair, *, options, flag=True):
        x, y = pair
        hidden = self.first(x) + self.first(y["inner"]) * options["factor"]
        return {"hidden": hidden, "rest": (self.second(hidden), [x, None, 3], "word" if flag else "other")}


def test_nested_arguments_and_outputs():
    torch.manual_seed(0)
    model = Nested().eval()
    pair = (torch.randn(4, 33), {"inner": torch.randn(4, 33)})
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        results = [m(pair, options={"factor": 2.0}) for m in (net, make_oracle(model, "mxfp8"), model)]
    assert_follows(*(result["hidden"] for result in results))
    assert_follows(*(result["rest"][0] for result in results))
    _, others, word = results[0]["rest"]
    assert torch.equal(others[0], pair[0])
    assert (others[1:], word) == ([None, 3], "word")
    assert isinstance(results[0]["rest"], tuple)
    # One layer called twice is one GEMM per call.
    assert quantized_layers(net) == ["first", "first", "second"]


def test_overrides_choose_a_recipe_for_each_layer():
    model, arguments = make_llama()
    exact = first_output(model, arguments)
    net = steelyard.compile(model, "nvfp4", overrides={"lm_head": None, "model.layers.0.*": "mxfp8"})
    with torch.no_grad():
        result = net(**arguments)
    first_block = {name: "mxfp8" for name in LINEAR_LAYERS["llama"] if name.startswith("model.layers.0.")}
    expected = first_output(make_oracle(model, "nvfp4", {"lm_head": None} | first_block), arguments)
    assert_follows(result.logits, expected, exact)
    assert type(result).__name__ == "CausalLMOutputWithPast"
    assert result.past_key_values.get_seq_length() == arguments["input_ids"].shape[1]
    formats = {row.layer: (row.lhs, row.rhs) for row in net.explain().rows if not row.reason}
    assert formats.pop("model.layers.1.mlp.up_proj") == ("e2m1 1x16", "e2m1 1x16")
    assert formats.pop("model.layers.0.mlp.up_proj") == ("e4m3 1x32", "e4m3 1x32")
    assert "lm_head" not in formats
    assert "override 'lm_head'" in next(row.reason for row in net.explain().rows if row.layer == "lm_head")


def test_generate_runs_every_linear_quantized(gemm_calls):
    model, arguments = make_llama()
    prompt, steps = arguments["input_ids"], 6
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        options = {"max_new_tokens": steps, "do_sample": False, "pad_token_id": 0}
        got = net.generate(prompt, output_logits=True, return_dict_in_generate=True, **options)
    assert got.sequences.shape == (2, prompt.shape[1] + steps)
    assert len(gemm_calls) == steps * len(LINEAR_LAYERS["llama"])
    # With a cache, every step but the first sees one token per sequence.
    assert [a.shape[0] for a, *_ in gemm_calls[-len(LINEAR_LAYERS["llama"]) :]] == [2] * len(LINEAR_LAYERS["llama"])
    # MX scales belong to a row, so tokens quantize alike whether they come in one call or in many.
    seen = {"input_ids": got.sequences[:, :-1]}
    expected, exact = (first_output(m, seen)[:, -steps:] for m in (make_oracle(model, "mxfp8"), model))
    assert_follows(torch.stack(got.logits, dim=1), expected, exact)


def test_the_model_itself_stays_in_high_precision(gemm_calls):
    model, arguments = make_mlp()
    exact, state = first_output(model, arguments), copy.deepcopy(model.state_dict())
    net = steelyard.compile(model, "nvfp4")
    first_output(net, arguments)
    gemm_calls.clear()
    assert torch.equal(first_output(model, arguments), exact)
    assert torch.equal(first_output(net.model, arguments), exact)
    assert not gemm_calls
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
