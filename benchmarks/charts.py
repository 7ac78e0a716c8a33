"""A chart of a group: a bar a ratio, and a line where it is 1."""

from pathlib import Path
from typing import Any

OURS, OTHERS = "#1f6f8b", "#b8b8b8"


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

    places, groups = _places(rows, data["labels"])
    names = [str(row[data["labels"][-1]]) for row in rows]
    values = [row[data["ratio"]] for row in rows]
    colours = [OURS if name.startswith("steelyard") else OTHERS for name in names]
    figure, axes = pyplot.subplots(figsize=(9, 0.24 * places[-1] + 1.4), layout="constrained")
    bars = axes.barh(places, values, color=colours, height=0.8)
    axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=7)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(places, names, fontsize=8)
    for place, group in groups:
        axes.text(0, place, f" {group}", fontsize=8, fontweight="bold", va="center")
    axes.margins(x=0.08)
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.set_xlabel(data["ratio"])
    axes.set_title(data["title"], fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _places(rows: list[dict], labels: list[str]) -> tuple[list[float], list[tuple[float, str]]]:
    """Where each bar stands, and each group of bars with its name above."""
    places: list[float] = []
    groups: list[tuple[float, str]] = []
    place, last = 0.0, None
    for row in rows:
        group = ", ".join(_words(label, row[label]) for label in labels[:-1])
        if group != last:
            last = group
            place += 0.4 if groups else 0.0
            groups.append((place, group))
            place += 1
        places.append(place)
        place += 1
    return places, groups


def _words(label: str, value: Any) -> str:
    if label != "threads":
        return str(value)
    return "1 thread" if str(value) == "1" else f"{value} threads"
