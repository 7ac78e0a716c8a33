"""`net.log_to` and `steelyard.compile(..., watch=...)`: what they write and warn of while a net trains."""

import copy
import csv
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import FileError, RecipeError, SteelyardWarning, TargetError
from steelyard.insight.logs import scalars
from steelyard.insight.results import Measurement
from steelyard.recipes import DelayedScaling

IN, OUT = 48, 32


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(IN, OUT))


def train(net: nn.Module, inputs: list[torch.Tensor]) -> None:
    for x in inputs:
        net(x).square().sum().backward()


def inputs(*scales: float) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [scale * torch.randn(32, IN) for scale in scales]


class Writer:
    """What both kinds of writers are called with."""

    def __init__(self):
        self.written: list[tuple[str, float, int]] = []

    def find(self, name: str) -> list[tuple[int, float]]:
        return [(step, value) for found, value, step in self.written if found == name]


class SummaryWriter(Writer):
    def add_scalar(self, tag, value, global_step):
        self.written.append((tag, value, global_step))


class Wandb(Writer):
    def log(self, data, step=None):
        self.written += [(name, value, step) for name, value in data.items()]


@pytest.mark.parametrize("kind", [SummaryWriter, Wandb])
def test_writers(kind: type):
    writer = kind()
    net = steelyard.compile(make_model(), "fp8-current")
    given = inputs(1, 2, 3, 4, 5)
    with net.log_to(writer, every=2, first_step=100):
        train(net, given)
    amaxes = [(100 + step, float(given[step].abs().max())) for step in (0, 2, 4)]
    assert writer.find("steelyard/0/fprop/input/amax") == amaxes
    scales = [(step, pytest.approx(value / 448, rel=1e-6)) for step, value in amaxes]
    assert writer.find("steelyard/0/fprop/input/scale") == scales
    assert [step for step, _ in writer.find("steelyard/0/wgrad/grad_output/amax")] == [100, 102, 104]
    count = len(writer.written)
    train(net, given)
    assert len(writer.written) == count


def test_names_are_stable():
    net = steelyard.compile(make_model(), "mxfp8")
    with net.measure() as measuring:
        train(net, inputs(1))
    operand = ["amax", "scale", "saturated", "flushed", "snr_db"]
    wanted = ["fprop/relative_error", *(f"fprop/{role}/{name}" for role in ("input", "weight") for name in operand)]
    wanted += [
        "wgrad/relative_error",
        *(f"wgrad/{role}/{name}" for role in ("grad_output", "input") for name in operand),
    ]
    wanted += [f"wgrad/gradient_{name}" for name in ("norm", "cosine", "underflow")]
    assert set(scalars(measuring.result)) == {f"steelyard/0/{name}" for name in wanted}


def test_csv_files_grow(tmp_path: Path):
    path = tmp_path / "log.csv"
    net = steelyard.compile(make_model(), "mxfp8")
    given = inputs(1, 2)
    for first in (0, 2):
        with net.log_to(path, every=1, first_step=first):
            train(net, given)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "name", "value"]
    found = [(int(row["step"]), float(row["value"])) for row in rows if row["name"] == "steelyard/0/fprop/input/amax"]
    assert found == [(step, float(given[step % 2].abs().max())) for step in range(4)]


def test_what_is_no_writer_is_refused(tmp_path: Path):
    net = steelyard.compile(make_model(), "mxfp8")
    with pytest.raises(RecipeError, match="log_to needs a SummaryWriter"):
        net.log_to(7)
    with pytest.raises(FileError, match="choose a path in a folder that exists"):
        net.log_to(tmp_path / "missing" / "log.csv")
    (tmp_path / "other.csv").write_text("a,b\n")
    with pytest.raises(FileError, match="must begin with step,name,value, got 'a,b'; choose another path"):
        net.log_to(tmp_path / "other.csv")
    assert (tmp_path / "other.csv").read_text() == "a,b\n"


def test_a_delayed_scale_that_does_not_follow_is_told():
    alarms = []
    watch = steelyard.Watch(every=1, callback=alarms.append)
    net = steelyard.compile(make_model(), DelayedScaling(amax_history_len=1), watch=watch)
    train(net, inputs(1, 1, 1e6))
    train(net, inputs(1))
    first = alarms[0]
    assert (first.what, first.layer, first.kind, first.role, first.step) == ("saturation", "0", "fprop", "input", 2)
    x = inputs(1, 1, 1e6)
    limit = 448 * float(x[1].abs().max()) / 448
    share = float((x[2].abs() > limit).float().mean())
    assert first.value == pytest.approx(share, abs=0.002)
    assert str(first) == (
        f"step 2, layer '0', input of fprop: {first.value:.1%} of the values saturate; its delayed scale does not "
        'follow: use fp8-current, or a shorter amax_history_len, or compile with overrides={"0": None} to keep the '
        "layer in high precision"
    )


