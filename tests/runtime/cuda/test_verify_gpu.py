"""`steelyard verify-gpu` without a GPU, and its checks on the simulator."""

import argparse
import itertools
import re
import shutil
from dataclasses import replace

import mock_gpu
import pytest
import torch
from corrupted_launches import corrupting
from mock_cuda import patch_torch, place_on
from simulation import Simulator, simulated

from steelyard import recipes
from steelyard.errors import TargetError
from steelyard.formats.gemms import KINDS
from steelyard.runtime.cuda import devices, gemm
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.launches import Launch
from steelyard.runtime.cuda.streams import Moment
from steelyard.targets.architectures import TARGETS
from steelyard.tools import cli, targets, verify_gpu
from steelyard.tools.gpu import models as gpu_models
from steelyard.tools.gpu import speed as gpu_speed
from steelyard.tools.gpu.checks import CheckFailed, Device, Result, guarded
from steelyard.tools.gpu.gemms import gemm_checks
from steelyard.tools.gpu.kernels import kernel_checks, mixed_recipes, recipe_variants
from steelyard.tools.gpu.predictions import prediction_of


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
        (["--only", "kernels,gem"], f"a group must be one of {', '.join(verify_gpu.GROUPS)}, got 'gem'"),
        (["--limit", "0"], "the limit must be a positive number of whole seconds, got '0'"),
    ],
    ids=str,
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


ALL_DIFFER = "rowwise codes, rowwise scales, columnwise codes, columnwise scales differ"


@pytest.fixture
def mxfp8_only(monkeypatch):
    monkeypatch.setattr(recipes, "NAMES", ("mxfp8",))


def failures(checks) -> dict[str, str]:
    """The details of the checks that failed."""
    results = [guarded(check.name, check.run) for check in checks]
    return {result.what: result.detail for result in results if result.passed is False}


@pytest.mark.xdist_group("rehearsal")
def test_every_check_of_kernels_notices_one_wrong_byte(mxfp8_only):
    """Those of right kernels pass in the rehearsal."""
    place = Device(Kernels(corrupting(Simulator("sm_100a"))), "cpu")
    checks = list(kernel_checks(place, ((17, 40),), (torch.bfloat16,), every_option=False))
    assert len(checks) == 41
    failed = failures(checks)
    assert [check.name for check in checks if check.name not in failed] == []
    assert failed["quantize mxfp8 input 17x40 bf16"] == ALL_DIFFER


def test_every_option_of_a_recipe_has_its_checks():
    """All schemes that the tests of kernels know of recipes, each once."""
    variants = recipe_variants(every_option=True)
    assert len(variants) == len({(name, role) for name, role, _ in variants})
    schemes = {scheme for _, _, pair in variants for scheme in pair}
    for family in ("mx", "mxfp4"):
        assert {scheme.rule for scheme in schemes if scheme.family == family} == {"rceil", "floor", "ceil", "even"}
    assert {scheme.block for scheme in schemes} == {
        "tensor",
        "row",
        "1x128",
        "128x128",
        "1x32",
        "32x1",
        "32x32",
        "1x16",
        "16x16",
    }
    assert {scheme.four_over_six for scheme in schemes} == {"none", "mae", "mse"}
    hybrid = [name for name, role, _ in recipe_variants(every_option=False) if role == "grad_output" and " " in name]
    # E4M3 gradients of per-tensor recipes have the schemes of their inputs.
    assert hybrid == ["fp8-block HYBRID", "mxfp8 HYBRID"]


class Broken(Simulator):
    """Passes kernels one row less than there is."""

    def __call__(self, launch: Launch) -> None:
        names = [parameter.name for parameter in launch.kernel.parameters]
        arguments = list(launch.arguments)
        if "rows" in names and launch.kernel.name.startswith("quantize"):
            arguments[names.index("rows")] -= 1
        super().__call__(replace(launch, arguments=tuple(arguments)))


def test_wrong_models_are_found(monkeypatch):
    kernels = Kernels(Broken("sm_90a"))
    monkeypatch.setitem(devices.MAKERS, "cpu", lambda device: kernels)
    with pytest.raises(CheckFailed, match="is off by"):
        gpu_models.compare_model(Device(kernels, "cpu"), "mxfp8", *gpu_models.make_mlp(32))
    torch._dynamo.reset()


