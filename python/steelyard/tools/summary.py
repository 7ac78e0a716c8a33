"""A report in the terminal: with colours by `rich` if that is installed, otherwise as plain text."""

import importlib.util
import sys
from collections.abc import Sequence

from steelyard.insight.findings import Finding, findings
from steelyard.insight.report import Report, ReportRow
from steelyard.insight.table import format_table
from steelyard.tools.console import show

_MOST_ROWS = 8
_HEADS = ("layer", "kind", "formats", "error", "SNR", "saturated", "flushed")


def print_summary(report: Report) -> None:
    """Print the figures, the layers with the largest errors, and what deserves a look."""
    if importlib.util.find_spec("rich") is not None and sys.stdout.isatty():
        _print_richly(report)
    else:
        show(summary(report))


def summary(report: Report) -> str:
    """The summary as plain text."""
    lines = [
        _printable(f"{report.model} in {report.recipe}"),
        *(f"  {name}: {value}" for name, value in figures(report)),
    ]
    rows = worst_rows(report)
    if rows:
        lines += ["", *format_table(_HEADS, [_cells(row) for row in rows])]
    found = findings(report)
    if found:
        lines += ["", "worth a look:", *(f"  {_sentence(finding)}" for finding in found)]
    return "\n".join(lines)


def figures(report: Report) -> list[tuple[str, str]]:
    """The figures of the whole model, and their names."""
    shares, output, timing, memory = report.shares, report.output, report.timing, report.memory
    made = [("FLOPs quantized", f"{shares.quantized_flops / shares.flops:.1%}")] if shares.flops else []
    if shares.weight_bytes:
        made.append(("parameters quantized", f"{shares.quantized_weight_bytes / shares.weight_bytes:.1%} of the bytes"))
    if output is not None and output.relative_error is not None:
        made.append(("output error", f"{output.relative_error:.2%}"))
    if output is not None and output.kl_divergence is not None:
        made.append(("KL divergence", f"{output.kl_divergence:.3g} nats"))
    if output is not None and output.loss_difference is not None:
        made.append(("loss", f"{output.loss:.4g}, {output.loss_difference:+.3g} to high precision"))
    if timing is not None:
        beside = timing.seconds_high_precision
        speed = f", {beside / timing.seconds:.2f} times as fast as float32" if beside else ""
        made.append(("time of a call", f"{1e3 * timing.seconds:.3g} ms{speed}"))
    smaller = f"{memory.weights_high_precision / memory.weights:.2f} times smaller" if memory.weights else ""
    made.append(("weights", f"{memory.weights / 1e6:.3g} MB, {smaller}"))
    return made


def worst_rows(report: Report) -> list[ReportRow]:
    """The GEMMs with the largest errors."""
    known = [(row.measured.relative_error, row) for row in report.rows if row.measured]
    ranked = sorted(((error, row) for error, row in known if error is not None), key=lambda pair: -pair[0])
    return [row for _, row in ranked[:_MOST_ROWS]]


def _cells(row: ReportRow) -> list[str]:
    measured = row.measured
    assert measured is not None
    operands = measured.operands
    return [
        _printable(row.layer),
        row.kind,
        row.lhs if row.lhs == row.rhs else f"{row.lhs} * {row.rhs}",
        f"{measured.relative_error:.1%}",
        "" if measured.snr_db is None else f"{measured.snr_db:.1f} dB",
        _largest([operand.saturated_share for operand in operands]),
        _largest([operand.flushed_share for operand in operands]),
    ]


def _largest(shares: Sequence[float]) -> str:
    return f"{max(shares):.1%}" if shares else ""


def _sentence(finding: Finding) -> str:
    return _printable(f"{finding.layer}: {finding.text}" if finding.layer else finding.text)


def _printable(text: str) -> str:
    """A text in which nothing, such as the name of a layer, controls the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _print_richly(report: Report) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(Text.assemble((_printable(report.model), "bold"), " in ", (report.recipe, "bold cyan")))
    whole = Table(box=None, show_header=False, padding=(0, 2))
    for name, value in figures(report):
        whole.add_row(Text(name, style="dim"), Text(value))
    console.print(whole)
    rows = worst_rows(report)
    if rows:
        table = Table(*_HEADS, box=box.SIMPLE_HEAD, header_style="dim", title="largest errors", title_justify="left")
        for row in rows:
            # As text: a name of a layer is no markup.
            table.add_row(*(Text(cell) for cell in _cells(row)))
        console.print(table)
    for finding in findings(report):
        console.print(Text.assemble(("! ", "bold yellow"), _sentence(finding)))
