"""`kv_scales`: cached keys and values in E4M3 by given scales, and a count of what saturates."""

import copy

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, dequantize, quantize
from small_models import VOCABULARY, make_llama
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache, StaticCache

import steelyard
from steelyard.errors import RecipeError, UnsupportedModelError
from steelyard.recipes import CustomRecipe

NOTHING = CustomRecipe(lambda role: None)
LAYERS = ("model.layers.0.self_attn", "model.layers.1.self_attn")
# Some keys and values of the second layer are too large for its scales.
SCALES = {LAYERS[0]: (0.0123, 0.0051), LAYERS[1]: (0.0011, 0.0007)}
pytestmark = pytest.mark.filterwarnings("ignore:only 0% of the FLOPs")


def rounded(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, int]:
    """A tensor as E4M3 holds it by a scale, and how many of its values saturate; by ml_dtypes."""
    factor = np.float32(1) / np.float32(scale)
    scaled = x.float().numpy() * factor
    codes = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    values = torch.from_numpy(codes.astype(np.float32) * np.float32(scale)).to(x.dtype)
    return values, int((np.abs(scaled) > 448).sum())


class RoundedLayer(DynamicLayer):
    """A plain layer that is given what FP8 holds by its scales, and counts."""

    def __init__(self, scales: tuple[float, float]):
        super().__init__()
        self.scales, self.saturated = scales, [0, 0]

    def update(self, key_states, value_states, *arguments, **keywords):
        states = []
        for index, each in enumerate((key_states, value_states)):
            values, count = rounded(each, self.scales[index])
            states.append(values)
            self.saturated[index] += count
        return super().update(*states, *arguments, **keywords)


def rounded_cache() -> DynamicCache:
    cache = DynamicCache()
    cache.layers, cache.layer_class_to_replicate = [RoundedLayer(pair) for pair in SCALES.values()], None
    return cache


def make_tokens() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(0))


def make_net(**options):
    model, _ = make_llama()
    # Both layers are compiled as one, which takes half of the time.
    given = {"kv_cache": "fp8", "kv_scales": SCALES, "blocks": ["model.layers"]} | options
    return model, steelyard.compile(model.eval(), NOTHING, **given)


def counts(net) -> list[list[int]]:
    state = net.state_dict()
    return [[int(state[f"_steelyard.{layer}.{role}.saturated"]) for role in ("key", "value")] for layer in SCALES]


@pytest.mark.every(2)
@torch.no_grad()
@pytest.mark.parametrize(
    ("blocks", "length"), [(False, None), (["model.layers"], 16)], ids=["dynamic", "static, blocks"]
)
def test_compiled_calls_read_codes_times_the_given_scales(blocks, length):
    model, net = make_net(blocks=blocks)
    tokens, expected, exact = make_tokens(), rounded_cache(), DynamicCache()
    cache = DynamicCache() if length is None else StaticCache(config=model.config, max_cache_len=length)
    for part in (tokens[:, :9], tokens[:, 9:10], tokens[:, 10:]):
        wanted, high = (model(part, past_key_values=one).logits for one in (expected, exact))
        got = net(part, past_key_values=cache).logits
        # Rounding is discontinuous: the last bit of a key may flip a code.
        assert (got - wanted).norm() <= 0.02 * (wanted - high).norm()
    # Codes alone are kept: a byte for each element.
    elements = 2 * 2 * 2 * 24 * (length or 11)
    assert [layer.nbytes for layer in cache.layers] == [elements] * 2
    saturated = counts(net)
    assert saturated == [layer.saturated for layer in expected.layers]
    assert min(saturated[1]) > 10
    notes = net.explain().notes
    assert "KV caches hold keys and values in e4m3, with static scales in 2 layers" in notes[0]
    assert f"static scales: 4; values saturated so far: {sum(map(sum, saturated))}" in notes
    assert f"{LAYERS[1]}.key: {saturated[1][0]}" in notes


@torch.no_grad()
def test_what_is_appended_has_the_bits_of_the_rule():
    _, net = make_net()
    _, plain = make_net(kv_cache=None, kv_scales=None)
    cache, exact = DynamicCache(), DynamicCache()
    net(make_tokens(), past_key_values=cache)
    plain(make_tokens(), past_key_values=exact)
    # Those of the second layer depend on what attention of the first read.
    for name, scale in zip(("keys", "values"), SCALES[LAYERS[0]], strict=True):
        assert torch.equal(getattr(cache.layers[0], name), rounded(getattr(exact.layers[0], name), scale)[0])


