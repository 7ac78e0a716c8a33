"""accelerate prepares a net, trains it in mixed precision and in parts of a batch, and saves its state."""

import copy

import pytest
import torch
from accelerate import Accelerator
from oracle import make_oracle
from torch import nn

import steelyard

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 10))


def make_batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 48, generator=generator), torch.randint(0, 10, (16,), generator=generator))
        for _ in range(count)
    ]


def train(accelerator: Accelerator, net: nn.Module, optimizer, batches: list) -> list[float]:
    losses = []
    for x, y in batches:
        with accelerator.accumulate(net):
            loss = nn.functional.cross_entropy(net(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def prepared(recipe: str = "mxfp8", **options):
    accelerator = Accelerator(cpu=True, **options)
    net = steelyard.compile(make_model(), recipe)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return accelerator, net, optimizer


def test_a_prepared_net_trains_like_a_net():
    accelerator, net, optimizer = prepared()
    found = train(accelerator, net, optimizer, make_batches())
    own = steelyard.compile(make_model(), "mxfp8")
    stepper = torch.optim.SGD(own.parameters(), lr=0.1)
    expected = []
    for x, y in make_batches():
        loss = nn.functional.cross_entropy(own(x), y)
        loss.backward()
        stepper.step()
        stepper.zero_grad()
        expected.append(loss.item())
    assert found == expected
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), own.parameters(), strict=True))


def test_mixed_precision_quantizes_bfloat16():
    accelerator, net, optimizer = prepared(mixed_precision="bf16")
    model = copy.deepcopy(net.model)
    x, y = make_batches(1)[0]
    with torch.no_grad():
        found = net(x)
        with torch.autocast("cpu", torch.bfloat16):
            expected = make_oracle(model, "mxfp8")(x)
    # Results leave the net in float32, as accelerate promises; the GEMMs have made bfloat16.
    assert found.dtype == torch.float32
    gemms = [line for line in net.ir("raised").splitlines() if "scaled.matmul" in line]
    assert len(gemms) == 2
    assert all(line.endswith(",bf16>") for line in gemms)
    error = (expected.double() - model(x).double()).norm()
    assert (found.double() - expected.double()).norm() <= 0.25 * error
    losses = train(accelerator, net, optimizer, [(x, y)] * 8)
    assert losses[-1] < losses[0]


def test_accumulated_gradients_are_the_sum_of_the_parts():
    accelerator, net, optimizer = prepared(gradient_accumulation_steps=2)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    batches = make_batches(2)
    expected = [torch.zeros_like(parameter) for parameter in net.parameters()]
    for x, y in batches:
        own = steelyard.compile(make_model(), "mxfp8")
        (nn.functional.cross_entropy(own(x), y) / 2).backward()
        expected = [total + parameter.grad for total, parameter in zip(expected, own.parameters(), strict=True)]
    train(accelerator, net, optimizer, batches)
    for parameter, start, gradient in zip(net.parameters(), before, expected, strict=True):
        torch.testing.assert_close(parameter, start - 0.1 * gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8-delayed"])
def test_state_is_saved_and_loaded(recipe, tmp_path):
    """With delayed scaling, the scales and the history of the amaxes are part of it."""
    accelerator, net, optimizer = prepared(recipe)
    batches = make_batches()
    train(accelerator, net, optimizer, batches[:2])
    accelerator.save_state(str(tmp_path))
    expected = train(accelerator, net, optimizer, batches[2:])
    saved = {name: value.clone() for name, value in net.state_dict().items()}

    other, loaded, stepper = prepared(recipe)
    other.load_state(str(tmp_path))
    assert train(other, loaded, stepper, batches[2:]) == expected
    assert loaded.state_dict().keys() == saved.keys()
    assert all(torch.equal(value, saved[name]) for name, value in loaded.state_dict().items())
    assert any("_steelyard" in name for name in saved) == (recipe == "fp8-delayed")


def test_the_model_comes_back():
    accelerator, net, _ = prepared()
    unwrapped = accelerator.unwrap_model(net)
    assert type(unwrapped.model) is nn.Sequential
    assert accelerator.get_state_dict(net).keys() == unwrapped.model.state_dict().keys()
