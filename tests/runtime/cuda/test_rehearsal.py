"""`steelyard verify-gpu --quick` from its options to its report, on two mock GPUs."""

import contextlib
import io
import json
import re
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from corrupted_launches import corrupting
from mock_cuda import NAME, patch_torch, place_on
from mock_gpu import CheckedLauncher, mock_gpu, mock_gpus

from steelyard import recipes
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.targets.architectures import TARGETS
from steelyard.tools import cli, verify_gpu
from steelyard.tools.gpu import models as gpu_models
from steelyard.tools.gpu.checks import CheckSkipped

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
# One worker runs them: they share what the command found.
pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with"),
    pytest.mark.xdist_group("rehearsal"),
]
ROOT = Path(__file__).parents[3]
TINY = verify_gpu.Sizes(((17, 40),), ("bfloat16",), 128, 32, 128, 1)


@dataclass(frozen=True)
class Rehearsal:
    code: int
    printed: list[str]
    written: dict

    def statuses(self) -> dict[str, str]:
        return {result["name"]: result["status"] for result in self.written["results"]}


def skip(*_) -> str:
    raise CheckSkipped("there are two mock GPUs")


compare_quantized_weights = gpu_models._compare_quantized_weights


@contextlib.contextmanager
def mock_machine(patch, library, target: str, names: tuple[str, ...]):
    """A machine with two mock GPUs, for which there are only these recipes."""
    with mock_gpus(patch, library, [target, target]) as gpus:
        patch_torch(patch, gpus)
        patch.setattr(recipes, "NAMES", names)
        patch.setattr(verify_gpu, "place_on", lambda device: place_on(gpus, device))
        patch.setattr(verify_gpu, "QUICK", TINY)
        # To torch's capture, a tensor of parts is on the CPU with a number, and others are on the one without.
        patch.setattr(gpu_models, "_compare_quantized_weights", skip)
        try:
            yield gpus
        finally:
            torch._dynamo.reset()


def rehearse(path: Path, *options: str) -> Rehearsal:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = cli.main(["verify-gpu", "--quick", "--json", str(path), *options])
    return Rehearsal(code, printed.getvalue().splitlines(), json.loads(path.read_text()))


@pytest.fixture(scope="module")
def rehearsal(library, tmp_path_factory):
    with (
        pytest.MonkeyPatch.context() as patch,
        mock_machine(patch, library, "sm_100a", ("mxfp8",)),
    ):
        return rehearse(tmp_path_factory.mktemp("rehearsal") / "report.json")


@pytest.fixture
def gpus(monkeypatch, library):
    with mock_machine(monkeypatch, library, "sm_100a", ("mxfp8",)) as gpus:
        yield gpus


@pytest.mark.slow
def test_every_check_passes(rehearsal):
    assert rehearsal.code == 0
    not_passed = {name: status for name, status in rehearsal.statuses().items() if status != "passed"}
    assert not_passed == {"quantized weights mxfp8": "not run"}
    assert rehearsal.written["ended"] == "complete"
    (cold,) = [r["detail"] for r in rehearsal.written["results"] if r["name"] == "a kernel first launched in a capture"]
    assert cold.startswith("refused: ")


@pytest.mark.parametrize("recipe", ["mxfp8", pytest.param("nvfp4", marks=pytest.mark.slow)])
def test_quantized_weights_on_one_gpu(monkeypatch, library, recipe):
    with mock_gpu(monkeypatch, library, "sm_100a") as gpu:
        place = verify_gpu.Device(Kernels(gpu), "cpu")
        assert compare_quantized_weights(place, recipe, *gpu_models.make_mlp(32)) == ""
    torch._dynamo.reset()


