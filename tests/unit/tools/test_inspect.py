"""`steelyard inspect` as a user types it."""

import json
import subprocess
import sys

import pytest

MODELS = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(10, 32), torch.nn.Linear(32, 48), torch.nn.Linear(48, 7))
def wrong():
    return 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("inspect")
    (path / "models.py").write_text(MODELS)
    return path


def inspect(folder, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "steelyard.tools.cli", "inspect", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_rows_stages_and_files(folder):
    flags = ["--recipe", "nvfp4", "--input", "2x5:int64", "--override", "2=none", "--json", "--dump-ir", "out"]
    run = inspect(folder, "models:make", *flags)
    assert run.returncode == 0, run.stderr
    files, _, rows = run.stdout.partition("[")
    rows = json.loads("[" + rows)
    assert [(row["layer"], row["lhs"], row["reason"]) for row in rows] == [
        ("1", "e2m1 1x16", ""),
        ("2", "f32", "override '2' asks for high precision"),
    ]
    assert [line.partition("/")[2] for line in files.splitlines()] == [
        *(f"graph0_{i}_{stage}.mlir" for i, stage in enumerate(("traced", "raised", "quantized", "fused", "lowered"))),
        "graph0_program.py",
    ]
    assert "scaled.gemm" in (folder / "out" / "graph0_2_quantized.mlir").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["models:make"], "--input 2x16:int64"),
        (["models"], "MODULE:FACTORY"),
        (["models:absent", "--input", "1"], "has no attribute 'absent'"),
        (["nowhere:make", "--input", "1"], "No module named 'nowhere'"),
        (["models:wrong", "--input", "1"], "must return an nn.Module, got int"),
        (["models:make", "--input", "2xx5"], "as in 2x16:int64"),
        (["models:make", "--input", "2x5:int64", "--recipe", "fp9"], "fp9"),
        (["models:make", "--input", "2x5:int64", "--override", "head"], "PATTERN=RECIPE"),
        (["models:make", "--input", "2x5:int64", "--override", "head=none"], "'head' matches no layer"),
        (["models:make", "--input", "2x5:int64", "--stage", "melted"], "traced, raised, quantized"),
    ],
)
def test_mistakes_get_one_line(folder, arguments, words):
    run = inspect(folder, *arguments)
    assert run.returncode == 1
    assert words in run.stderr
    assert "Traceback" not in run.stderr
