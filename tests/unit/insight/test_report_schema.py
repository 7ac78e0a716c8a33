"""The schema of the JSON is on the page that documents it."""

import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from steelyard.insight import comparison, report, results

DOCS = Path(__file__).parents[3] / "docs"
SCHEMAS = {report: ("report.md", "## The JSON"), comparison: ("report.md", "## The JSON")}
SCHEMAS[results] = "insight.md", "## Results as data"
RESULTS = [
    value
    for module in SCHEMAS
    for value in vars(module).values()
    if is_dataclass(value) and value.__module__ == module.__name__
]


@pytest.mark.parametrize("result", RESULTS, ids=lambda one: one.__name__)
def test_every_field_is_documented(result):
    page, heading = SCHEMAS[sys.modules[result.__module__]]
    text = (DOCS / page).read_text()
    schema = text[text.index(heading) :]
    assert [each.name for each in fields(result) if f"`{each.name}`" not in schema] == []
