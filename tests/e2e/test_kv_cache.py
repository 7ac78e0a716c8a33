"""`kv_cache="fp8"`: keys and values in E4M3 with one scale per token and head."""

import copy

import ml_dtypes
import numpy as np
import pytest
import torch
from small_models import VOCABULARY, make_llama
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
    StaticCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)

import steelyard
from steelyard.errors import RecipeError, UnsupportedModelError
from steelyard.recipes import CustomRecipe

HEADS, WIDTH = 2, 24
NOTHING = CustomRecipe(lambda role: None)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """A tensor as E4M3 with a scale per row holds it."""
    values = x.float().numpy()
    amax = np.abs(values).max(-1, keepdims=True)
    scale = np.where(amax > 0, np.float32(448) / np.where(amax > 0, amax, np.float32(1)), np.float32(1))
    codes = (values * scale).astype(ml_dtypes.float8_e4m3fn)
    return torch.from_numpy(codes.astype(np.float32) * (np.float32(1) / scale)).to(x.dtype)


class RoundedLayer(DynamicLayer):
    """A plain layer that is given what FP8 holds."""

    def update(self, key_states, value_states, *arguments, **keywords):
        return super().update(rounded(key_states), rounded(value_states), *arguments, **keywords)


def rounded_cache() -> DynamicCache:
    cache = DynamicCache()
    cache.layer_class_to_replicate = RoundedLayer
    return cache


def make_states(tokens: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    keys, values = (torch.randn(3, HEADS, tokens, WIDTH, generator=generator) for _ in range(2))
    keys[0, 0, 0] = 0
    return [keys.to(dtype), (1e4 * values).to(dtype)]


def make_tokens() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(0))