@pytest.mark.parametrize("found", [2.0, float("nan")])
def test_errors_of_models_are_compared_with_those_of_quantization(found):
    exact, expected = {"y": torch.tensor([0.0]), "dx": torch.tensor([0.0])}, {"y": torch.ones(1), "dx": torch.ones(1)}
    assert gpu_models._largest_share({"y": torch.tensor([1.2]), "dx": torch.ones(1)}, expected, exact).startswith(
        "error 2.0e-01"
    )
    with pytest.raises(CheckFailed, match=r"dx is off by (1.0e\+00|nan)"):
        gpu_models._largest_share({"y": torch.tensor([1.2]), "dx": torch.tensor([found])}, expected, exact)


class Net(torch.nn.Module):
    """Adds something to its argument: other things at later calls."""

    def __init__(self, *added: float):
        super().__init__()
        self.added, self.calls = added, 0

    def forward(self, x):
        self.calls += 1
        return x + self.added[min(self.calls, len(self.added)) - 1]

    def requantize(self):
        pass


def test_quantized_weights_that_change_results_are_found(monkeypatch, mxfp8_only):
    nets = {"quantized": Net(0.0, 1.0), None: Net(0.0)}
    monkeypatch.setattr(gpu_models, "_compiled", lambda *_, weights=None: nets[weights])
    (check,) = [c for c in gpu_models.model_checks(Device(None, "cpu"), 32, is_quick=True) if "weights" in c.name]
    assert failures([check]) == {check.name: "the second call differs from that of a net with cached weights"}


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")
class TestStreamsAndGraphs:
    """Their checks on a mock GPU; those of right nets pass in the rehearsal."""

    @pytest.fixture
    def place(self, monkeypatch, library, mxfp8_only):
        pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
        with mock_gpu.mock_gpus(monkeypatch, library, ["sm_90a", "sm_90a"]) as gpus:
            patch_torch(monkeypatch, gpus)
            yield place_on(gpus)

    def test_a_stream_that_does_not_wait_is_found(self, place, monkeypatch):
        monkeypatch.setattr(Moment, "wait", lambda *_: None)
        failed = failures(gpu_models.stream_checks(place, 32))
        torch._dynamo.reset()
        assert failed == {"two streams mxfp8": "the second stream's result differs"}

    def test_a_replay_that_reads_other_memory_is_found(self, place, monkeypatch):
        monkeypatch.setattr(gpu_models, "_compiled", lambda *_: Net(0.0, 0.0, 1.0, 0.0))
        graph, _ = gpu_models.graph_checks(place, 32)
        assert failures([graph]) == {"cuda graph mxfp8": "a replay differs from the call"}

    def test_a_capture_may_be_refused_in_our_own_words_only(self, place):
        target = place.kernels.launch.target

        def run(error: Exception) -> Result:
            class Refusing:
                def __call__(self, _: Launch) -> None:
                    raise error

            launcher = Refusing()
            launcher.target = target
            _, cold = gpu_models.graph_checks(Device(Kernels(launcher), "cpu:0"), 32)
            return guarded(cold.name, cold.run)

        refused = run(TargetError("call the net once before it is captured"))
        assert (refused.passed, refused.detail) == (True, "refused: call the net once before it is captured")
        assert run(RuntimeError("operation not permitted")).passed is False


def test_other_devices_are_checked():
    def place_on(name: str) -> Device:
        if name == "cuda:2":
            raise TargetError("kernels are generated for compute capabilities 8.9, ..., got 7.5")
        return Device(Kernels(corrupting(Simulator("sm_90a"))), "cpu")

    first, _, skipped, _ = gpu_models.device_checks(["cuda:1", "cuda:2"], place_on, 32)
    assert guarded(first.name, first.run) == Result("kernels on cuda:1", False, ALL_DIFFER)
    assert guarded(skipped.name, skipped.run).passed is None
    right = Device(simulated("sm_90a"), "cpu")
    kernels, _ = gpu_models.device_checks(["cuda:1"], lambda _: right, 32)
    assert guarded(kernels.name, kernels.run).passed


@pytest.fixture
def place(monkeypatch):
    """A simulated GPU with the reference GEMM instead of `scaled_mm`, on which each call takes a millisecond."""
    monkeypatch.setattr(gemm, "multiply", mock_gpu.multiply)
    monkeypatch.setattr(gpu_speed, "_milliseconds", lambda call, _: call() is None or 1.0)
    return Device(simulated("sm_100a"), "cpu")


