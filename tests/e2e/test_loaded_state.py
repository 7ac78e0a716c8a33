"""State that is loaded into a net: taken where its values stay the same, otherwise refused before anything changes."""

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import StateError, SteelyardError
from steelyard.recipes import DelayedScaling

X = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
SCALE, HISTORY = "_steelyard.0.input.scale", "_steelyard.0.input.amax_history"


def make_net(history: int = 4):
    torch.manual_seed(0)
    return steelyard.compile(nn.Sequential(nn.Linear(40, 24)), DelayedScaling(amax_history_len=history))


@pytest.fixture(scope="module")
def saved() -> dict[str, torch.Tensor]:
    net = make_net()
    for factor in (1.0, 3.0):
        net(X * factor).sum().backward()
    return {key: tensor.clone() for key, tensor in net.state_dict().items()}


def power_of_two(tensor: torch.Tensor) -> torch.Tensor:
    """What every dtype with this range holds exactly."""
    return torch.exp2(torch.floor(torch.log2(tensor)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_state_of_another_dtype_has_the_same_values(dtype, saved):
    exact = {key: power_of_two(t) if key.endswith(".scale") else torch.ones_like(t) for key, t in saved.items()}
    state = {key: tensor if "_steelyard" not in key else exact[key] for key, tensor in saved.items()}
    results = []
    for converted in (state, {k: t.to(dtype) if "_steelyard" in k else t for k, t in state.items()}):
        net = make_net()
        net.load_state_dict(converted)
        with torch.no_grad():
            results.append(net(X))
        assert all(t.dtype == torch.float32 for t in net.state_dict().values())
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({SCALE: torch.tensor(0.1, dtype=torch.float64)}, "scale must hold values of torch.float32, got torch.float64"),
        ({SCALE: torch.tensor(float("nan"))}, r"0\.input\.scale must be a finite scale above 0, got nan"),
        ({SCALE: torch.tensor(float("inf"))}, "must be a finite scale above 0, got inf"),
        ({SCALE: torch.tensor(0.0)}, r"must be a finite scale above 0, got 0\.0"),
        ({SCALE: torch.tensor(-2.0)}, r"must be a finite scale above 0, got -2\.0"),
        ({SCALE: torch.ones(3)}, r"must have the shape \(\), got torch\.float32 of shape \(3,\)"),
        ({SCALE: torch.ones((), dtype=torch.complex64)}, "got torch.complex64 of shape"),
        ({HISTORY: torch.ones(2, 2)}, r"0\.input\.amax_history must have the shape"),
        ({"_steelyard.0.input.scales": torch.ones(())}, "names like rng, or"),
        ({"_steelyard.rng": torch.ones(2)}, r"rng must hold values of torch\.int64, got torch\.float32"),
        ({"_steelyard.rng": torch.zeros(3, dtype=torch.int64)}, r"rng must have the shape \(2,\)"),
    ],
)  # fmt: skip
def test_wrong_state_is_refused_and_changes_nothing(change, message, saved):
    net = make_net()
    net(X)
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    with pytest.raises(StateError, match=message):
        net.load_state_dict({key: t + 1 if "_steelyard" not in key else t for key, t in saved.items()} | change)
    after = net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_history_of_another_length_is_refused_wherever_it_is_known(saved):
    net = make_net(history=7)
    net(X)
    with pytest.raises(StateError, match=r"amax_history must have the shape \(7,\), got .* of shape \(4,\)"):
        net.load_state_dict(saved)
    cold = make_net(history=7)
    cold.load_state_dict(saved)
    with pytest.raises(StateError, match=r"amax_history must have the shape \(7,\), got .* of shape \(4,\)"):
        cold(X)


def test_a_scale_with_one_dim_is_taken(saved):
    net, flat = make_net(), make_net()
    net.load_state_dict(saved)
    flat.load_state_dict({key: t.reshape(1) if key.endswith(".scale") else t for key, t in saved.items()})
    with torch.no_grad():
        assert torch.equal(net(X), flat(X))


RECIPES = ["fp8-delayed", "fp8-current", "fp8-block", "mxfp8", "nvfp4"]


def quantized_net(recipe: str):
    torch.manual_seed(0)
    net = steelyard.compile(nn.Sequential(nn.Linear(64, 32)), recipe, weights="quantized")
    with torch.no_grad():
        net(X.new_ones(4, 64))
    return net


@pytest.mark.every(4)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_quantized_parameter_of_another_dtype_has_the_same_values(recipe):
    state = quantized_net(recipe).state_dict()
    whole = {key: t for key, t in state.items() if t.dtype == torch.uint8}
    floats = {key: t for key, t in state.items() if key not in whole}
    assert {"0.weight", "0.weight.format"} <= set(whole)
    for dtype in (torch.bfloat16, torch.float64, torch.int32):
        net = quantized_net(recipe)
        net.load_state_dict({**{key: t.to(dtype) for key, t in whole.items()}, **floats})
        found = net.state_dict()
        assert all(torch.equal(found[key], t) and found[key].dtype == t.dtype for key, t in whole.items())
    net = quantized_net(recipe)
    net.load_state_dict({**whole, **{key: t.bfloat16() for key, t in floats.items()}})
    found = net.state_dict()
    assert all(torch.equal(found[key], t.bfloat16().float()) for key, t in floats.items())
    assert all(tensor.dtype == torch.float32 for key, tensor in found.items() if key in floats)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.weight": torch.full((2048,), 0.5)}, "0.weight must hold values of torch.uint8, got torch.float32"),
        ({"0.weight": torch.full((2048,), 256)}, "0.weight must hold values of torch.uint8, got torch.int64"),
        ({"0.weight": torch.full((2048,), torch.nan)}, "0.weight must hold values of torch.uint8, got torch.float32"),
        ({"0.weight": torch.ones(2047, dtype=torch.uint8)}, r"codes of shape \(2047,\), not \(32, 64\)"),
        ({"0.weight": torch.ones(2048, dtype=torch.uint8, device="meta")}, "must be a dense tensor with values"),
        ({"0.weight": torch.ones(2048, dtype=torch.uint8).to_sparse()}, "must be a dense tensor with values"),
        ({"0.weight": 3}, "0.weight must be a tensor of torch.uint8, got int"),
        (
            {"0.weight.scale_inv": torch.tensor(0.1, dtype=torch.float64)},
            "0.weight.scale_inv must hold values of torch.float32, got torch.float64",
        ),
        ({"0.weight.scale_inv": torch.ones(2)}, r"scales of shape \(2,\), not \(\)"),
        ({"0.weight.format": torch.ones(3, dtype=torch.uint8)}, "must be a quantized parameter as net.state_dict"),
    ],
)
def test_a_wrong_quantized_parameter_is_refused(change, message):
    state = {**quantized_net("fp8-current").state_dict(), **change}
    with pytest.raises(SteelyardError, match=message):
        quantized_net("fp8-current").load_state_dict(state)
    with pytest.raises(SteelyardError, match=message):
        steelyard.plain_state_dict(state)


@pytest.mark.parametrize("given", [3, [1], {3: torch.ones(2)}, None])
def test_plain_state_dict_takes_a_state_dict(given):
    with pytest.raises(StateError, match="takes a state dict, from names to tensors, got"):
        steelyard.plain_state_dict(given)
