"""What deserves a look in a report: the layers and shares that stand out, the most important first."""

from collections import Counter
from dataclasses import dataclass
from statistics import median

from steelyard.insight.report import Report, ReportRow

_OUTLIER = 2.5
"""A layer stands out if its error is this many times the median."""
_MUCH_OF_THE_ERROR = 0.3
_MUCH_SATURATED, _MUCH_FLUSHED = 0.01, 0.1
_ALARMING = 0.3
"""A share of values that is named even if it is the same everywhere."""
_SHARES = (
    ("saturated_share", _MUCH_SATURATED, "saturate"),
    ("flushed_share", _MUCH_FLUSHED, "become zero"),
)
_MUCH_IN_HIGH_PRECISION = 0.02
_MOST_OF_A_KIND = 3


@dataclass(frozen=True)
class Finding:
    """One sentence, about a layer if it names one."""

    layer: str
    kind: str
    number: int
    text: str


def findings(report: Report) -> list[Finding]:
    """What stands out."""
    return [
        *_not_finite(report),
        *_causes(report),
        *_errors(report),
        *_codes(report),
        *_high_precision(report),
    ]


def _not_finite(report: Report) -> list[Finding]:
    found = []
    for row in report.rows:
        for operand in row.measured.operands if row.measured else ():
            if operand.nan_count or operand.inf_count:
                what = f"{operand.nan_count} NaN and {operand.inf_count} infinite values in the {_role(operand.role)}"
                found.append(_of(row, what))
    return found[:_MOST_OF_A_KIND]


def _causes(report: Report) -> list[Finding]:
    """Layers that cause a good part of the whole model's error by themselves."""
    attribution = report.attribution
    if attribution is None or not attribution.baseline_error:
        return []
    shares = [
        (row.only_error / attribution.baseline_error, row.layer)
        for row in attribution.rows
        if row.only_error is not None
    ]
    rows = {row.layer: row for row in reversed(report.rows) if row.kind == "fprop"}
    limit = max(_MUCH_OF_THE_ERROR, _OUTLIER * median([share for share, _ in shares])) if shares else 0
    found = [(share, layer) for share, layer in sorted(shares, reverse=True) if share >= limit and layer in rows]
    text = "alone causes an error of {:.0%} of that of the whole model"
    return [_of(rows[layer], text.format(share)) for share, layer in found[:_MOST_OF_A_KIND]]


def _errors(report: Report) -> list[Finding]:
    """GEMMs of one kind whose results are much worse than those of the others."""
    found: list[tuple[float, Finding]] = []
    for kind in dict.fromkeys(row.kind for row in report.rows):
        pairs = [(_error(row), row) for row in report.rows if row.kind == kind]
        known = [(error, row) for error, row in pairs if error is not None]
        middle = median([error for error, _ in known]) if known else 0
        found += [
            (error, _of(row, f"error {error:.1%}, {error / middle:.1f} times the median of {kind}"))
            for error, row in known
            if middle > 0 and error >= _OUTLIER * middle
        ]
    return [finding for _, finding in sorted(found, key=lambda pair: -pair[0])][:_MOST_OF_A_KIND]


def _codes(report: Report) -> list[Finding]:
    """Operands whose values do not fit their format, more than those of others of the same role."""
    operands = [(row, operand) for row in report.rows if row.measured for operand in row.measured.operands]
    found: list[Finding] = []
    for share, much, verb in _SHARES:
        ranked: list[tuple[float, Finding]] = []
        for role in dict.fromkeys(operand.role for _, operand in operands):
            shares = [(getattr(operand, share), row) for row, operand in operands if operand.role == role]
            limit = max(much, min(_ALARMING, _OUTLIER * median([value for value, _ in shares])))
            text = f"of the values of the {_role(role)} {verb}"
            ranked += [(value, _of(row, f"{value:.1%} {text}")) for value, row in shares if value >= limit]
        found += [finding for _, finding in sorted(ranked, key=lambda pair: -pair[0])[:_MOST_OF_A_KIND]]
    return found


def _high_precision(report: Report) -> list[Finding]:
    total = report.shares.flops
    by_reason: Counter[str] = Counter()
    for row in report.rows:
        if not row.is_quantized:
            by_reason[row.reason] += row.flops
    return [
        Finding("", "", 0, f"{flops / total:.1%} of the FLOPs in high precision: {reason}")
        for reason, flops in by_reason.most_common(_MOST_OF_A_KIND)
        if total and flops / total >= _MUCH_IN_HIGH_PRECISION
    ]


def _error(row: ReportRow) -> float | None:
    return row.measured.relative_error if row.measured else None


def _role(role: str) -> str:
    return role.replace("_", " ")


def _of(row: ReportRow, text: str) -> Finding:
    return Finding(row.layer, row.kind, row.number, text)