@torch.no_grad()
def test_what_a_cache_holds_already_is_quantized_by_the_scales():
    dtype = torch.bfloat16
    _, net = make_net()
    generator = torch.Generator().manual_seed(1)
    states = [[torch.randn(2, 2, 5, 24, generator=generator).to(dtype) for _ in range(2)] for _ in range(2)]
    cache = DynamicCache(states)
    net.to(dtype)(make_tokens()[:, :1], past_key_values=cache)
    for layer, given, pair in zip(cache.layers, states, SCALES.values(), strict=True):
        for found, state, scale in zip((layer.keys, layer.values), given, pair, strict=True):
            assert found.dtype == dtype
            assert torch.equal(found[..., :5, :], rounded(state, scale)[0])


@torch.no_grad()
def test_codes_are_those_of_compressed_tensors():
    # Its quotient and our product are the same number where the scale is a power of two.
    scale = 2.0**-7
    _, net = make_net(kv_scales={"*.self_attn": (scale, scale)})
    x = 3 * torch.randn(1, 2, 40, 24, generator=torch.Generator().manual_seed(2))
    cache = DynamicCache([(x, x), (x, x)])
    net(make_tokens()[:1, :1], past_key_values=cache)
    arguments = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True)
    given, zero = torch.tensor([scale]), torch.zeros(1)
    codes = quantize(x, given, zero, arguments, dtype=torch.float8_e4m3fn)
    assert torch.equal(cache.layers[1].values[..., :40, :], dequantize(codes, given, zero, arguments))


@torch.no_grad()
def test_generate_uses_the_scales_of_each_layer_and_copies_count_too():
    _, net = make_net(kv_scales={LAYERS[1]: SCALES[LAYERS[1]]})
    mask = torch.ones(2, 11, dtype=torch.int64)
    options = {"attention_mask": mask, "max_new_tokens": 2, "do_sample": False, "return_dict_in_generate": True}
    first, second = net.generate(make_tokens(), **options).past_key_values.layers
    # The last token is not in the cache. The first layer has a scale per token and head.
    rows = 2 * 2 * 2 * 12
    assert (first.nbytes, second.nbytes) == (rows * (24 + 4), rows * 24)
    before = int(net.state_dict()[f"_steelyard.{LAYERS[1]}.key.saturated"])
    states = [torch.full((1, 2, 1, 24), 1e4)] * 2
    copy.deepcopy(second).update(*[state.expand(2, -1, -1, -1) for state in states])
    assert int(net.state_dict()[f"_steelyard.{LAYERS[1]}.key.saturated"]) == before + 2 * 2 * 24


@torch.no_grad()
def test_scales_are_state_that_is_saved_and_loaded():
    _, net = make_net()
    expected = net(make_tokens(), past_key_values=DynamicCache()).logits
    other = copy.deepcopy(net)
    assert torch.equal(other(make_tokens(), past_key_values=DynamicCache()).logits, expected)
    assert counts(other) == [[2 * count for count in pair] for pair in counts(net)]
    _, loaded = make_net(kv_scales={"*.self_attn": (1.0, 1.0)})
    loaded.load_state_dict(net.state_dict())
    assert torch.equal(loaded(make_tokens(), past_key_values=DynamicCache()).logits, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_scales": {"*.self_attn": 0.1}}, "to a scale of keys and one of values, each a finite, positive number"),
        ({"kv_scales": {"*.self_attn": (0.1, 0.0)}}, "each a finite, positive number"),
        ({"kv_scales": {"*.self_attn": (0.1, float("nan"))}}, "each a finite, positive number"),
        ({"kv_scales": [0.1, 0.2]}, "kv_scales must map patterns of attention modules"),
        ({"kv_cache": None}, 'got kv_cache=None; give kv_cache="fp8" as well'),
        (
            {"kv_scales": {"*.attention": (1.0, 1.0)}},
            r"kv_scales has '\*\.attention', which matches no module with a layer in KV caches; the modules with a "
            "layer_idx: model.layers.0.self_attn, model.layers.1.self_attn",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(options, message):
    with pytest.raises(RecipeError, match=message):
        make_net(**options)


def test_scales_need_one_module_per_layer_and_one_cache():
    model, _ = make_llama()
    model.model.layers[0].layer_idx = 0
    with pytest.raises(RecipeError, match=r"got model.layers.0 and model.layers.0.self_attn for layer 0; name the one"):
        steelyard.compile(model, NOTHING, kv_cache="fp8", kv_scales={"*": (1.0, 1.0)})
    _, net = make_net()
    with pytest.raises(UnsupportedModelError, match="those of a model with one cache, got an EncoderDecoderCache"):
        net(make_tokens(), past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()))
