"""A report in the terminal."""

import io

import pytest

from steelyard.insight.report import HeldBytes, MemoryUse, Program, Report, Shares
from steelyard.tools import summary

HOSTILE = "[bold]a[/bold]\x1b[31m"


def make_report() -> Report:
    memory = MemoryUse([HeldBytes("parameters", 4_000_000)], 1_000_000, 4_000_000, [], [], [])
    return Report(
        "Net", "mxfp8", "cpu", "0.1.0", 0, [], [], Shares(10, 5, 8, 2), None, None, memory, None, Program([], [], [])
    )


def test_the_plain_summary_has_what_is_known():
    assert summary.summary(make_report()) == (
        "Net in mxfp8\n  FLOPs quantized: 50.0%\n  parameters quantized: 25.0% of the bytes\n"
        "  weights: 1 MB, 4.00 times smaller"
    )


def test_a_terminal_gets_colours_and_no_markup_of_names(monkeypatch):
    pytest.importorskip("rich")
    report = make_report()
    report.model = HOSTILE
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    summary.print_summary(report)
    printed = stream.getvalue()
    assert "[bold]a[/bold]" in printed
    # What a name holds does not reach the terminal as a command.
    assert "\x1b[31m" not in printed
    assert "1 MB, 4.00 times smaller" in printed
