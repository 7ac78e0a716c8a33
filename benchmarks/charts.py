"""A chart of a group: one panel per piece of work, one bar per ratio, and a line where the ratio is 1."""

from itertools import groupby
from pathlib import Path
from typing import Any

from report import SPEED

OURS, OTHERS = "#1f6f8b", "#b8b8b8"
WIDTH, BAR, MARGINS = 12.0, 0.24, 0.75
"""Inches: of a chart, of a bar's height, and of a row's title and ticks."""


def draw(data: dict[str, Any], path: Path) -> None:
    """Write the chart of a table, where it has a ratio to draw and matplotlib is installed."""
    rows = [row for row in data["rows"] if isinstance(row.get(data["ratio"]), int | float)]
    if not rows:
        return
    try:
        import matplotlib
    except ImportError:
        print(f"{path.name} missing: matplotlib is not installed; pip install 'steelyard[bench]'")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(name, list(group)) for name, group in groupby(rows, lambda row: _group(row, data["labels"]))]
    pairs = [panels[i : i + 2] for i in range(0, len(panels), 2)]
    heights = [BAR * max(len(group) for _, group in pair) + MARGINS for pair in pairs]
    size = WIDTH, sum(heights) + MARGINS
    columns = len(pairs[0])
    figure, grid = pyplot.subplots(
        len(pairs), columns, figsize=size, layout="constrained", height_ratios=heights, squeeze=False, sharex="row"
    )
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, (name, group) in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, name, group, data)
    figure.suptitle(f"{data['title']}: {_axis_label(data['ratio'])}", fontsize=11)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _draw_panel(axes: Any, name: str, rows: list[dict], data: dict[str, Any]) -> None:
    names = [str(row[data["labels"][-1]]) for row in rows]
    colours = [OURS if name.startswith("steelyard") else OTHERS for name in names]
    bars = axes.barh(range(len(rows)), [row[data["ratio"]] for row in rows], color=colours, height=0.8)
    axes.axvline(1.0, color="black", linewidth=1)
    blank = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}
    axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=7, bbox=blank)
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.margins(x=0.08)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_title(name, fontsize=9, fontweight="bold", loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def _axis_label(ratio: str) -> str:
    return f"{'speed against float32' if ratio == SPEED else ratio}; above 1 is faster"


def _group(row: dict, labels: list[str]) -> str:
    """What the bars of a panel have in common."""
    return ", ".join(_words(label, row[label]) for label in labels[:-1])


def _words(label: str, value: Any) -> str:
    if label != "threads":
        return str(value)
    return "1 thread" if str(value) == "1" else f"{value} threads"
