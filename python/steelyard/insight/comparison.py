"""Several nets of one model beside each other: by several recipes, or of two reports."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.errors import ResultError
from steelyard.files import check_writable, write_file
from steelyard.insight.html import check_plotting_library, make_page
from steelyard.insight.report import Report
from steelyard.insight.results import VERSION, Result
from steelyard.insight.table import format_table

_HEADS = ("", "output error", "KL", "loss", "FLOPs", "bytes", "ms per call", "speed", "weights", "smaller")


@dataclass
class ComparedGemm(Result):
    """The error of one GEMM in one net."""

    layer: str
    kind: str
    number: int
    formats: str
    relative_error: float | None


@dataclass
class ComparedNet(Result):
    """One net of a comparison: the figures of its report."""

    name: str
    recipe: str
    relative_error: float | None
    """Of the output."""
    kl_divergence: float | None
    loss_difference: float | None
    """To the loss in high precision."""
    flops_share: float | None
    """Of the FLOPs of GEMMs, those that are quantized."""
    bytes_share: float | None
    """Of the bytes of parameters, those that are quantized."""
    seconds: float | None
    """Per call."""
    seconds_high_precision: float | None
    """Of the model, timed in turns with the net."""
    weights: int
    weights_high_precision: int
    gemms: list[ComparedGemm]

    @property
    def speed(self) -> float | None:
        """How many times as fast as the model the net is."""
        if not self.seconds or not self.seconds_high_precision:
            return None
        return self.seconds_high_precision / self.seconds


@dataclass
class Comparison(Result):
    """Nets beside each other; prints as a table."""

    model: str
    nets: list[ComparedNet]
    version: int = field(default=VERSION, kw_only=True)

    def __str__(self) -> str:
        return "\n".join(format_table(_HEADS, [_cells(net) for net in self.nets]))

    def page(self, path: str | Path) -> Path:
        """Write a page with a picture of error against speed, and the errors of each layer."""
        path = Path(path)
        check_plotting_library()
        check_writable(path)
        write_file(path, make_page("comparison", f"{self.model}: {self.title}", self.to_dict()).encode())
        return path

    @property
    def title(self) -> str:
        """The names of the nets."""
        return ", ".join(net.name for net in self.nets)

    def differences(self) -> list[tuple[str, float, float]]:
        """The layers of two nets whose errors differ most, first the largest, with both errors."""
        if len(self.nets) != 2:
            raise ResultError(f"differences are between two nets, got {len(self.nets)}")
        first, second = ({(g.layer, g.kind, g.number): g.relative_error for g in net.gemms} for net in self.nets)
        found = []
        for key, one in first.items():
            other = second.get(key)
            if one is not None and other is not None and one != other:
                layer, kind, number = key
                name = layer if kind == "fprop" and not number else f"{layer} {kind}{f' {number}' * bool(number)}"
                found.append((name, one, other))
        return sorted(found, key=lambda row: -abs(row[2] - row[1]))


def compare_reports(reports: Sequence[Report], names: Sequence[str]) -> Comparison:
    """Reports beside each other; names that are the same are numbered."""
    models = list(dict.fromkeys(report.model for report in reports))
    counts = Counter(names)
    seen: Counter[str] = Counter()
    nets = []
    for report, name in zip(reports, names, strict=True):
        seen[name] += 1
        nets.append(_net(report, f"{name} ({seen[name]})" if counts[name] > 1 else name))
    return Comparison(", ".join(models), nets)


def _net(report: Report, name: str) -> ComparedNet:
    shares, output, timing = report.shares, report.output, report.timing
    return ComparedNet(
        name=name,
        recipe=report.recipe,
        relative_error=output.relative_error if output else None,
        kl_divergence=output.kl_divergence if output else None,
        loss_difference=output.loss_difference if output else None,
        flops_share=shares.quantized_flops / shares.flops if shares.flops else None,
        bytes_share=shares.quantized_weight_bytes / shares.weight_bytes if shares.weight_bytes else None,
        seconds=timing.seconds if timing else None,
        seconds_high_precision=timing.seconds_high_precision if timing else None,
        weights=report.memory.weights,
        weights_high_precision=report.memory.weights_high_precision,
        gemms=[
            ComparedGemm(
                row.layer,
                row.kind,
                row.number,
                f"{row.lhs} {row.rhs}" if row.is_quantized else "",
                row.measured.relative_error if row.measured else None,
            )
            for row in report.rows
        ],
    )


def _cells(net: ComparedNet) -> list[str]:
    speed = net.speed
    return [
        net.name,
        _text(net.relative_error, "{:.2%}"),
        _text(net.kl_divergence, "{:.3g}"),
        _text(net.loss_difference, "{:+.3g}"),
        _text(net.flops_share, "{:.1%}"),
        _text(net.bytes_share, "{:.1%}"),
        _text(None if net.seconds is None else 1e3 * net.seconds, "{:.3g}"),
        _text(speed, "{:.2f}"),
        f"{net.weights / 1e6:.3g} MB",
        _text(net.weights_high_precision / net.weights if net.weights else None, "{:.2f}"),
    ]


def _text(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
