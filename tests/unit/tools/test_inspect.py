"""`steelyard inspect` as a user runs it.

Most runs are in this process, which has loaded torch already: loading it costs seconds per run.
"""

import json
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest

CLI = "steelyard.tools.cli"

MODELS = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(10, 32), torch.nn.Linear(32, 48), torch.nn.Linear(48, 7))
def wrong():
    return 3
def failing():
    raise RuntimeError("no weights here")
answer = 42
def linear():
    return torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Linear(48, 7))
class picky(torch.nn.Linear):
    def __init__(self):
        super().__init__(32, 48)
    def forward(self, x):
        if x.shape[0] != 3:
            raise ValueError(f"needs three rows,\\n  not {x.shape[0]}")
        return super().forward(x)
class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = torch.nn.Embedding(10, 32), torch.nn.Linear(32, 48)
    def forward(self, tokens, features, *, attention_mask=None):
        assert (tokens.dtype, features.dtype) == (torch.int64, torch.bfloat16)
        x = self.embedding(tokens) + features
        return self.linear(x if attention_mask is None else x * attention_mask[..., None].all())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("inspect")
    (path / "models.py").write_text(MODELS)
    (path / "broken.py").write_text("1 / 0")
    (path / "unfinished.py").write_text("make = (")
    return path


@pytest.fixture
def inspect(folder, monkeypatch, capfd):
    """Runs the command as `python -m` does, and returns its exit code and what it printed."""

    def run(*arguments: str) -> SimpleNamespace:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "argv", [CLI, "inspect", *arguments])
        monkeypatch.delitem(sys.modules, CLI, raising=False)
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            runpy.run_module(CLI, run_name="__main__", alter_sys=True)
        stdout, stderr = capfd.readouterr()
        return SimpleNamespace(returncode=exit_info.value.code, stdout=stdout, stderr=stderr)

    return run


def test_rows_stages_and_files(inspect, folder):
    flags = ["--recipe", "nvfp4", "--input", "2x5:int64", "--override", "2=none", "--json", "--dump-ir", "out"]
    run = inspect("models:make", *flags)
    assert run.returncode == 0, run.stderr
    files, _, rows = run.stdout.partition("[")
    rows = json.loads("[" + rows)
    assert [(row["layer"], row["lhs"], row["reason"]) for row in rows] == [
        ("1", "e2m1 1x16", ""),
        ("2", "f32", "override '2' asks for high precision"),
    ]
    names = [line.partition("/")[2] for line in files.splitlines()]
    assert (names[0], names[-1]) == ("graph0_00_traced.mlir", "graph0_program.py")
    (inserted,) = [name for name in names if name.endswith("_scaled-insert-quantize.mlir")]
    assert "scaled.gemm" in (folder / "out" / inserted).read_text()


def test_several_inputs_some_by_keyword(inspect):
    inputs = ["--input", "2x5:int64", "--input", "2x5x32:bfloat16"]
    mask = ["--input", "attention_mask=2x5:bool"]
    run = inspect("models:Two", *inputs, *mask, "--explain", "--stage", "traced")
    assert run.returncode == 0, run.stderr
    assert "aten.all" in run.stdout
    assert "[2,5,32],bf16" in run.stdout
    table = run.stdout.splitlines()
    assert table[-3].split()[:5] == ["linear", "fprop", "10", "48", "32"]
    assert table[-2] == "1 GEMM quantized, 0 left in high precision"
    assert table[-1].startswith("quantized: 100.0% of the FLOPs of GEMMs")


def test_training_has_the_products_of_the_backward(inspect):
    run = inspect("models:make", "--input", "2x5:int64", "--training", "--json")
    assert run.returncode == 0, run.stderr
    assert {row["kind"] for row in json.loads(run.stdout)} == {"fprop", "dgrad", "wgrad"}


