"""The example that finds a planted outlier in three commands."""

import runpy
from pathlib import Path

import pytest

from steelyard.insight.comparison import compare_reports
from steelyard.insight.findings import findings
from steelyard.insight.report import Report

EXAMPLE = Path(__file__).parents[2] / "examples" / "find_the_layer.py"


@pytest.mark.slow
def test_the_layer_is_found_and_another_format_repairs_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    example = runpy.run_path(str(EXAMPLE))
    planted = example["PLANTED"]
    assert example["main"]() == 0
    printed = capsys.readouterr().out
    before, after = (Report.load(tmp_path / f"{name}.json") for name in ("before", "after"))
    assert {finding.layer for finding in findings(before)} == {planted}
    assert f"{planted}: error 100.0%" in printed
    assert findings(after) == []
    assert after.output.relative_error < 0.75 * before.output.relative_error
    assert compare_reports([before, after], ["before", "after"]).differences()[0][0] == planted
    assert printed.count("\n$ steelyard ") + printed.startswith("$ steelyard ") == 3
    assert {path.name for path in tmp_path.glob("*.html")} == {"before.html", "after.html", "compare.html"}
