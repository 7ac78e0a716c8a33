"""`steelyard verify-gpu` without a GPU, and its checks on the simulator."""

import argparse
import itertools
import json
from dataclasses import replace

import mock_gpu
import pytest
import torch
from simulation import Simulator, simulated

from steelyard import recipes
from steelyard.formats.gemms import KINDS
from steelyard.runtime.cuda import devices, gemm
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.launches import Launch
from steelyard.targets.architectures import TARGETS
from steelyard.tools import cli, gpu_models, gpu_speed, targets, verify_gpu


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert verify_gpu.run(argparse.Namespace(json=None, device="cuda")) == 3
    printed = capsys.readouterr().out
    assert "nothing was run" in printed
    for check in (
        "interpreter",
        "ptxas",
        "NVIDIA's own conversions",
        "constants",
        "scaled_mm",
        "mock",
        "compiled models",
    ):
        assert check in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "cpu"], "the device must be cuda or cuda:NUMBER, got 'cpu'"),
        (["--device", "cuda:first"], "the device must be cuda or cuda:NUMBER, got 'cuda:first'"),
    ],
    ids=" ".join,
)
def test_wrong_options_are_refused_before_anything_runs(options, words, monkeypatch, capsys):
    monkeypatch.setattr(verify_gpu, "run", lambda _: pytest.fail("the checks have begun"))
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["verify-gpu", *options])
    assert exit_info.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(words)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (".", "cannot write '.': Is a directory"),
        ("absent/results.json", "cannot write 'absent/results.json': No such file or directory"),
        ("/proc/version", "cannot write '/proc/version': "),
        ("r" * 300, "File name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(path, words, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("the checks have begun"))
    assert cli.main(["verify-gpu", "--json", path]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("steelyard verify-gpu: error: ")
    assert words in line


def test_a_device_that_is_not_there_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(devices, "kernels_on", lambda _: pytest.fail("the checks have begun"))
    assert cli.main(["verify-gpu", "--device", "cuda:2"]) == 2
    expected = "steelyard verify-gpu: error: --device must be one of cuda:0, cuda:1, got cuda:2\n"
    assert capsys.readouterr().err == expected


def test_checks_of_right_kernels_pass():
    place = verify_gpu.Device(simulated("sm_100a"), "cpu")
    results = list(verify_gpu.check_kernels(place, ((17, 40),)))
    assert [result for result in results if not result.passed] == []
    assert len(results) == 5 * 3 + 8


class Broken(Simulator):
    """Passes kernels one row less than there is."""

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


@pytest.fixture
def place(monkeypatch):
    """A simulated GPU with the reference GEMM instead of `scaled_mm`, on which each call takes a millisecond."""
    monkeypatch.setattr(gemm, "multiply", mock_gpu.multiply)
    monkeypatch.setattr(gpu_speed, "_milliseconds", lambda call: call() is None or 1.0)
    return verify_gpu.Device(simulated("sm_100a"), "cpu")


def test_every_native_gemm_is_checked(place):
    results = list(verify_gpu.check_gemms(place, TARGETS["sm_100a"], 128))
    assert [result for result in results if not result.passed] == []
    native = ("fp8-delayed", "fp8-current", "mxfp8", "nvfp4")
    assert [result.what for result in results] == [f"gemm {recipe} {kind}" for recipe in native for kind in KINDS]


def test_wrong_products_are_found(place, monkeypatch):
    monkeypatch.setattr(gemm, "multiply", lambda *operands, **options: 1.01 * mock_gpu.multiply(*operands, **options))
    results = verify_gpu.check_gemms(place, TARGETS["sm_100a"], 128)
    assert not any(result.passed for result in itertools.islice(results, 3))


def test_every_recipe_is_measured(place):
    bandwidths = list(gpu_speed.measure(place, 128))
    assert [result.what for result in bandwidths] == ["copy", *(f"quantize {name}" for name in recipes.NAMES[1:])]
    # In a millisecond: 128x128 bf16 values, read once, both copies as bytes, and two scales.
    assert bandwidths[1].detail == "0 GB/s, 100% of a copy's"
    speeds = list(gpu_speed.measure_gemms(place, TARGETS["sm_100a"], 128))
    assert all(result.passed for result in speeds)
    assert [result.what for result in speeds] == ["gemm bf16", *(f"gemm {name}" for name in recipes.NAMES)]
    assert speeds[3].detail == "emulated: torch has 1x128 and 128x128 scales on sm_90 only"
    assert speeds[4].detail.endswith("1.00 x bf16")


def test_a_group_that_breaks_off_leaves_the_others_their_turn():
    def broken():
        yield verify_gpu.Result("first", True)
        raise ValueError("out of luck")

    found = list(verify_gpu.collect({"a": broken(), "b": iter([verify_gpu.Result("last", True)])}))
    assert [(result.what, result.passed) for result in found] == [("first", True), ("a", False), ("last", True)]
    assert found[1].detail == "ValueError: out of luck"


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
    assert lines[0].split() == ["recipe", "GEMM", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a"]
    assert lines[1].endswith("  native (pad N16 K32, swizzle)")
    assert lines[-1] == "[1] tensor cores read MX scales from sm_100 on"


def test_targets_takes_a_target_as_compile_spells_it():
    assert targets.table("nvfp4", "cuda:sm_90a") == targets.table("nvfp4", "sm_90a")


def test_targets_refuses_what_it_does_not_know(capsys):
    assert cli.main(["targets", "--target", "sm_75"]) == 2
    assert "must be one of sm_89" in capsys.readouterr().err
