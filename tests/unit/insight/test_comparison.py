"""Reports beside each other."""

import pytest

from steelyard.errors import ResultError
from steelyard.insight.comparison import Comparison, compare_reports


def test_the_table_has_the_figures_of_each_report(row, report_of):
    first, second = report_of(row("a", 0.1)), report_of(row("a", 0.2), row("b", None, reason="an override"))
    second.timing.seconds = 0.004
    second.output.kl_divergence = None
    comparison = compare_reports([first, second], ["one", "two"])
    heads, _, one, two = (line.split() for line in str(comparison).splitlines())
    assert " ".join(heads) == "output error KL loss FLOPs bytes ms per call speed weights smaller"
    assert one == ["one", "4.00%", "0.001", "+0.25", "100.0%", "50.0%", "1", "2.00", "0.0026", "MB", "1.58"]
    assert two == ["two", "4.00%", "+0.25", "50.0%", "50.0%", "4", "0.50", "0.0026", "MB", "1.58"]
    assert Comparison.from_json(comparison.to_json()) == comparison


def test_what_was_not_measured_or_timed_has_no_column(row, report_of):
    report = report_of(row("a", None))
    report.output = report.timing = None
    heads, _, cells = (line.split() for line in str(compare_reports([report], ["one"])).splitlines())
    assert heads == ["FLOPs", "bytes", "weights", "smaller"]
    assert cells == ["one", "100.0%", "50.0%", "0.0026", "MB", "1.58"]


def test_equal_names_are_numbered(row, report_of):
    comparison = compare_reports([report_of(row("a", 0.1))] * 3, ["x", "y", "x"])
    assert [net.name for net in comparison.nets] == ["x (1)", "y", "x (2)"]


def test_layers_that_differ_most_come_first(row, report_of):
    first = report_of(row("a", 0.1), row("b", 0.1), row("c", 0.1), row("gone", 0.1), row("same", 0.3))
    second = report_of(row("a", 0.15), row("b", 0.4), row("c", None), row("same", 0.3), row("new", 0.1))
    assert compare_reports([first, second], ["1", "2"]).differences() == [("b", 0.1, 0.4), ("a", 0.1, 0.15)]
    with pytest.raises(ResultError, match="between two nets, got 1"):
        compare_reports([first], ["1"]).differences()
