"""State dicts of nets in files: by torch, by safetensors, and by transformers."""

import copy
import pickle

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from small_llama import make_small_llama
from small_models import make_mlp
from torch import nn
from transformers import LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

import steelyard
from steelyard.errors import UnsupportedModelError
from steelyard.tensor import QuantizedTensor

RECIPES = ("fp8-delayed", "fp8-current", "fp8-block", "mxfp8", "nvfp4")


class Mixed(nn.Module):
    """A weight stored as [K, N], one that two layers share, and a layer that is not quantized."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.again = Conv1D(96, 64), nn.Linear(96, 64), nn.Linear(96, 64)
        self.again.weight = self.down.weight
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x):
        x = torch.relu(self.up(x))
        return (self.down(x) + self.again(x)) * self.scale


def make_net(recipe: str, seed: int = 0, weights: str = "quantized"):
    torch.manual_seed(seed)
    return steelyard.compile(Mixed(), recipe, weights=weights)


def run(net) -> torch.Tensor:
    with torch.no_grad():
        return net(torch.linspace(-1, 1, 5 * 64).view(5, 64))


def assert_same_bytes(left: dict, right: dict) -> None:
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert value.dtype == right[key].dtype, key
        assert torch.equal(value, right[key]), key


@pytest.mark.every(4)
@pytest.mark.parametrize("recipe", RECIPES)
def test_state_dict_is_plain_and_comes_back_byte_for_byte(recipe, tmp_path):
    net = make_net(recipe)
    run(net)
    expected, state = run(net), net.state_dict()
    assert all(type(value) is torch.Tensor for value in state.values())
    assert isinstance(net.model.up.weight, QuantizedTensor)
    save_file(state, tmp_path / "net.safetensors")
    loaded = load_file(tmp_path / "net.safetensors")
    assert_same_bytes(loaded, state)
    # A net that never ran takes the codes as they are, and so does one whose weights are quantized already.
    for seed, has_run in ((1, False), (2, True)):
        other = make_net(recipe, seed)
        if has_run:
            run(other)
        other.load_state_dict(loaded, strict=True)
        assert other.model.again.weight is other.model.down.weight
        assert_same_bytes(other.state_dict(), state)
        assert torch.equal(run(other), expected)


@pytest.mark.parametrize("recipe", ["fp8-delayed", "nvfp4"])
def test_torch_save_and_a_module_around_the_net(recipe, tmp_path):
    holder, other = nn.ModuleDict({"net": make_net(recipe)}), nn.ModuleDict({"net": make_net(recipe, seed=1)})
    run(holder["net"])
    torch.save(holder.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), strict=True)
    assert other["net"].model.again.weight is other["net"].model.down.weight
    assert_same_bytes(other.state_dict(), holder.state_dict())
    assert torch.equal(run(other["net"]), run(holder["net"]))


def test_quantized_tensors_in_a_state_dict_load_as_before():
    net, other = make_net("mxfp8"), make_net("mxfp8", seed=1)
    run(net)
    run(other)
    other.load_state_dict(net.state_dict(keep_vars=True))
    assert_same_bytes(other.state_dict(), net.state_dict())


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
def test_save_model(recipe, tmp_path):
    """What safetensors offers for whole models."""
    net, other = make_net(recipe), make_net(recipe, seed=1)
    run(net)
    save_model(net, str(tmp_path / "net.safetensors"))
    run(other)
    load_model(other, str(tmp_path / "net.safetensors"))
    assert_same_bytes(other.state_dict(), net.state_dict())


@pytest.mark.parametrize("part", ["", ".amax", ".scale_inv", ".format"])
def test_damaged_state_dicts_are_refused(part):
    net = make_net("nvfp4")
    run(net)
    state = net.state_dict()
    state[f"up.weight{part}"] = state[f"up.weight{part}"][..., 1:] if part != ".amax" else torch.ones(3)
    with pytest.raises(UnsupportedModelError, match=r"up\.weight in the state dict.*save the net again"):
        make_net("nvfp4").load_state_dict(state)


@pytest.mark.parametrize("recipe", RECIPES)
def test_plain_models_load_what_is_decoded(recipe):
    net, plain = make_net(recipe), Mixed()
    run(net)
    state = net.state_dict()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"size mismatch for up\.weight"):
            plain.load_state_dict(state, strict=strict)
    plain.load_state_dict(steelyard.plain_state_dict(state), strict=True)
    for name, parameter in net.named_parameters():
        values = parameter.dequantize() if isinstance(parameter, QuantizedTensor) else parameter
        assert torch.equal(plain.get_parameter(name), values)


def test_a_cached_net_decodes_what_it_loads():
    net, other = make_net("mxfp8"), make_net("mxfp8", seed=1, weights="cached")
    expected = run(net)
    other.load_state_dict(net.state_dict(), strict=True)
    assert torch.equal(other.model.up.weight, net.model.up.weight.dequantize())
    assert torch.equal(run(other), expected)


def train_step(net) -> None:
    model_input = torch.linspace(-1, 1, 5 * 64).view(5, 64)
    net(model_input).square().sum().backward()


def test_delayed_state_loads_into_the_plain_model_and_back():
    """The model that a net is compiled from loads the net's state dict strictly, and the net has its state then."""
    net, other = make_net("fp8-delayed", weights="cached"), make_net("fp8-delayed", seed=1, weights="cached")
    train_step(net)
    train_step(net)
    state = copy.deepcopy(net.state_dict())
    own = [key for key in state if key.startswith("_steelyard.")]
    assert any(key.endswith("amax_history") for key in own)
    other.model.load_state_dict(state, strict=True)
    assert_same_bytes(other.state_dict(), state)
    # Back: what the plain model saves has no state, and loads strictly, too.
    plain = other.model.state_dict()
    assert plain.keys() == state.keys() - set(own)
    net.load_state_dict(plain, strict=True)
    # A model that was never compiled takes the plain part.
    fresh = Mixed()
    fresh.load_state_dict(steelyard.plain_state_dict(state), strict=True)
    assert all(torch.equal(fresh.state_dict()[key], plain[key]) for key in plain)


