"""The page of a report, and the files that it is written to."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.files import check_writable, write_file
from steelyard.insight.findings import findings
from steelyard.insight.html import check_plotting_library, make_page
from steelyard.insight.report import Report
from steelyard.insight.statistics import element_of
from steelyard.reference.casts import FORMATS

JSON = ".json"


def check_paths(path: Path) -> None:
    """Refuse paths that no page can be written to, before anything is measured for it."""
    check_plotting_library()
    for one in (path, path.with_suffix(JSON)):
        check_writable(one)


def write_report(report: Report, path: Path) -> None:
    """Write the page, and the JSON that it is made from beside it."""
    write_file(path.with_suffix(JSON), report.to_json().encode())
    write_file(path, report_page(report).encode())


def report_page(report: Report) -> str:
    """The HTML of a report."""
    schemes = {
        operand.scheme: len(operand.code_histogram)
        for row in report.rows
        for operand in (row.measured.operands if row.measured else ())
    }
    data = {
        "report": report.to_dict(),
        "findings": [asdict(finding) for finding in findings(report)],
        "codes": {name: _plain(format_.values) for name, format_ in FORMATS.items()},
        "elements": {scheme: element_of(scheme, codes) for scheme, codes in schemes.items()},
    }
    return make_page("report", f"{report.model} in {report.recipe}", data)


def _plain(values: np.ndarray) -> list[Any]:
    """Numbers as results spell them in JSON."""
    return [float(value) if np.isfinite(value) else str(float(value)) for value in values]