@pytest.mark.slow
def test_every_group_and_family_of_kernels_is_there(rehearsal):
    groups = [result["group"] for result in rehearsal.written["results"]]
    assert list(dict.fromkeys(groups)) == list(verify_gpu.GROUPS)
    names = " ".join(rehearsal.statuses())
    for family in (
        "quantize mxfp8 input",
        "quantize mxfp8 weight of experts",
        "quantize mxfp8 HYBRID grad_output",
        "quantize after layer_norm",
        "produce rms_norm",
        "epilogue gelu",
        "amax rht",
        "amax per row",
        "dequantize mxfp8",
        "transpose mxfp8",
        "swizzle mxfp8",
        "compute_scale",
        "update_scale most_recent",
        "mxfp8 wgrad native",
        "mlp mxfp8",
        "experts mxfp8",
        "quantized weights mxfp8",
        "two streams mxfp8",
        "kernels on cuda:1",
        "model on cuda:1",
        "cuda graph mxfp8",
        "a kernel first launched in a capture",
        "gemm bf16",
    ):
        assert family in names


@pytest.mark.slow
def test_results_are_printed_as_a_table(rehearsal):
    heading, *rows, total, last = rehearsal.printed
    assert heading.startswith("Mock GPU (sm_100a), torch 2.")
    assert len(rows) == len(rehearsal.written["results"])
    assert re.fullmatch(r"kernels    quantize mxfp8 input 17x40 bf16 +  ok", rows[0])
    counts = rehearsal.written["summary"]
    expected = f"{len(rows)} results: {counts['passed']} passed, 0 failed, {counts['not run']} not run"
    assert total == expected
    assert last.endswith("report.json'. Please attach the file to your report.")


@pytest.mark.slow
def test_the_file_says_what_ran_where(rehearsal):
    written = rehearsal.written
    assert written["schema"] == 1
    assert written["gpu"] == {
        "name": NAME,
        "target": "sm_100a",
        "compute_capability": "10.0",
        "multiprocessors": 7,
        "memory_bytes": 1 << 30,
        "count": 2,
    }
    assert written["options"] == {"quick": True, "only": None, "device": "cuda", "limit": 300}
    assert written["software"]["torch"] == torch.__version__
    assert written["software"]["driver_cuda"] == "13.0"
    assert re.fullmatch(r"[0-9a-f]{16}", written["steelyard"]["sources"])
    assert written["summary"] == {
        status: sum(result["status"] == status for result in written["results"])
        for status in ("passed", "failed", "not run")
    }
    speeds = {result["name"]: result["values"] for result in written["results"] if result["values"]}
    # Of the mock, everything takes a millisecond: 2 * 128^3 operations, and 128x128 bf16 values read and written.
    assert speeds["gemm mxfp8"] | {"predicted_teraflops_per_second": 0} == pytest.approx(
        {"milliseconds": 1.0, "teraflops_per_second": 2 * 128**3 / 1e9, "predicted_teraflops_per_second": 0}
    )
    assert speeds["copy"] | {"predicted_gigabytes_per_second": 0} == pytest.approx(
        {"milliseconds": 1.0, "gigabytes_per_second": 4 * 128**2 / 1e6, "predicted_gigabytes_per_second": 0}
    )


@pytest.mark.slow
def test_the_document_names_every_field(rehearsal):
    page = (ROOT / "docs/cuda.md").read_text().partition("## Ten minutes on a borrowed GPU")[2]
    written = rehearsal.written
    fields = {*written, *written["steelyard"], *written["software"], *written["gpu"], *written["options"]}
    fields |= {*written["results"][0], *(name for result in written["results"] for name in result["values"])}
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []


@pytest.mark.slow
def test_the_cells_of_the_notebook_run(rehearsal, monkeypatch, tmp_path, capsys):
    """Its commands are taken by the parser; what Python cells print is in the report."""
    (tmp_path / "report.json").write_text(json.dumps(rehearsal.written))
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples/verify_gpu.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        if not cell.startswith(("!", "%")):
            exec(compile(cell, "<cell>", "exec"), {})
    printed = capsys.readouterr().out
    assert "Mock GPU" in printed
    assert all(name in printed for name in rehearsal.statuses())