def test_copies_of_the_model_load_the_state_and_pickles_do_not_need_it():
    net = make_net("fp8-delayed", weights="cached")
    train_step(net)
    copied = copy.deepcopy(net.model)
    copied.load_state_dict(net.state_dict(), strict=True)
    other = copy.deepcopy(net)
    train_step(net)
    other.load_state_dict(net.state_dict(), strict=True)
    assert_same_bytes(other.state_dict(), net.state_dict())
    model, _ = make_mlp()
    compiled = steelyard.compile(model, "fp8-delayed")
    pickled = pickle.dumps(model)
    assert b"steelyard" not in pickled
    assert pickle.loads(pickled).load_state_dict(compiled.model.state_dict(), strict=True)


def make_llama() -> LlamaForCausalLM:
    return make_small_llama(tie_word_embeddings=True).eval()


def test_save_pretrained(tmp_path):
    ids = torch.arange(6)[None]
    net = steelyard.compile(make_llama(), "nvfp4", weights="quantized")
    with torch.no_grad():
        net(ids)
        expected = net(ids).logits
    net.save_pretrained(tmp_path)
    loaded = load_file(tmp_path / "model.safetensors")
    assert_same_bytes(loaded, {key: value for key, value in net.state_dict().items() if key != "lm_head.weight"})
    other = steelyard.compile(make_llama(), "nvfp4", weights="quantized")
    missing, unexpected = other.load_state_dict(loaded, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    with torch.no_grad():
        assert torch.equal(other(ids).logits, expected)
    # The plain class refuses codes instead of taking them for weights.
    with pytest.raises(RuntimeError, match="mismatch"):
        LlamaForCausalLM.from_pretrained(tmp_path)
    net.save_pretrained(tmp_path / "plain", state_dict=steelyard.plain_state_dict(net.state_dict()))
    plain = LlamaForCausalLM.from_pretrained(tmp_path / "plain")
    decoded = net.get_parameter("model.layers.0.mlp.up_proj.weight").dequantize()
    assert torch.equal(plain.model.layers[0].mlp.up_proj.weight, decoded)
