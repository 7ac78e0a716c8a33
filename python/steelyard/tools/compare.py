"""`steelyard compare`: reports beside each other."""

import argparse
from pathlib import Path

from steelyard.errors import FileError
from steelyard.tools.console import show

_EXAMPLES = """examples:
  steelyard compare mxfp8.json nvfp4.json
  steelyard compare before.json after.json --html compare.html
"""
_MOST_LAYERS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Show the figures of reports beside each other, and the layers of two that differ most."
    parser.epilog = f"{_EXAMPLES}\n{parser.epilog}"
    add = parser.add_argument
    add("reports", nargs="+", metavar="FILE", help="the JSON that net.report and steelyard report write beside a page")
    add("--html", metavar="FILE", help="also write a page with a picture of error against speed")
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Read and show; raises `SteelyardError` for what the user can fix."""
    from steelyard.insight.comparison import compare_reports
    from steelyard.insight.report import Report

    reports = [Report.load(_json(Path(file))) for file in arguments.reports]
    comparison = compare_reports(reports, [Path(file).stem for file in arguments.reports])
    if arguments.html:
        comparison.page(arguments.html)
    if arguments.json:
        show(comparison.to_json())
        return 0
    show(str(comparison))
    differing = comparison.differences()[:_MOST_LAYERS] if len(reports) == 2 else []
    if differing:
        from steelyard.insight.table import format_table

        names = [net.name for net in comparison.nets]
        cells = [[layer, f"{one:.2%}", f"{other:.2%}"] for layer, one, other in differing]
        show("\n".join(("", *format_table(["layers that differ most", *names], cells))))
    if arguments.html:
        show(f"\n{arguments.html}")
    return 0


def _json(path: Path) -> Path:
    if path.suffix == ".html":
        raise FileError(f"what is compared is the JSON beside a page, got '{path}'; give '{path.with_suffix('.json')}'")
    return path
