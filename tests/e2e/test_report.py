"""`net.report`: what it says is what the net says of itself."""

import copy

import pytest
import torch
from small_models import make_mlp
from torch import nn

import steelyard
from steelyard.errors import FileError, SteelyardError
from steelyard.insight.report import Report


class Block(nn.Module):
    """A layer that is called twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        return self.layer(torch.relu(self.layer(x)))


def make_stack(count: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count))).eval()


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """A net of blocks that share a program, its report, and the folder that holds it."""
    folder = tmp_path_factory.mktemp("report")
    net = steelyard.compile(make_stack(), "mxfp8")
    return net, net.report(folder / "report.html", batches=[torch.randn(8, 32)]), folder


def test_the_page_and_its_json_are_written(stack):
    _, report, folder = stack
    assert Report.load(folder / "report.json") == report
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_rows_and_shares_are_those_of_explain(stack):
    net, report, _ = stack
    explained = net.explain()
    assert [(row.layer, row.kind, row.kernel, row.flops) for row in report.rows] == [
        (row.layer, row.kind, row.kernel, row.flops) for row in explained.rows
    ]
    assert (report.shares.flops, report.shares.quantized_flops) == (8 * 2 * 8 * 32 * 32, 8 * 2 * 8 * 32 * 32)
    # A layer that is called twice has two rows.
    assert [row.number for row in report.rows] == [0, 1] * 4
    assert (report.model, report.recipe, report.target) == ("Sequential", "mxfp8", "cpu")


def test_rows_have_their_source_line_without_what_only_this_machine_has(stack):
    _, report, _ = stack
    line = Block.forward.__code__.co_firstlineno + 1
    assert {row.source.rpartition("/")[2] for row in report.rows} == {f"test_report.py:{line}"}
    assert not any(row.source.startswith("/") for row in report.rows)
    assert {row.code for row in report.rows} == {"return self.layer(torch.relu(self.layer(x)))"}


def test_the_ir_of_every_stage_is_there_with_layers(stack):
    net, report, _ = stack
    assert [stage.name for stage in report.program.stages] == [
        *("traced", "raised", "quantized", "fused", "partitioned", "lowered")
    ]
    for stage in report.program.stages:
        assert "\n".join(stage.lines) == net.ir(stage.name).rstrip("\n")
        gemms = [
            report.program.layers[layer]
            for line, layer in zip(stage.lines, stage.layers, strict=True)
            if "scaled.gemm" in line or "scaled.matmul" in line
        ]
        assert set(gemms) <= {"0.layer"}
    # Blocks that share a program are printed by the name of the first.
    shared = {one.layer: one.printed for one in report.program.shared}
    assert {layer: shared[layer] for layer in ("1.layer", "2.layer", "3.layer")} == dict.fromkeys(
        ("1.layer", "2.layer", "3.layer"), "0.layer"
    )


def test_memory_over_a_call_goes_through_all_layers(stack):
    _, report, _ = stack
    memory = report.memory
    assert len(memory.ops) == len(memory.layers) == len(memory.live_bytes)
    gemms = [layer for op, layer in zip(memory.ops, memory.layers, strict=True) if op.startswith("gemm")]
    assert gemms == [f"{number}.layer" for number in range(4) for _ in range(2)]
    # The input of a block is there while its first step makes codes and scales of it: 8x32 of them, and one per 32.
    assert memory.live_bytes[0] == 8 * 32 * 4 + 8 * 32 + 8
    # Codes and a scale per 32 for each weight, and biases as they are.
    assert memory.weights == 4 * (32 * 32 + 32 + 32 * 4)
    assert memory.weights_high_precision == 4 * (32 * 32 + 32) * 4


def test_each_gemm_has_its_own_measurement(tmp_path):
    net = steelyard.compile(make_stack(), "mxfp8")
    x = torch.randn(8, 32)
    report = net.report(tmp_path / "report.html", batches=[x, 2 * x])
    measured = net.measure([x, 2 * x])
    assert report.steps == 2
    assert report.output == measured.output
    assert [row.measured for row in report.rows] == measured.rows
    assert all(row.measured.layer == row.layer for row in report.rows)
    # The two calls of a layer have inputs of their own.
    first, second = report.rows[:2]
    assert first.measured.operands[0].amax == (2 * x).abs().max()
    assert second.measured.operands[0].amax != first.measured.operands[0].amax


def test_a_layer_that_is_compiled_for_several_sizes_has_the_numbers_of_what_was_measured(tmp_path):
    net = steelyard.compile(nn.Sequential(nn.Linear(32, 48)).eval(), "mxfp8")
    with torch.no_grad():
        net(torch.randn(8, 32))
    report = net.report(tmp_path / "report.html", batches=[torch.randn(8, 4, 32)])
    assert {row.sizes[0]: row.measured is not None for row in report.rows} == {"8": False, "?": True}


def test_training_steps_are_measured_and_timed_with_their_backward(tmp_path):
    net = steelyard.compile(make_stack().train(), "fp8-current")
    x = torch.randn(8, 32)
    report = net.report(tmp_path / "report.html", [x], loss=lambda y, _: y.square().mean(), backward=True)
    assert {row.kind for row in report.rows if row.measured and row.measured.gradient} == {"dgrad", "wgrad"}
    assert report.gradients == net.measure([x], loss=lambda y, _: y.square().mean(), backward=True).gradients != []
    assert any(" gemm wgrad " in kernel.kernel for kernel in report.timing.kernels)
    assert all(parameter.grad is None for parameter in net.parameters())
    roles = {operand.role for row in report.rows for operand in row.measured.operands if "e5m2" in operand.scheme}
    assert roles == {"grad_output"}


def test_the_layers_that_cause_the_error_are_found_on_request(tmp_path):
    net = steelyard.compile(make_stack(), "nvfp4")
    x = torch.randn(8, 32)
    report = net.report(tmp_path / "report.html", batches=[x], attribute=True)
    assert report.attribution == net.attribute([x])
    assert [row.layer for row in report.attribution.rows] == [f"{number}.layer" for number in range(4)]
    with pytest.raises(SteelyardError, match="attribute=True needs batches"):
        net.report(tmp_path / "report.html", attribute=True)


def test_times_are_of_the_net_the_model_and_each_kernel(stack):
    net, report, _ = stack
    timing = report.timing
    assert timing.seconds > 0
    assert timing.seconds_high_precision > 0
    # The steps that `net.profile` times, in the order of the program; each layer is called twice.
    with torch.no_grad():
        rows = net.profile(torch.randn(8, 32), calls=1).rows
    assert [(one.kernel, one.layer, one.calls) for one in timing.kernels] == [
        (row.kernel.removeprefix("steelyard "), row.layer, row.calls) for row in rows
    ]
    gemms = [(one.layer, one.calls) for one in timing.kernels if one.kernel == "cpu mx gemm fprop 8x32x32"]
    assert gemms == [(f"{number}.layer", 2) for number in range(4)]
    assert all(one.seconds > 0 for one in timing.kernels)


def test_a_training_step_keeps_values_until_the_backward(tmp_path):
    model, x = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    net(**x).sum().backward()
    report = net.report(tmp_path / "report.html")
    assert {row.kind for row in report.rows} == {"fprop", "dgrad", "wgrad"}
    assert report.timing is None
    # The backward begins with all that the forward kept, and the gradient of the result.
    products = [index for index, op in enumerate(report.memory.ops) if op.startswith("gemm")]
    forward = sum(row.kind == "fprop" for row in report.rows)
    before = report.memory.live_bytes[products[forward - 1] + 1]
    assert before > net.memory()["kept_for_backward"] / 2
    assert max(report.memory.live_bytes) > net.memory()["kept_for_backward"]


def test_a_model_whose_parameters_are_quantized_has_no_time_of_its_own(tmp_path):
    net = steelyard.compile(make_stack(), "mxfp8", weights="quantized")
    report = net.report(tmp_path / "report.html", batches=[torch.randn(8, 32)])
    assert report.timing.seconds_high_precision is None
    assert report.memory.weights == 4 * (32 * 32 + 32 + 32 * 4)


def test_batches_may_be_arguments_or_keywords(tmp_path):
    net = steelyard.compile(make_stack(), "mxfp8")
    for batch in (torch.randn(8, 32), (torch.randn(8, 32),), {"input": torch.randn(8, 32)}):
        assert copy.copy(net).report(tmp_path / "report.html", batches=[batch]).timing is not None


@pytest.mark.parametrize(
    ("path", "batches", "error", "message"),
    [
        ("report.json", None, FileError, r"must end with \.html, got .*report\.json"),
        ("report", None, FileError, r"must end with \.html"),
        ("missing/report.html", None, FileError, "cannot write"),
        ("report.html", [], SteelyardError, "at least one batch"),
        ("report.html", None, SteelyardError, r"nothing is compiled yet.*net\.lower"),
    ],
)
def test_what_cannot_be_reported_is_refused(tmp_path, path, batches, error, message):
    net = steelyard.compile(make_stack(), "mxfp8")
    with pytest.raises(error, match=message):
        net.report(tmp_path / path, batches=batches)
    assert list(tmp_path.iterdir()) == []