LAYERS = {
    "dynamic": DynamicLayer,
    "dynamic window": lambda: DynamicSlidingWindowLayer(sliding_window=6),
    "static": lambda: StaticLayer(max_cache_len=16),
    "static window": lambda: StaticSlidingWindowLayer(max_cache_len=16, sliding_window=6),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_hold_what_fp8_holds(kind, dtype):
    cache = DynamicCache()
    cache.layers, cache.layer_class_to_replicate = [LAYERS[kind]()], None
    (layer,) = steelyard.quantize_cache(cache).layers
    plain = LAYERS[kind]()
    assert isinstance(layer, type(plain))
    for tokens in (5, 1, 1, 2):
        states = make_states(tokens, dtype)
        found = layer.update(*states)
        for one, expected in zip(found, plain.update(*map(rounded, states)), strict=True):
            assert one.dtype == dtype
            assert torch.equal(one, expected)
        assert layer.get_seq_length() == plain.get_seq_length()
        assert layer.get_mask_sizes(1) == plain.get_mask_sizes(1)
    assert torch.equal(layer.keys, plain.keys)
    assert torch.equal(layer.values, plain.values)
    # A byte for each element, and four for each token and head.
    rows = plain.keys.shape[:-1].numel()
    assert layer.nbytes == 2 * rows * (WIDTH + 4)


def test_beams_and_tokens_are_chosen_as_in_a_plain_layer():
    (layer,) = steelyard.quantize_cache(DynamicCache([make_states(9)])).layers
    # What a cache holds already is quantized at once.
    plain = DynamicLayer()
    plain.update(*map(rounded, make_states(9)))
    steps = [
        ("crop", -2),
        ("reorder_cache", torch.tensor([2, 2, 0])),
        ("batch_repeat_interleave", 2),
        ("batch_select_indices", torch.tensor([0, 5])),
    ]
    for name, argument in steps:
        for one in (layer, plain):
            getattr(one, name)(argument)
        assert torch.equal(layer.keys, plain.keys), name
        assert torch.equal(layer.values, plain.values), name
    layer.reset()
    assert layer.get_seq_length() == 0
    found, _ = layer.update(*make_states(3))
    assert torch.equal(found, rounded(make_states(3)[0]))


def test_both_caches_of_an_encoder_and_decoder():
    cache = steelyard.quantize_cache(EncoderDecoderCache(DynamicCache(), DynamicCache()))
    for part in (cache.self_attention_cache, cache.cross_attention_cache):
        part.update(*make_states(4), 1)
        # Models read these of an encoder's tokens.
        assert torch.equal(part.layers[1].keys, rounded(make_states(4)[0]))
    assert steelyard.quantize_cache(cache).self_attention_cache.layers[1] is cache.self_attention_cache.layers[1]


@pytest.mark.every(2)
@torch.no_grad()
@pytest.mark.filterwarnings("ignore:only 0% of the FLOPs")
@pytest.mark.parametrize(
    ("blocks", "length"), [(False, None), (["model.layers"], 16)], ids=["dynamic", "static, blocks"]
)
def test_compiled_calls_read_what_fp8_holds(blocks, length):
    model, _ = make_llama()
    model.eval()
    config, tokens, expected, exact = model.config, make_tokens(), rounded_cache(), DynamicCache()
    net = steelyard.compile(model, NOTHING, kv_cache="fp8", blocks=blocks)
    cache = DynamicCache(config=config) if length is None else StaticCache(config=config, max_cache_len=length)
    for part in (tokens[:, :9], tokens[:, 9:10], tokens[:, 10:]):
        wanted, high = (model(part, past_key_values=one).logits for one in (expected, exact))
        got = net(part, past_key_values=cache).logits
        # Rounding is discontinuous: the last bit of a key may flip a code.
        assert (got - wanted).norm() <= 0.1 * (wanted - high).norm()
    rows = 2 * 2 * config.num_key_value_heads * (length or 11)
    width = config.hidden_size // config.num_attention_heads
    assert [layer.nbytes for layer in cache.layers] == [rows * (width + 4)] * 2
    text = net.ir("quantized")
    for found in ("scaled.quantize input", "scaled.split", "scaled.join", "scaled.dequantize rowwise"):
        assert found in text
    for gone in ("encode_rows", "decode_rows"):
        assert gone not in text


@pytest.mark.every(2)
@torch.no_grad()
@pytest.mark.parametrize("length", [None, 16], ids=["dynamic", "static"])
def test_a_token_reads_the_codes_of_the_cache(length):
    """Nothing is decoded before attention, and the heads of keys are not repeated for those of queries."""
    model, _ = make_llama()
    net = steelyard.compile(model.eval(), "mxfp8", kv_cache="fp8")
    options = {"config": model.config}
    cache = DynamicCache(**options) if length is None else StaticCache(**options, max_cache_len=length)
    net(make_tokens()[:, :9], past_key_values=cache)
    net(make_tokens()[:, 9:10], past_key_values=cache)
    step = net.ir("lowered").split("module @")[-1]
    calls = [line for line in step.splitlines() if "call @attention" in line]
    assert len(calls) == model.config.num_hidden_layers
    assert all(line.count(f"[2,{model.config.num_key_value_heads},") == 4 for line in calls)
    assert all(line.count("ui8>") == 2 for line in calls)
    assert "dequantize" not in step


@torch.no_grad()
def test_generate_quantizes_its_cache():
    model, _ = make_llama()
    model.eval()
    net = steelyard.compile(model, "mxfp8", kv_cache="fp8")
    mask = torch.ones(2, 11, dtype=torch.int64)
    made = net.generate(
        make_tokens(), attention_mask=mask, max_new_tokens=2, do_sample=False, return_dict_in_generate=True
    )
    assert made.sequences.shape == (2, 13)
    width = model.config.hidden_size // model.config.num_attention_heads
    for layer in made.past_key_values.layers:
        # The last token is not in the cache.
        assert layer.nbytes == 2 * 2 * model.config.num_key_value_heads * 12 * (width + 4)
    assert any("keys and values in e4m3" in note for note in net.explain().notes)


def test_gradients_and_wrong_arguments_are_refused():
    model, _ = make_llama()
    cache = steelyard.quantize_cache(DynamicCache(config=model.config))
    with pytest.raises(UnsupportedModelError, match=r"no gradients; call the model under torch.no_grad\(\)"):
        model(make_tokens(), past_key_values=copy.deepcopy(cache))
    with pytest.raises(RecipeError, match="kv_cache must be None or 'fp8', got 'int4'"):
        steelyard.compile(model, "mxfp8", kv_cache="int4")
    with pytest.raises(UnsupportedModelError, match="quantize_cache takes a DynamicCache"):
        steelyard.quantize_cache({})
