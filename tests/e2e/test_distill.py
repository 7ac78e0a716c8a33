"""`steelyard.distill`: a quantized student comes nearer to its teacher, and goes on from a checkpoint."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import RecipeError, UnsupportedModelError
from steelyard.recipes import NVFP4FourOverSixScaling

RECIPE = NVFP4FourOverSixScaling(weight_tiles=False, backward="high_precision")


def make_teacher():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))


def make_net(teacher):
    return steelyard.compile(copy.deepcopy(teacher), RECIPE)


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(1)
    # In a space of eight dims, weights can make up for what they lose.
    space = torch.randn(8, 32, generator=generator)
    return [torch.randn(16, 8, generator=generator) @ space for _ in range(8)]


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=1e-4)


def test_the_loss_falls_through_the_quantized_forward(batches):
    teacher = make_teacher()
    before = copy.deepcopy(teacher.state_dict())
    net = make_net(teacher)
    losses = steelyard.distill(net, teacher, batches, optimizer=adam(net), steps=48)
    assert len(losses) == 48
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    # The first loss is that of the quantized forward: the student began with the teacher's weights.
    assert losses[0] > 1e-5
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


class Logits(nn.Module):
    """A linear whose output is named as logits are."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 48)

    def forward(self, x):
        return SimpleNamespace(logits=self.linear(x))


def test_logits_are_compared_by_their_divergence():
    """A step of plain descent, against autograd in float64 through the layer that is not quantized."""
    torch.manual_seed(2)
    teacher, student = Logits(), Logits()
    # Three dims, the last part of the rows shorter than the others.
    batch, temperature, rate = torch.randn(3, 50, 32), 1.7, 0.5
    weight = student.linear.weight.detach().double().requires_grad_()
    ours = batch.double() @ weight.t() + student.linear.bias.detach().double()
    theirs = teacher(batch).logits.detach().double()
    kept = theirs.div(temperature).softmax(-1)
    rows = (kept * (kept.log() - ours.div(temperature).log_softmax(-1))).sum(-1)
    expected = temperature**2 * rows.mean()
    (gradient,) = torch.autograd.grad(expected, weight)

    net = steelyard.compile(student, RECIPE, overrides={"linear": None})
    sgd = torch.optim.SGD(net.parameters(), lr=rate)
    (loss,) = steelyard.distill(net, teacher, [batch], optimizer=sgd, steps=1, temperature=temperature, clip=None)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(student.linear.weight.double(), weight - rate * gradient, rtol=1e-5, atol=1e-6)


def test_it_goes_on_from_a_checkpoint(batches, tmp_path):
    teacher = make_teacher()
    whole_net = make_net(teacher)
    whole = steelyard.distill(whole_net, teacher, batches, optimizer=adam(whole_net), steps=12)
    first = make_net(teacher)
    steelyard.distill(first, teacher, batches, optimizer=adam(first), steps=6, folder=tmp_path)
    second = make_net(teacher)
    both = steelyard.distill(second, teacher, batches, optimizer=adam(second), steps=12, folder=tmp_path)
    assert both == whole
    for ours, theirs in zip(second.parameters(), whole_net.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_wrong_calls_say_what_to_do(batches):
    teacher = make_teacher()
    with pytest.raises(UnsupportedModelError, match=r"student_net must be a net of steelyard.compile, got Sequential"):
        steelyard.distill(copy.deepcopy(teacher), teacher, batches)
    with pytest.raises(UnsupportedModelError, match="teacher must have parameters of its own"):
        steelyard.distill(steelyard.compile(teacher, RECIPE), teacher, batches)
    frozen = steelyard.compile(copy.deepcopy(teacher).requires_grad_(False), RECIPE)
    with pytest.raises(UnsupportedModelError, match="student_net must have parameters that require gradients"):
        steelyard.distill(frozen, teacher, batches)
    with pytest.raises(RecipeError, match="steps must be a whole number of at least 1, got 0"):
        steelyard.distill(make_net(teacher), teacher, batches, steps=0)
