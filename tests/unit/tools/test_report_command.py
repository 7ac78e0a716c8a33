"""`steelyard report`, `compare` and `inspect --html` as a user runs them."""

import json

import pytest

from steelyard.insight.report import Report
from steelyard.tools import cli

MODELS = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Embedding(10, 32), torch.nn.Linear(32, 48), torch.nn.Linear(48, 7))
class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)
    def forward(self, x, *, attention_mask):
        return self.layer(x) * attention_mask[..., None]
def batches():
    while True:
        yield torch.randint(0, 10, (2, 5))
def nothing():
    return []
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder of its own; returns its exit code, what it printed, and its errors."""
    (tmp_path / "reported_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_report_is_written_and_summed_up(run, tmp_path):
    code, out, err = run("report", "reported_models:make", "--input", "2x5:int64", "--output", "a.html")
    assert code == 0, err
    report = Report.load(tmp_path / "a.json")
    assert (report.recipe, report.steps, [row.layer for row in report.rows]) == ("mxfp8", 2, ["1", "2"])
    # Tokens are drawn from the vocabulary: one row of the embedding, five times in two rows, has at most 32 codes.
    assert sum(count > 0 for count in report.rows[0].measured.operands[0].code_histogram) > 32
    assert out.startswith("Sequential in mxfp8\n  FLOPs quantized: 100.0%\n")
    assert f"output error: {report.output.relative_error:.2%}" in out
    assert out.rstrip().endswith("a.html")


def test_reports_are_compared(run, tmp_path):
    for recipe in ("mxfp8", "nvfp4"):
        command = ("report", "reported_models:make", "--recipe", recipe, "--data", "reported_models:batches")
        code, _, err = run(*command, "--batches", "1", "--output", f"{recipe}.html")
        assert code == 0, err
    code, out, err = run("compare", "mxfp8.json", "nvfp4.json", "--html", "both.html")
    assert code == 0, err
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["mxfp8", "nvfp4"]
    assert lines[5].split()[-2:] == ["mxfp8", "nvfp4"]
    assert "Content-Security-Policy" in (tmp_path / "both.html").read_text()
    code, out, _ = run("compare", "mxfp8.json", "nvfp4.json", "--json")
    nets = json.loads(out)["nets"]
    assert nets[0]["relative_error"] < nets[1]["relative_error"]


def test_keywords_and_masks_are_given_to_the_model(run, tmp_path):
    inputs = ("--input", "3x5x32", "--input", "attention_mask=3x5:int64")
    code, _, err = run("report", "reported_models:Masked", *inputs, "--output", "masked.html")
    assert code == 0, err
    # A mask of zeros would leave nothing of the output, and no error.
    assert Report.load(tmp_path / "masked.json").output.relative_error > 0


def test_inspect_writes_a_page_of_what_was_compiled(run, tmp_path):
    code, out, err = run("inspect", "reported_models:make", "--input", "2x5:int64", "--html", "program.html")
    assert (code, out) == (0, "program.html\n"), err
    report = Report.load(tmp_path / "program.json")
    assert (report.steps, report.timing, report.output) == (0, None, None)
    assert report.program.stages[-1].name == "lowered"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "reported_models:make"), "give either --input"),
        (
            ("report", "reported_models:make", "--input", "2x5:int64", "--data", "reported_models:batches"),
            "give either",
        ),
        (("report", "reported_models:make", "--data", "reported_models:nothing"), "at least one batch"),
        (("report", "reported_models:make", "--input", "2x5:int64", "--batches", "0"), "--batches must be at least 1"),
        (("report", "reported_models:make", "--input", "2x5:int64", "--output", "a.json"), r"must end with .html"),
        (("report", "reported_models:make", "--input", "2x5"), "cannot be called with --input 2x5"),
        (("report", "reported_models:make", "--input", "2x5:int64", "--recipe", "fp3"), "recipe must be"),
        (("inspect", "reported_models:make", "--input", "2x5:int64", "--html", "a.txt"), r"must end with .html"),
        (("compare", "missing.json"), "missing.json"),
        (("compare", "reported_models.py"), "must be JSON"),
        (("compare", "a.html"), "give 'a.json'"),
    ],
)
def test_what_a_user_can_fix_is_said_in_one_line(run, tmp_path, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.glob("*.html"))
