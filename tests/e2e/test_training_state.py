"""State of a net in training: delayed scales and their histories, random bits."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_oracle import Numerics

import steelyard
from steelyard import recipes, reference
from steelyard.recipes import DelayedScaling

FORWARD, BACKWARD = ("input", "weight"), ("grad_output",)


class Linear(nn.Module):
    """A linear layer with a name."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(37, 19)

    def forward(self, x):
        return self.proj(x)


def state_of(net) -> dict[str, torch.Tensor]:
    prefix = "_steelyard."
    found = {key.removeprefix(prefix): t for key, t in net.state_dict().items() if key.startswith(prefix)}
    return {name: tensor.clone() for name, tensor in found.items()}


def assert_state(net, numerics: Numerics, *roles: str) -> None:
    """Scales and histories of these roles are the simulated ones, bit for bit."""
    state = state_of(net)
    names = [name for name in numerics.scales if name.rpartition(".")[2] in roles]
    assert len(names) == len(roles)
    for name in names:
        assert torch.equal(state[f"{name}.scale"], numerics.scales[name])
        torch.testing.assert_close(
            state[f"{name}.amax_history"], numerics.histories[name], rtol=0, atol=0, equal_nan=True
        )


def double_max(history: torch.Tensor) -> torch.Tensor:
    return 2 * history.max()


RECIPES = [
    DelayedScaling(amax_history_len=3),
    DelayedScaling(amax_history_len=1),
    DelayedScaling(amax_history_len=4, margin=2),
    DelayedScaling(amax_history_len=3, amax_compute_algo="most_recent", fp8_format="E4M3"),
    DelayedScaling(amax_history_len=3, amax_compute_algo=double_max),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=["max", "one slot", "margin", "most recent", "own algorithm"])
def test_delayed_state_follows_a_simulation(recipe):
    torch.manual_seed(0)
    model, numerics = Linear(), Numerics(recipe)
    net = steelyard.compile(model, recipe)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(6):
        # The largest value falls and rises, so that old maxima drop out of the history.
        x = torch.randn(5, 37) * (4.0, 3.0, 1.0, 0.25, 8.0, 1.0)[step]
        y = net(x)
        for role, operand in zip(FORWARD, (x, model.proj.weight), strict=True):
            numerics.quantize(operand, "proj", role)
        numerics.update_state(*FORWARD)
        assert_state(net, numerics, *FORWARD)
        before = state_of(net)
        dy = torch.randn(5, 19) * (1.0, 0.1, 3.0, 0.01, 1.0, 1.0)[step]
        y.backward(dy)
        numerics.quantize(dy, "proj", "grad_output")
        numerics.update_state(*BACKWARD)
        assert_state(net, numerics, *BACKWARD)
        after = state_of(net)
        assert all(torch.equal(before[name], after[name]) for name in before if "grad_output" not in name)
        optimizer.step()
        optimizer.zero_grad()


def test_the_next_step_quantizes_with_the_moved_scale(gemm_calls):
    torch.manual_seed(0)
    model, recipe = Linear(), DelayedScaling(amax_history_len=3)
    net = steelyard.compile(model, recipe)
    first, second = torch.randn(5, 37), torch.randn(5, 37)
    net(first).sum().backward()
    gemm_calls.clear()
    net(second)
    scale = torch.tensor(448.0) / first.abs().max()
    row, _ = reference.quantize(second, recipe.schemes("input")[0], None, scale=scale)
    assert torch.equal(gemm_calls[0][0].codes, row.codes)


def test_a_weight_keeps_its_codes_until_it_is_written(gemm_calls):
    torch.manual_seed(0)
    model, recipe = Linear(), DelayedScaling(amax_history_len=3)
    net = steelyard.compile(model, recipe)
    x, scheme = torch.randn(5, 37, requires_grad=True), recipe.schemes("weight")[0]
    weight = model.proj.weight.detach().clone()
    net(x).sum().backward()
    net(x).sum().backward()
    old, _ = reference.quantize(weight, scheme, None, scale=torch.ones(()))
    rowwise = [call[1].codes for call in gemm_calls if not call[1].columnwise]
    assert len(rowwise) == 2
    assert all(torch.equal(codes, old.codes) for codes in rowwise)
    # The dgrad of a step reads the copy of its fprop, though the scale has been updated since.
    dgrads = [b for a, b, *_ in gemm_calls if b.columnwise and not a.columnwise]
    assert len(dgrads) == 2
    assert all(torch.equal(b.codes, old.codes.T) for b in dgrads)
    with torch.no_grad():
        model.proj.weight.mul_(1)
    gemm_calls.clear()
    net(x)
    new, _ = reference.quantize(weight, scheme, None, scale=torch.tensor(448.0) / weight.abs().max())
    assert torch.equal(gemm_calls[0][1].codes, new.codes)


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", ["fp8-delayed", "nvfp4"])
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "eval"])
def test_evaluation_moves_nothing(mode, recipe):
    torch.manual_seed(0)
    net = steelyard.compile(Linear(), recipe)
    x = torch.randn(5, 37)
    net(x).sum().backward()
    before = state_of(net)
    assert before
    if mode == "eval":
        net.eval()
    with torch.inference_mode() if mode == "inference_mode" else torch.no_grad():
        net(x * 100)
    after = state_of(net)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


