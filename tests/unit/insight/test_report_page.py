"""The page of a report: one file that runs nothing but its own code and loads nothing."""

import base64
import gzip
import hashlib
import importlib.util
import json
import re

import pytest

from steelyard.errors import FileError, SteelyardError
from steelyard.insight.report import Report
from steelyard.insight.report_page import check_paths, report_page, write_report

HOSTILE = "</script><img src=x onerror=alert(1)>'\"`%%STYLE%%\u2028"


def data_of(page: str) -> dict:
    """What the page shows."""
    (packed,) = re.findall(r'<script type="application/gzip" id="data">([^<]*)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def scripts_of(page: str) -> list[str]:
    return re.findall(r"<script>(.*?)</script>", page, re.DOTALL)


def test_a_page_holds_the_whole_report_in_fewer_than_five_megabytes(row, report_of):
    report = report_of(*(row(f"layers.{number}", 0.1) for number in range(30)))
    page = report_page(report)
    assert Report.from_dict(data_of(page)["report"]) == report
    assert len(page.encode()) < 5_000_000


def test_the_policy_lets_the_scripts_of_the_page_run_and_nothing_be_loaded(row, report_of):
    page = report_page(report_of(row("a", 0.1)))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts_of(page)]
    assert rules["script-src"].split() == [f"'sha256-{one}'" for one in hashes]
    # The policy is there before anything that it is about.
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script")
    assert not re.search(r"<(?:link|iframe|img|object|embed)\b", page.split("<script")[0])


def test_nothing_of_a_model_is_html(row, report_of):
    plain = report_page(report_of(row("a", 0.1)))
    report = report_of(row(HOSTILE, 0.1, reason=HOSTILE))
    report.model, report.recipe, report.notes = HOSTILE, HOSTILE, [HOSTILE]
    report.rows[0].code = report.rows[0].source = HOSTILE
    page = report_page(report)
    assert "onerror" not in re.sub(r"<title>.*?</title>", "", page, flags=re.DOTALL).split("<script>")[0]
    assert "<img" not in page.split("<script>")[0]
    # The same elements as the page of a harmless model.
    assert scripts_of(page) == scripts_of(plain)
    assert data_of(page)["report"]["rows"][0]["layer"] == HOSTILE


def test_codes_are_numbers_of_their_format(row, report_of):
    report = report_of(row("a", 0.1))
    report.rows[0].measured.operands[1].scheme = "#fp8_e5m2"
    data = data_of(report_page(report))
    assert data["elements"] == {"#mxfp8_1x32": "f8E4M3FN", "#fp8_e5m2": "f8E5M2"}
    assert data["codes"]["f8E4M3FN"][0x7E] == 448
    assert data["codes"]["f8E4M3FN"][0x7F] == "nan"
    assert data["codes"]["f8E5M2"][0x7C] == "inf"
    assert data["codes"]["f4E2M1FN"][8:] == [-0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def test_json_is_written_beside_the_page(row, report_of, tmp_path):
    report = report_of(row("a", 0.1))
    write_report(report, tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
    assert Report.load(tmp_path / "report.json") == report


def test_what_prevents_a_page_is_said_before_anything_is_measured(monkeypatch, tmp_path):
    with pytest.raises(FileError, match="cannot write"):
        check_paths(tmp_path / "missing" / "report.html")
    (tmp_path / "report.json").mkdir()
    with pytest.raises(FileError, match=r"report\.json"):
        check_paths(tmp_path / "report.html")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SteelyardError, match=r"needs the package bokeh.*pip install 'steelyard\[report\]'"):
        check_paths(tmp_path / "other.html")
