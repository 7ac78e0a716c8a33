"""Kernels in torch's own profiler."""

import pytest
import torch
from torch import nn
from torch.profiler import profile, record_function, schedule

import steelyard


class Residual(nn.Module):
    """Two linear layers of equal sizes, which share their kernels, and one that is alone."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 40)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))) + x)


def make_net(recipe: str = "mxfp8"):
    torch.manual_seed(0)
    net = steelyard.compile(Residual(), recipe)
    x = torch.randn(24, 64)
    net(x).sum().backward()
    return net, x


def gemm_rows(profiler) -> dict[str, int]:
    """How often each GEMM ran, by its name."""
    averages = profiler.key_averages()
    return {each.key: each.count for each in averages if each.key.startswith("steelyard") and " gemm " in each.key}


def test_every_gemm_has_a_row_with_its_kernel_sizes_and_layer():
    net, x = make_net()
    with profile() as profiler:
        for _ in range(3):
            net(x).sum().backward()
    sizes = {"first": (24, 64, 64), "second": (24, 64, 64), "head": (24, 40, 64)}
    expected = {}
    for layer, (tokens, out_features, in_features) in sizes.items():
        expected[f"steelyard cpu mx gemm fprop {tokens}x{out_features}x{in_features} {layer}"] = 3
        expected[f"steelyard cpu mx gemm wgrad {out_features}x{in_features}x{tokens} {layer}"] = 3
        # The input of the first layer needs no gradient.
        if layer != "first":
            expected[f"steelyard cpu mx gemm dgrad {tokens}x{in_features}x{out_features} {layer}"] = 3
    assert gemm_rows(profiler) == expected
    # The kernels are those of explain(), which has one row per GEMM.
    explained = {f"steelyard {row.kernel} {row.kind} {row.M}x{row.N}x{row.K} {row.layer}" for row in net.explain().rows}
    assert explained == set(expected)


def test_shapes_are_those_of_the_tensors_that_a_kernel_reads_and_writes(monkeypatch):
    # A tape makes no tensors of torch's, so that its records have none.
    monkeypatch.setenv("STEELYARD_TAPE", "0")
    net, x = make_net()
    with profile(record_shapes=True) as profiler:
        net(x)
    (gemm,) = [event for event in profiler.events() if event.name == "steelyard cpu mx gemm fprop 24x40x64 head"]
    # Codes and scales of the input and of the weight, one scale per 32 values; then the bias and the result.
    assert gemm.input_shapes == [[24, 64], [24, 2], [40, 64], [40, 2], [40], [24, 40]]


@pytest.mark.parametrize("recipe", ["fp8-delayed", "nvfp4"])
def test_results_are_the_same_while_a_profiler_records(recipe):
    plain, recorded = (make_net(recipe) for _ in range(2))
    results = []
    for (net, x), profiler in ((plain, record_function("nothing")), (recorded, profile())):
        net.zero_grad()
        with profiler:
            y = net(x)
            y.sum().backward()
        results.append((y, *(parameter.grad for parameter in net.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_weights_that_are_quantized_again_have_a_row():
    net, x = make_net()
    with torch.no_grad():
        net.head.weight.mul_(2)
    with profile() as profiler:
        net(x)
    names = [event.name for event in profiler.events() if " quantize " in event.name and event.name.endswith("head")]
    assert sorted(names) == ["steelyard cpu mx quantize 24x64 head", "steelyard cpu mx quantize 40x64 head"]


def test_only_calls_that_a_schedule_records_have_rows():
    net, x = make_net()
    with profile(schedule=schedule(wait=2, warmup=1, active=2)) as profiler, torch.no_grad():
        for _ in range(5):
            net(x)
            profiler.step()
    assert set(gemm_rows(profiler).values()) == {2}


def test_nothing_is_made_for_a_profiler_that_never_records():
    net, x = make_net()
    net(x)
    functions = [
        function.emitted
        for compilation in net._steelyard.backend.compilations
        for function in compilation.program.functions.values()
    ]
    assert functions
    assert not any("recorded" in vars(function) for function in functions)
