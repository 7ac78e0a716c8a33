"""`steelyard.distill`: a quantized student comes nearer to its teacher, and goes on from a checkpoint."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import FileError, RecipeError, StateError, UnsupportedModelError
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


def test_only_what_the_optimizer_trains_is_clipped_and_keeps_gradients(batches, monkeypatch):
    """The norm that is clipped is that of one step's gradients, however many steps were made."""
    teacher = make_teacher()
    net = make_net(teacher)
    trained = net.get_parameter("0.weight")
    norms, clip = [], nn.utils.clip_grad_norm_

    def spy(parameters, largest):
        norms.append(clip(parameters, largest))
        return norms[-1]

    monkeypatch.setattr(nn.utils, "clip_grad_norm_", spy)
    # A rate of nothing: the gradients of each round are those of the round before.
    sgd = torch.optim.SGD([trained], lr=0.0)
    before = copy.deepcopy(net.state_dict())
    steelyard.distill(net, teacher, batches[:2], optimizer=sgd, steps=6)
    assert norms[2:] == norms[:2] * 2
    assert norms[-1] == trained.grad.norm()
    assert [name for name, each in net.named_parameters() if each.grad is not None] == ["0.weight"]
    steelyard.distill(net, teacher, batches, optimizer=torch.optim.SGD([trained], lr=1e-2), steps=6)
    changed = [name for name, value in net.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["0.weight"]


def test_an_optimizer_may_call_a_closure(batches):
    teacher = make_teacher()
    net = make_net(teacher)
    whole = [torch.cat(batches)]
    lbfgs = torch.optim.LBFGS(net.parameters(), lr=0.05, max_iter=4)
    losses = steelyard.distill(net, teacher, whole, optimizer=lbfgs, steps=8, clip=None)
    assert len(losses) == 8
    assert losses[-1] < 0.8 * losses[0]


class Halving(torch.optim.Optimizer):
    """One whose step takes no closure."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            assert parameter.grad is not None
            parameter.mul_(0.5)


def test_an_optimizer_need_not_take_a_closure(batches):
    teacher = make_teacher()
    net = make_net(teacher)
    steelyard.distill(net, teacher, batches, optimizer=Halving(net.parameters()), steps=1)
    for ours, theirs in zip(net.parameters(), teacher.parameters(), strict=True):
        assert torch.equal(ours, theirs / 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda _: torch.optim.SGD(make_teacher().parameters(), lr=1e-3),
            "and has none of them; make it of student_net",
        ),
        (
            lambda _: torch.optim.AdamW,
            r"got the class AdamW; make one, as in torch.optim.AdamW\(student_net.parameters",
        ),
        (lambda net: net, r"optimizer must be an optimizer of torch's, got a Sequential; make one"),
    ],
)
def test_what_is_no_optimizer_of_the_student_is_refused(batches, make, message):
    teacher = make_teacher()
    net = make_net(teacher)
    with pytest.raises(RecipeError, match=message):
        steelyard.distill(net, teacher, batches, optimizer=make(net), steps=1)


def test_modules_of_the_teacher_keep_their_modes(batches):
    teacher = make_teacher()
    teacher[0].eval()
    before = {name: module.training for name, module in teacher.named_modules()}
    assert len(set(before.values())) == 2
    steelyard.distill(make_net(teacher), teacher, batches, steps=1)
    assert {name: module.training for name, module in teacher.named_modules()} == before


def run(folder, batches, *, teacher=None, student=None, steps=6, **options):
    """A run with a checkpoint, and its net."""
    teacher = make_teacher() if teacher is None else teacher
    net = make_net(teacher if student is None else student)
    return steelyard.distill(net, teacher, batches, optimizer=adam(net), steps=steps, folder=folder, **options), net


def test_a_checkpoint_of_another_run_is_refused(batches, tmp_path):
    run(tmp_path, batches)
    torch.manual_seed(9)
    other = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    for changed, what in (
        ({"student": other}, "another student; choose another folder, or remove the file to begin again"),
        ({"teacher": other, "student": make_teacher()}, "another teacher"),
        ({"batches": batches[:4]}, "other batches"),
        ({"temperature": 2.0}, "another optimizer, temperature, clip or loss"),
    ):
        given = {"folder": tmp_path, "batches": batches, **changed}
        with pytest.raises(
            StateError, match=f"distill.pt' must be a checkpoint of the same call, and is one with {what}"
        ):
            run(**given, steps=8)
    with pytest.raises(StateError, match=r"steps must be at least 6, as many as '.*distill.pt' has done, got 4"):
        run(tmp_path, batches, steps=4)


def test_a_student_that_is_refused_stays_as_it_is(batches, tmp_path):
    run(tmp_path, batches)
    torch.manual_seed(9)
    other = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    net = make_net(other)
    with pytest.raises(StateError, match="another student"):
        steelyard.distill(net, other, batches, steps=8, folder=tmp_path)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in other.state_dict().items())


def test_the_same_net_goes_on(batches, tmp_path):
    """The student that the checkpoint was made of, as it is now."""
    losses, net = run(tmp_path, batches)
    on = steelyard.distill(net, make_teacher(), batches, optimizer=adam(net), steps=12, folder=tmp_path)
    assert on[:6] == losses
    whole, _ = run(tmp_path / "whole", batches, steps=12)
    assert on == whole


def test_a_checkpoint_that_cannot_be_read_is_an_error(batches, tmp_path):
    run(tmp_path, batches)
    file = tmp_path / "distill.pt"
    whole = file.read_bytes()
    for data in (whole[:1000], b"", b"text"):
        file.write_bytes(data)
        with pytest.raises(StateError, match=r"must be a checkpoint of steelyard.distill, and cannot be read"):
            run(tmp_path, batches)
    with pytest.raises(FileError, match=r"cannot keep checkpoints in '.*distill.pt'"):
        run(file, batches)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"batches": []}, UnsupportedModelError, "batches must be a list of what the model is called with"),
        ({"batches": [3]}, UnsupportedModelError, "each of batches must be what the models are called with: .* 0 is 3"),
        (
            {"batches": [(torch.zeros(1, 32), torch.zeros(1))]},
            UnsupportedModelError,
            "the teacher's forward does not take number 0: too many positional arguments; leave out labels",
        ),
        ({"batches": [{"y": torch.zeros(1, 32)}]}, UnsupportedModelError, "does not take number 0: missing a required"),
        ({"steps": 0}, RecipeError, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 1.5}, RecipeError, "steps must be a whole number of at least 1, got 1.5"),
        ({"clip": -1}, RecipeError, "clip must be a positive number, got -1"),
        ({"temperature": float("inf")}, RecipeError, "temperature must be a positive number, got inf"),
        ({"loss": "kl"}, RecipeError, "loss must be a function of the outputs of student and teacher, got 'kl'"),
        ({"loss": lambda ours, theirs: 1.0}, RecipeError, "loss must return a tensor of one number that depends on"),
        (
            {"teacher": nn.Linear(32, 1)},
            UnsupportedModelError,
            r"of one shape, got \(16, 16\) and \(16, 1\); give a loss",
        ),
    ],
)
def test_wrong_values_say_what_to_do(batches, wrong, error, message):
    teacher = make_teacher()
    given = {"teacher": teacher, "batches": batches, **wrong}
    with pytest.raises(error, match=message):
        steelyard.distill(make_net(teacher), **given)


def test_wrong_calls_say_what_to_do(batches):
    teacher = make_teacher()
    with pytest.raises(UnsupportedModelError, match=r"student_net must be a net of steelyard.compile, got Sequential"):
        steelyard.distill(copy.deepcopy(teacher), teacher, batches)
    with pytest.raises(UnsupportedModelError, match="teacher must have parameters of its own"):
        steelyard.distill(steelyard.compile(teacher, RECIPE), teacher, batches)
    frozen = steelyard.compile(copy.deepcopy(teacher).requires_grad_(False), RECIPE)
    with pytest.raises(UnsupportedModelError, match="student_net must have parameters that require gradients"):
        steelyard.distill(frozen, teacher, batches)
