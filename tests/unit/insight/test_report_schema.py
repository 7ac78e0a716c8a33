"""The schema of the JSON is on the page that documents it."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from steelyard.insight import comparison, report

PAGE = Path(__file__).parents[3] / "docs" / "report.md"
RESULTS = [
    value
    for module in (report, comparison)
    for value in vars(module).values()
    if is_dataclass(value) and value.__module__ == module.__name__
]


@pytest.mark.parametrize("result", RESULTS, ids=lambda one: one.__name__)
def test_every_field_is_documented(result):
    text = PAGE.read_text()
    schema = text[text.index("## The JSON") :]
    assert [each.name for each in fields(result) if f"`{each.name}`" not in schema] == []