def test_every_native_and_emulated_gemm_is_checked(place):
    names = [check.name for check in gemm_checks(place, TARGETS["sm_100a"], 128)]
    per_tensor_or_row = {"fp8-delayed", "fp8-current", "fp8-row"}
    is_native = {*per_tensor_or_row, *(f"{name} E4M3" for name in per_tensor_or_row), "mxfp8", "nvfp4", "nvfp4-4over6"}
    is_native.add("fp8-row/fp8-current")
    backward = ("fp8-delayed E4M3", "fp8-current E4M3", "fp8-row E4M3", "fp8-block HYBRID", "mxfp8 HYBRID")
    kinds = [(recipe, kind) for recipe in recipes.NAMES for kind in KINDS]
    # What multiplies two activations was checked with their own recipe.
    kinds += [(recipe, kind) for recipe in mixed_recipes() for kind in ("fprop", "dgrad")]
    # Another format is one of gradients, which the forward has none of.
    kinds += [(recipe, kind) for recipe in backward for kind in ("dgrad", "wgrad")]
    assert names == [f"{recipe} {kind} {'native' if recipe in is_native else 'emulated'}" for recipe, kind in kinds]


@pytest.mark.parametrize(("target", "factor"), [("sm_100a", 1.01), ("sm_90a", 1.0001)])
def test_wrong_products_are_found(place, monkeypatch, mxfp8_only, target, factor):
    """Native ones on one target, emulated ones on the other."""
    multiply_decoded = gemm.multiply_decoded
    monkeypatch.setattr(gemm, "multiply", lambda *operands, **options: factor * mock_gpu.multiply(*operands, **options))
    monkeypatch.setattr(gemm, "multiply_decoded", lambda *operands: multiply_decoded(*operands).mul_(factor))
    checks = list(itertools.islice(gemm_checks(place, TARGETS[target], 64), 2))
    assert [detail.partition(" is off by ")[1] for detail in failures(checks).values()] == [" is off by "] * 2


def test_every_recipe_is_measured(place):
    bandwidths = list(gpu_speed.measure(place, 128, 1))
    quantizers = [f"quantize {name}{copies}" for name in recipes.NAMES[1:] for copies in ("", " row")]
    assert [result.what for result in bandwidths] == ["copy", *quantizers]
    # In a millisecond: 128x128 bf16 values, read once, copies as bytes, and a scale of each.
    assert bandwidths[1].detail.startswith("0 GB/s, 100% of a copy's")
    for result, moved in zip(bandwidths[1:3], (4 * 128**2 + 8, 3 * 128**2 + 4), strict=True):
        prediction = prediction_of("sm_100a", result.what)
        assert result.detail.endswith(f"; {prediction}")
        assert result.values == pytest.approx(
            {
                "milliseconds": 1.0,
                "gigabytes_per_second": moved / 1e6,
                "predicted_gigabytes_per_second": prediction.rate,
            }
        )
    speeds = list(gpu_speed.measure_gemms(place, TARGETS["sm_100a"], 128, 1))
    assert [result.what for result in speeds] == ["gemm bf16", *(f"gemm {name}" for name in recipes.NAMES)]
    assert [result.passed for result in speeds] == [True, True, True, True, None, True, None, True, True]
    assert speeds[4].detail == "emulated: torch has 1x128 and 128x128 scales on sm_90 only"
    assert speeds[5].detail == f"0 TFLOP/s, 1.00 x bf16; {prediction_of('sm_100a', 'gemm mxfp8')}"


def test_a_measurement_that_fails_leaves_the_others_their_turn(place, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no such product")

    monkeypatch.setattr(gemm, "multiply", refuse)
    bf16, *others = gpu_speed.measure_gemms(place, TARGETS["sm_100a"], 128, 1)
    assert bf16.passed
    assert [result.passed for result in others] == [False, False, False, None, False, None, False, False]
    assert others[0].detail == "RuntimeError: no such product"


def test_targets_lists_paths_and_reasons(capsys):
    assert targets.run(argparse.Namespace(recipe="mxfp8", target=None)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split("  +", lines[0]) == ["recipe", "GEMM", "sm_89, sm_90a", "sm_100a, sm_103a, sm_120a, sm_121a"]
    assert lines[1].endswith("  native (pad N16 K32, swizzle)")
    assert lines[-1] == "[1] tensor cores read MX scales from sm_100 on"


def test_targets_takes_a_target_as_compile_spells_it():
    assert targets.table("nvfp4", "cuda:sm_90a") == targets.table("nvfp4", "sm_90a")


def test_targets_refuses_what_it_does_not_know(capsys):
    assert cli.main(["targets", "--target", "sm_75"]) == 2
    assert "must be one of sm_89" in capsys.readouterr().err