class Checkpointed(nn.Module):
    """Two layers, computed again in the backward."""

    def __init__(self, use_checkpoint: bool):
        super().__init__()
        self.use_checkpoint = use_checkpoint
        self.up = nn.Linear(37, 50)
        self.down = nn.Linear(50, 37)

    def forward(self, x):
        if self.use_checkpoint:
            return checkpoint(self.block, x, use_reentrant=False)
        return self.block(x)

    def block(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


@pytest.mark.every(4)
@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_recomputation_changes_neither_state_nor_gradients(recipe):
    results = []
    for use_checkpoint in (False, True):
        torch.manual_seed(0)
        model = Checkpointed(use_checkpoint)
        net = steelyard.compile(model, recipe)
        for _ in range(2):
            x = torch.randn(5, 37)
            model.zero_grad()
            net(x).square().sum().backward()
        results.append((state_of(net), {name: p.grad for name, p in model.named_parameters()}))
    for plain, recomputed in zip(*results, strict=True):
        assert plain.keys() == recomputed.keys()
        assert all(torch.equal(plain[name], recomputed[name]) for name in plain)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0])
def test_delayed_state_survives_a_bad_step(bad):
    torch.manual_seed(0)
    model, recipe = Linear(), DelayedScaling(amax_history_len=4)
    net, numerics = steelyard.compile(model, recipe), Numerics(recipe)
    for factor in (1.0, bad, 2.0, 0.5, 0.5, 0.5):
        x = torch.randn(5, 37) * factor
        net(x)
        for role, operand in zip(FORWARD, (x, model.proj.weight), strict=True):
            numerics.quantize(operand, "proj", role)
        numerics.update_state(*FORWARD)
        assert_state(net, numerics, *FORWARD)
    scale = state_of(net)["proj.input.scale"]
    assert torch.isfinite(scale)
    assert scale > 448 / 5 / 2


@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_a_nan_is_not_hidden(recipe):
    torch.manual_seed(0)
    net = steelyard.compile(Linear(), recipe)
    x = torch.randn(5, 37)
    x[2, 3] = float("nan")
    y = net(x)
    y.sum().backward()
    assert y[2].isnan().all()
    assert net.proj.weight.grad[:, 3].isnan().all()


def test_random_bits_follow_the_seed_and_move_once_a_backward():
    gradients = []
    for seed in (7, 7, 8):
        torch.manual_seed(0)
        model = Linear()
        x, dy = torch.randn(64, 37), torch.randn(64, 19)
        torch.manual_seed(seed)
        net = steelyard.compile(model, "nvfp4")
        for offset in range(3):
            net(x).backward(dy)
            assert state_of(net)["rng"].tolist() == [seed, offset + 1]
            gradients.append(model.proj.weight.grad.clone())
            model.zero_grad()
    first, again, other = gradients[:3], gradients[3:6], gradients[6:]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


@pytest.mark.every(4)
@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_torchs_own_compile_trains_as_a_net_does(recipe):
    """Gradients of three steps: delayed scales and random state are updated under `torch.compile`, too."""
    gradients = []
    for wrap in (
        lambda model: steelyard.compile(model, recipe),
        lambda model: torch.compile(model, backend="steelyard", options={"recipe": recipe}),
    ):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(40, 56), torch.nn.GELU(), torch.nn.Linear(56, 24))
        called = wrap(model)
        for step in range(3):
            called(torch.randn(20, 40, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        torch._dynamo.reset()
    assert all(torch.equal(first, second) for first, second in zip(*gradients, strict=True))