@pytest.mark.slow
def test_a_wrong_kernel_is_reported(gpus, monkeypatch, tmp_path):
    broken = corrupting(gpus.launchers[0], lambda kernel: kernel.name.startswith("epilogue_gelu"))
    monkeypatch.setattr(verify_gpu, "place_on", lambda _: verify_gpu.Device(Kernels(broken), "cpu:0"))
    found = rehearse(tmp_path / "report.json", "--only", "kernels")
    assert found.code == 1
    failed = [result for result in found.written["results"] if result["status"] == "failed"]
    assert [result["name"] for result in failed] == ["epilogue gelu 17x40 bf16", "epilogue gelu_tanh 17x40 bf16"]
    assert failed[0]["detail"] == "the result differs"
    assert found.written["ended"] == "complete"


def test_a_lost_context_is_reported_once(gpus, monkeypatch, tmp_path):
    """A kernel that touches memory that is not its own: every later call of a real driver would fail."""
    launch = CheckedLauncher.__call__

    def stray(self, given) -> None:
        is_planted = given.kernel.name.startswith("epilogue_relu")
        launch(self, replace(given, arguments=(1 << 20, *given.arguments[1:])) if is_planted else given)

    monkeypatch.setattr(CheckedLauncher, "__call__", stray)
    found = rehearse(tmp_path / "report.json", "--only", "kernels,gemms")
    assert (found.code, found.written["ended"]) == (1, "context lost")
    statuses = list(found.statuses().values())
    first = statuses.index("failed")
    assert statuses == ["passed"] * first + ["failed"] + ["not run"] * (len(statuses) - first - 1)
    results = found.written["results"]
    assert results[first]["name"] == "epilogue relu 17x40 bf16"
    assert results[-1]["group"] == "gemms"
    reason = "the CUDA context was lost in 'kernels: epilogue relu 17x40 bf16'"
    assert {result["detail"] for result in results[first + 1 :]} == {reason}
    assert found.printed[-2].endswith("not run (context lost)")


def test_an_interrupted_command_writes_what_it_found(gpus, monkeypatch, tmp_path, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_models, "_compare_streams", interrupt)
    found = rehearse(tmp_path / "report.json", "--only", "streams,devices")
    assert (found.code, found.written["ended"]) == (130, "interrupted")
    assert set(found.statuses().values()) == {"not run"}
    assert list(found.statuses()) == ["two streams mxfp8", "kernels on cuda:1", "model on cuda:1"]
    assert capsys.readouterr().err == "steelyard verify-gpu: interrupted\n"


def test_a_command_that_hangs_writes_what_it_found_and_ends(gpus, monkeypatch, tmp_path):
    ended, codes = threading.Event(), []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(verify_gpu.os, "_exit", end)
    monkeypatch.setattr(gpu_models, "_compare_streams", lambda *_: str(ended.wait(60)))
    found = rehearse(tmp_path / "report.json", "--only", "streams,devices", "--limit", "1")
    assert (codes, found.written["ended"]) == ([1], "hung")
    assert list(found.statuses().values()) == ["failed", "not run", "not run"]


def test_without_a_file_the_last_line_suggests_one(gpus, capsys):
    assert cli.main(["verify-gpu", "--quick", "--only", "streams"]) == 0
    assert "--json report.json" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_recipe_on_every_target(monkeypatch, library, tmp_path, target):
    with mock_machine(monkeypatch, library, target, recipes.NAMES):
        found = rehearse(tmp_path / "report.json")
    assert [name for name, status in found.statuses().items() if status == "failed"] == []
    assert found.code == 0


@pytest.mark.slow
def test_everything(monkeypatch, library, tmp_path):
    """Without --quick, with more dtypes, options of recipes and models."""
    sizes = replace(TINY, shapes=((17, 40), (32, 64)), dtypes=("bfloat16", "float32", "float16"))
    with mock_machine(monkeypatch, library, "sm_100a", recipes.NAMES):
        monkeypatch.setattr(verify_gpu, "EVERYTHING", sizes)
        code = cli.main(["verify-gpu", "--json", str(tmp_path / "report.json")])
    written = json.loads((tmp_path / "report.json").read_text())
    assert [result["name"] for result in written["results"] if result["status"] == "failed"] == []
    assert code == 0
