"""Training loops: optimizers, accumulation, clipping, loss scaling, frozen and tied weights, dropout, buffers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from training_oracle import Numerics, kind_of, make_training_oracle

import steelyard
from steelyard import recipes

NOTHING = recipes.CustomRecipe(lambda role: None)


class MLP(nn.Module):
    """Two layers that a recipe quantizes."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.up, self.down = nn.Linear(37, 50), nn.Linear(50, 7)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.down(self.dropout(functional.relu(self.up(x))))


def make_mlp(**options) -> MLP:
    torch.manual_seed(0)
    return MLP(**options)


def batch(seed: int, rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 37, generator=generator), torch.randn(rows, 7, generator=generator)


def loss_of(model: nn.Module, seed: int, rows: int = 16) -> torch.Tensor:
    x, target = batch(seed, rows)
    return functional.mse_loss(model(x), target)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("recipe", ["fp8-delayed", "mxfp8", "nvfp4"])
def test_steps_follow_the_oracle(recipe, optimizer, two_threads):
    model, numerics = make_mlp(), Numerics(recipe)
    start = copy.deepcopy(model.state_dict())
    oracle, net = make_training_oracle(model, numerics), steelyard.compile(model, recipe)
    steps = [OPTIMIZERS[optimizer](module.parameters()) for module in (net, oracle)]
    for seed in range(4):
        for module, step in zip((net, oracle), steps, strict=True):
            step.zero_grad()
            loss_of(module, seed).backward()
            step.step()
        numerics.forget_weights()
        numerics.update_state("input", "weight", "grad_output")
    moved = torch.cat([(p - start[name]).flatten() for name, p in oracle.named_parameters()])
    apart = torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), oracle.parameters(), strict=True)])
    # Parameters that a fused optimizer writes must be quantized again: stale ones differ by far more.
    assert apart.norm() <= 0.02 * moved.norm()


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", recipes.NAMES)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw fused"])
def test_accumulation_quantizes_each_weight_once_a_step(optimizer, recipe, quantized_shapes):
    model = make_mlp()
    net = steelyard.compile(model, recipe)
    step = OPTIMIZERS[optimizer](net.parameters())
    weights = {(50, 37), (7, 50)}
    for _ in range(3):
        quantized_shapes.clear()
        for seed in range(4):
            loss_of(net, seed).backward()
        assert sorted(shape for shape in quantized_shapes if shape in weights) == sorted(weights)
        step.step()
        step.zero_grad()


def test_gradients_accumulate():
    model = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    apart = []
    for seed in range(3):
        loss_of(net, seed).backward()
        apart.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad()
    for seed in range(3):
        loss_of(net, seed).backward()
    for parameter, *parts in zip(model.parameters(), *apart, strict=True):
        assert torch.equal(parameter.grad, parts[0] + parts[1] + parts[2])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none):
    model = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    loss_of(net, 0).backward()
    first = [p.grad.clone() for p in model.parameters()]
    net.zero_grad(set_to_none=set_to_none)
    assert all((p.grad is None) == set_to_none for p in model.parameters())
    loss_of(net, 0).backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), first, strict=True))


def test_gradient_clipping():
    model = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    loss_of(net, 0).backward()
    before = torch.cat([p.grad.flatten() for p in model.parameters()])
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    after = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(norm, before.norm())
    torch.testing.assert_close(after, before * (0.01 / before.norm()), rtol=1e-4, atol=0)


def test_loss_scaling():
    model = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss_of(net, 0).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    # A power of two changes the scale bytes of MX, but no code.
    scaler.scale(loss_of(net, 0)).backward()
    scaler.unscale_(optimizer)
    assert all(torch.equal(p.grad, gradient) for p, gradient in zip(model.parameters(), plain, strict=True))
    # An overflow is found, and the step skipped.
    scaler.step(optimizer)
    scaler.update()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    scaler.scale(loss_of(net, 0) * 3e38).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