def test_a_gradient_that_underflows_is_told():
    alarms = []
    watch = steelyard.Watch(every=1, callback=alarms.append)
    net = steelyard.compile(make_model(), "fp8-delayed", watch=watch)
    x = inputs(1)[0]
    # So far the scale is 1, which makes 2^-16 the smallest value of E5M2.
    net(x).backward(torch.full((32, OUT), 2.0**-20))
    net(x)
    (alarm,) = alarms
    assert (alarm.what, alarm.role, alarm.step, alarm.value) == ("underflow", "grad_output", 0, 1.0)
    assert "scale the loss" in alarm.remedy


def test_a_scale_that_collapses_is_told():
    alarms = []
    watch = steelyard.Watch(every=1, callback=alarms.append)
    net = steelyard.compile(make_model(), "fp8-current", watch=watch)
    with torch.no_grad():
        for x in inputs(1, 1e-7):
            net(x)
    (alarm,) = alarms
    assert (alarm.what, alarm.role, alarm.step) == ("scale", "input", 1)
    assert alarm.value == pytest.approx(1e-7 * float(inputs(1, 1)[1].abs().max()) / 448, rel=1e-3)


def test_warnings_come_once_per_layer():
    net = steelyard.compile(make_model(), "mxfp8", watch=steelyard.Watch(every=1))
    x = inputs(1)[0]
    x[0, 0] = float("nan")
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for _ in range(3):
            net(x)
    told = [str(one.message) for one in caught if issubclass(one.category, SteelyardWarning)]
    assert len(told) == 1
    assert "step 0, layer '0', input of fprop: 1 values are NaN and 0 infinite; find the op before it" in told[0]


def test_a_good_run_has_no_alarms():
    for recipe in ("nvfp4", "mxfp8", "fp8-current", "fp8-block", "fp8-delayed"):
        alarms = []
        net = steelyard.compile(make_model(), recipe, watch=steelyard.Watch(every=1, callback=alarms.append))
        for x in inputs(1, 2, 0.5):
            # Gradients far below what a delayed scale begins with.
            net(x).square().mean().backward()
        assert alarms == []


def test_most_calls_are_not_measured():
    seen = []
    net = steelyard.compile(make_model(), "mxfp8", watch=seen.append)
    given = inputs(1)[0]
    given[0, 0] = float("inf")
    with torch.no_grad():
        for _ in range(101):
            net(given)
    assert [alarm.step for alarm in seen] == [0, 100]


def test_a_copy_is_watched_too():
    seen = []
    net = steelyard.compile(make_model(), "mxfp8", watch=seen.append)
    other = copy.deepcopy(net)
    given = inputs(1)[0]
    given[0, 0] = float("inf")
    with torch.no_grad():
        other(given)
    # The copy has a callback of its own, as all that a copy holds.
    assert other._steelyard.backend.observing is not None
    assert net._steelyard.backend.observing is not other._steelyard.backend.observing


def test_a_watched_net_can_be_measured():
    net = steelyard.compile(make_model(), "mxfp8", watch=True)
    found = net.measure(inputs(1, 2))
    assert isinstance(found, Measurement)
    assert found.steps == 2
    assert net._steelyard.backend.observing is not None


def test_wrong_watches_are_refused():
    with pytest.raises(RecipeError, match=r"watch must be True, a function of an Alarm, or a steelyard\.Watch, got 3"):
        steelyard.compile(make_model(), "mxfp8", watch=3)
    with pytest.raises(RecipeError, match="saturation must be from 0 to 1, got 2"):
        steelyard.Watch(saturation=2)
    with pytest.raises(RecipeError, match="every must be a number of calls, at least 1, got 0"):
        steelyard.Watch(every=0)
    with pytest.raises(RecipeError, match="callback must be a function of an Alarm, got 1"):
        steelyard.Watch(callback=1)
    with pytest.raises(TargetError, match="must be compiled for the CPU"):
        steelyard.compile(make_model(), "mxfp8", watch=True, target="cuda:sm_100a")