def test_help_shows_examples(inspect):
    run = inspect("--help")
    assert run.returncode == 0
    assert "--input attention_mask=2x16:int64" in run.stdout
    assert "--dump-ir DIR" in run.stdout
    assert "  2    an option, a path, the model or the environment is wrong" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["models:make"], "--input 2x16:int64"),
        (["models"], "MODULE:FACTORY"),
        (["models:absent", "--input", "1"], "has no attribute 'absent'"),
        (["nowhere:make", "--input", "1"], "No module named 'nowhere'"),
        (["models:wrong", "--input", "1"], "must return an nn.Module, got int"),
        (["models:failing", "--input", "1"], "models:failing failed: RuntimeError: no weights here"),
        (["models:make", "--input", "2xx5"], "as in 2x16:int64"),
        (["models:make", "--input", "2x5:int65"], "as in 2x16:int64, got '2x5:int65'"),
        (["models:make", "--input", "=2x5"], "as in 2x16:int64"),
        (["models:make", "--input", "ids=2x5:int64"], "cannot be called with --input ids=2x5:int64"),
        (
            ["models:make", "--input", "2x5"],
            "cannot be called with --input 2x5: layer 0 (Embedding): RuntimeError: Expected tensor for argument",
        ),
        (
            ["models:linear", "--input", "2x31"],
            "cannot be called with --input 2x31: layer 0 (Linear): RuntimeError: mat1 and mat2 shapes cannot be "
            "multiplied (2x31 and 32x48)",
        ),
        (["models:picky", "--input", "2x32"], "--input 2x32: ValueError: needs three rows, not 2\n"),
        (["models:answer", "--input", "1"], "models:answer must be a function that returns the model, got int"),
        ([":make", "--input", "1"], "MODULE:FACTORY"),
        (["models:", "--input", "1"], "MODULE:FACTORY"),
        (["broken:make", "--input", "1"], "cannot load broken:make: ZeroDivisionError: division by zero"),
        (["unfinished:make", "--input", "1"], "cannot load unfinished:make: SyntaxError: '(' was never closed"),
        (["models:make", "--input", "99999999x9999999"], "--input 99999999x9999999 cannot be made: RuntimeError"),
        (
            ["models:failing", "--input", "1", "--dump-ir", "models.py"],
            "the folder 'models.py': File exists",
        ),
        (["models:failing", "--input", "1", "--dump-ir", "models.py/out"], "a part of this one is a file"),
        (["models:failing", "--input", "1", "--dump-ir", "o" * 300], "File name too long; choose a shorter path"),
        (
            ["models:failing", "--input", "1", "--dump-ir", "/proc/out"],
            "the folder '/proc/out': No such file",
        ),
        (["models:failing", "--input", "1", "--dump-ir", ""], "--dump-ir needs the name of a folder"),
        (["models:failing", "--input", "1", "--target", "gpu"], "target must be one of cpu, cuda"),
        (["models:failing", "--input", "1", "--override", "head=fp9"], "fp9"),
        (["models:make", "--input", "2x5:int64", "--recipe", "fp9"], "fp9"),
        (["models:make", "--input", "2x5:int64", "--override", "head"], "PATTERN=RECIPE"),
        (["models:make", "--input", "2x5:int64", "--override", "head=none"], "'head' matches no layer"),
        (["models:make", "--input", "2x5:int64", "--stage", "melted"], "traced, raised, quantized"),
    ],
)
def test_mistakes_get_one_line(inspect, arguments, words):
    run = inspect(*arguments)
    assert run.returncode == 2
    assert words in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["models:make", "--input", "2x5:int64", "--override", "head=none"], "'head' matches no layer"),
        (["models:linear", "--input", "2x31"], "mat1 and mat2 shapes cannot be multiplied (2x31 and 32x48)"),
    ],
    ids=["override", "shape"],
)
def test_a_process_of_its_own_prints_nothing_else(folder, flags, words):
    """Neither imports nor compilation print a line, and torch logs no traceback."""
    run = subprocess.run([sys.executable, "-m", CLI, "inspect", *flags], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 2
    assert words in run.stderr
    assert run.stderr.count("\n") == 1
    assert run.stdout == ""


def test_a_layer_of_a_stage_is_printed(inspect):
    arguments = ("models:make", "--input", "2x4:int64", "--stage", "quantized")
    shown = inspect(*arguments, "--layer", "1").stdout
    assert 'at "1"' in shown
    assert 'at "2"' not in shown
    refused = inspect(*arguments, "--layer", "nothing")
    assert refused.returncode == 2
    assert "no layer of this stage matches 'nothing'; the layers are: 0, 1, 2" in refused.stderr
    assert "--layer needs a stage" in inspect(*arguments[:3], "--layer", "1").stderr