class LowRank(nn.Module):
    """A frozen layer, plus a trained product of two small ones."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a, self.b = nn.Linear(inputs, 20, bias=False), nn.Linear(20, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def test_frozen_base_weights_are_quantized_once(quantized_shapes):
    torch.manual_seed(0)
    model = nn.Sequential(LowRank(37, 50), nn.ReLU(), LowRank(50, 37))
    net = steelyard.compile(model, "mxfp8")
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    frozen = model[0].base.weight.clone()
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = functional.mse_loss(net(batch(0)[0]), batch(1)[0])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    # The copies of a frozen weight are made apart, once each; the first layer has no gradient of its input, and so one
    # copy. Optimizers write the others, which are quantized again at each step.
    assert [quantized_shapes.count(shape) for shape in ((50, 37), (37, 50), (20, 37), (50, 20))] == [1, 2, 4, 4]
    assert model[0].base.weight.grad is None
    assert torch.equal(model[0].base.weight, frozen)
    kinds = {(row.layer, row.kind) for row in net.explain().rows}
    assert ("2.base", "dgrad") in kinds
    assert ("2.base", "wgrad") not in kinds
    assert ("0.base", "dgrad") not in kinds


def test_dropout_has_one_mask_for_forward_and_backward():
    model = make_mlp(dropout=0.5)
    model.up.weight.data.zero_()
    model.up.bias.data.fill_(1.0)
    model.down.weight.data.fill_(1.0)
    net = steelyard.compile(model, "mxfp8")
    # Every hidden value is 1, and 2 if dropout keeps it: the output counts those, and so does the bias gradient.
    for _ in range(3):
        model.zero_grad()
        y = net(torch.randn(8, 37))
        kept = (y - model.down.bias).detach()[:, 0] / 2
        assert 0 < kept.min() < kept.max() < 50
        (y * torch.arange(8.0)[:, None]).sum().backward()
        expected = (kept * torch.arange(8.0)).sum() * 2 * 7
        torch.testing.assert_close(model.up.bias.grad.sum(), expected)


def test_dropout_follows_the_seed():
    net = steelyard.compile(make_mlp(dropout=0.5), "nvfp4")
    results = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        results.append(net(batch(0)[0]).detach())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_batch_norm_updates_its_buffers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(37, 20), nn.BatchNorm1d(20), nn.Linear(20, 7))
    eager = copy.deepcopy(model)
    net = steelyard.compile(model, NOTHING)
    for seed in range(3):
        loss_of(net, seed).backward()
        loss_of(eager, seed).backward()
    assert model[1].num_batches_tracked == 3
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(dict(model.named_buffers())[name], buffer)
    for (name, parameter), other in zip(eager.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, parameter.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_autocast_trains_in_bfloat16(gemm_calls):
    model = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = functional.mse_loss(net(batch(0)[0]).float(), batch(0)[1])
    loss.backward()
    assert {result.dtype for *_, result in gemm_calls} == {torch.bfloat16}
    # The input has no gradient, and the casts hide nothing from the backward.
    assert sorted(map(kind_of, gemm_calls)) == ["dgrad", "fprop", "fprop", "wgrad", "wgrad"]
    # Parameters are float32, and so are their gradients.
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
    got = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    loss_of(model, 0).backward()
    exact = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert functional.cosine_similarity(got, exact, dim=0) > 0.99


def test_retain_graph_gives_the_same_gradients_twice():
    model = make_mlp()
    loss = loss_of(steelyard.compile(model, "mxfp8"), 0)
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    loss.backward()
    assert all(torch.equal(p.grad, 2 * g) for p, g in zip(model.parameters(), first, strict=True))


def test_gradients_land_on_the_parameters_of_the_model():
    model = make_mlp()
    parameters = dict(model.named_parameters())
    net = steelyard.compile(model, "mxfp8")
    assert all(p is parameters[name] for name, p in net.named_parameters())
    loss_of(net, 0).backward()
    assert all(p.grad is not None for p in parameters.values())
    assert all(p.grad.shape == p.shape and p.grad.is_contiguous() for p in parameters.values())


def test_hooks_of_parameters_see_gradients():
    model = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    loss_of(net, 0).backward()
    plain = model.up.weight.grad.clone()
    model.zero_grad()
    seen = []
    model.up.weight.register_hook(lambda gradient: gradient * 2)
    model.up.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    loss_of(net, 0).backward()
    assert torch.equal(model.up.weight.grad, 2 * plain)
    assert len(seen) == 1
    assert torch.equal(seen[0], 2 * plain)


def test_train_and_eval_in_turns():
    model = make_mlp(dropout=0.5)
    net = steelyard.compile(model, "mxfp8")
    x = batch(0)[0]
    outputs = []
    for _ in range(2):
        net.train()
        loss_of(net, 0).backward()
        net.eval()
        with torch.no_grad():
            outputs.append(net(x))
        # Evaluation with gradients, for example for an adversarial input.
        x_with_gradient = x.clone().requires_grad_()
        net(x_with_gradient).sum().backward()
        assert x_with_gradient.grad.abs().sum() > 0
    assert torch.equal(*outputs)


def test_batch_sizes_may_differ(gemm_calls):
    model = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    for rows in (16, 24, 7, 16, 33):
        model.zero_grad()
        loss_of(net, 0, rows).backward()
        got = torch.cat([p.grad.flatten() for p in model.parameters()])
        model.zero_grad()
        loss_of(model, 0, rows).backward()
        exact = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert functional.cosine_similarity(got, exact, dim=0) > 0.99
    assert len(gemm_calls) == 5 * 5
    # One program for the first size, one for all others.
    assert len(net._steelyard.backend.compilations) == 2


class TiedLanguageModel(nn.Module):
    """Head and embedding share one weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 48)
        self.body = nn.Linear(48, 48)
        self.head = nn.Linear(48, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens) + self.body(self.embed(tokens)).tanh())


@pytest.mark.every(4)
@pytest.mark.parametrize("recipe", recipes.NAMES)
def test_tied_weights_learn(recipe):
    torch.manual_seed(0)
    model = TiedLanguageModel()
    net = steelyard.compile(model, recipe)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    tokens = torch.randint(0, 64, (4, 16))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert model.head.weight is model.embed.weight
    assert losses[-1] < 0.5 * losses[0]
