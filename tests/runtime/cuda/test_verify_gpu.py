"""`steelyard verify-gpu` where there is no GPU, and its checks on the simulator."""

import argparse
import itertools
import json
from dataclasses import replace

import pytest
import torch
from simulation import Simulator, simulated

from steelyard import recipes
from steelyard.runtime.cuda import devices
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.launches import Launch
from steelyard.tools import gpu_models, targets, verify_gpu


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert verify_gpu.run(argparse.Namespace(json=None, device="cuda")) == 3
    assert "nothing was run" in capsys.readouterr().out


def test_checks_of_right_kernels_pass():
    place = verify_gpu.Device(simulated("sm_100a"), "cpu")
    results = list(verify_gpu.check_kernels(place, ((17, 40),)))
    assert [result for result in results if not result.passed] == []
    assert len(results) == 5 * 3 + 8


class Broken(Simulator):
    """Gives kernels one row less than there is."""

    def __call__(self, launch: Launch) -> None:
        names = [parameter.name for parameter in launch.kernel.parameters]
        arguments = list(launch.arguments)
        if "rows" in names and launch.kernel.name.startswith("quantize"):
            arguments[names.index("rows")] -= 1
        super().__call__(replace(launch, arguments=tuple(arguments)))


def test_checks_of_wrong_kernels_fail(monkeypatch):
    monkeypatch.setattr(recipes, "NAMES", ("mxfp8",))
    place = verify_gpu.Device(Kernels(Broken("sm_90a")), "cpu")
    results = list(itertools.islice(verify_gpu.check_kernels(place, ((17, 40),)), 3))
    assert [result.what.split()[:2] for result in results] == [["mxfp8", role] for role in recipes.ROLES]
    assert [result.passed for result in results] == [False] * 3
    assert "codes" in results[0].detail


def small_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(40, 48), torch.nn.GELU(), torch.nn.Linear(48, 24)), torch.randn(20, 40)


@pytest.mark.parametrize("launcher", [Simulator, Broken])
def test_models_are_compared_with_the_cpu(monkeypatch, launcher):
    kernels = Kernels(launcher("sm_90a"))
    monkeypatch.setitem(devices.MAKERS, "cpu", lambda device: kernels)
    found = gpu_models.compare_model(verify_gpu.Device(kernels, "cpu"), "mxfp8", *small_model())
    torch._dynamo.reset()
    assert ("is off by" in found) == (launcher is Broken)


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_report(passed, code, tmp_path, capsys):
    results = [verify_gpu.Result("mxfp8 input", passed, "error 1e-3"), verify_gpu.Result("copy", True)]
    assert verify_gpu.report("a GPU", results, tmp_path / "found.json") == code
    assert f"{1 - passed} failed" in capsys.readouterr().out
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["device"] == "a GPU"
    assert [result["passed"] for result in written["results"]] == [passed, True]


def test_targets_lists_paths_and_reasons(capsys):
    assert targets.run(argparse.Namespace(recipe="mxfp8", target=None)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["recipe", "GEMM", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
    assert lines[1].endswith("  native (pad N16 K32, swizzle)")
    assert lines[-1] == "[1] tensor cores read MX scales from sm_100 on"


def test_targets_refuses_what_it_does_not_know(capsys):
    assert targets.run(argparse.Namespace(recipe=None, target="sm_75")) == 1
    assert "must be one of sm_89" in capsys.readouterr().err
