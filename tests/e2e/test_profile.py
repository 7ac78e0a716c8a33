"""`net.profile` names every step of a call, and its times are those of the steps."""

import json

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import SteelyardError


class Waves(nn.Module):
    """Two layers, with an op of torch's between them that no kernel does."""

    def __init__(self, wave=torch.special.bessel_j0):
        super().__init__()
        self.first, self.second, self.wave = nn.Linear(64, 64), nn.Linear(64, 32), wave

    def forward(self, x):
        return self.second(self.wave(self.first(x)))


@pytest.fixture(params=["1", "0"], ids=["tape", "python"])
def net(request, monkeypatch):
    monkeypatch.setenv("STEELYARD_TAPE", request.param)
    torch.manual_seed(0)
    return steelyard.compile(Waves().eval(), "mxfp8")


STEPS = [
    ("steelyard cpu mx quantize 8x64", "first"),
    ("steelyard cpu mx gemm fprop 8x64x64", "first"),
    ("torch aten.special_bessel_j0.default", ""),
    ("steelyard cpu mx quantize 8x64", "second"),
    ("steelyard cpu mx gemm fprop 8x32x64", "second"),
]


def test_every_step_has_a_row(net):
    with torch.no_grad():
        profile = net.profile(torch.randn(8, 64), calls=3)
    assert [(row.kernel, row.layer, row.calls) for row in profile.rows] == [(*step, 1) for step in STEPS]
    assert all(row.microseconds > 0 for row in profile.rows)
    assert sum(profile.by_layer().values()) == pytest.approx(sum(row.microseconds for row in profile.rows))
    assert profile.by_kernel()[STEPS[0][0]] == pytest.approx(
        profile.rows[0].microseconds + profile.rows[3].microseconds
    )
    assert [row.share for row in profile.rows] == pytest.approx(
        [row.microseconds / 1e3 / profile.milliseconds for row in profile.rows]
    )
    assert json.loads(profile.to_json())[2]["kernel"] == STEPS[2][0]
    assert "a call takes" in profile


def test_a_trace_has_the_steps_of_one_call(net, tmp_path):
    with torch.no_grad():
        profile = net.profile(torch.randn(8, 64), calls=2)
    profile.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [(event["name"], event["args"]["layer"]) for event in events] == STEPS
    ends = [event["ts"] + event["dur"] for event in events]
    assert events[0]["ts"] == 0
    assert all(event["ts"] >= end for event, end in zip(events[1:], ends, strict=False))


def test_the_backward_runs_with_a_loss_and_leaves_nothing_behind():
    torch.manual_seed(0)
    net = steelyard.compile(Waves(torch.cos), "fp8-delayed")
    x = torch.randn(8, 64)
    net(x)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    profile = net.profile(x, calls=2, loss=lambda y: y.square().mean())
    kinds = [row.kernel.split()[4] for row in profile.rows if " gemm " in row.kernel]
    assert sorted(kinds) == ["dgrad", "fprop", "fprop", "wgrad", "wgrad"]
    assert all(parameter.grad is None for parameter in net.parameters())
    after = net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_results_are_the_same_while_a_call_is_timed(net):
    from steelyard.runtime.profiling import timed

    x = torch.randn(8, 64)
    with torch.no_grad():
        expected = net(x)
        with timed():
            assert torch.equal(net(x), expected)
        assert torch.equal(net(x), expected)


def test_explain_lists_the_ops_of_torch(net):
    x = torch.randn(8, 64)
    with torch.no_grad():
        net(x)
        (op,) = net.explain(ops=True).ops
        assert (op.op, op.calls, op.share) == ("aten.special_bessel_j0.default", 1, None)
        assert "net.profile" in net.explain(ops=True)
        profile = net.profile(x, calls=2)
    explained = net.explain(ops=True)
    assert explained.ops[0].share == profile.rows[2].share
    assert "aten.special_bessel_j0.default" in explained
    assert "bessel" not in net.explain()


@pytest.mark.parametrize("calls", [0, -1, 1.5, True, "3"])
def test_wrong_calls_are_refused(net, calls):
    with pytest.raises(SteelyardError, match="calls must be a number of calls above 0"):
        net.profile(torch.randn(8, 64), calls=calls)


def test_a_wrong_loss_is_refused(net):
    with pytest.raises(SteelyardError, match="loss must make one number"):
        net.profile(torch.randn(8, 64), loss=lambda y: y)
