"""The picture of `tuned_model.py`: error against speed, a column of points for each format, and the frontier."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

NAMES = {
    "nvfp4": "nvfp4",
    "nvfp4-4over6": "NVFP4 x NVFP4",
    "nvfp4-4over6/mxfp8": "NVFP4 weights\nx MXFP8",
    "nvfp4-4over6/none": "NVFP4 weights only",
    "mxfp8": "mxfp8",
    "mixed, half of the FLOPs nvfp4 x nvfp4": "half NVFP4\nx NVFP4",
    "mixed, at most 6 bits": "at most 6 bits",
}
"""How formats are called beside their points."""
KINDS = {
    "untuned": {"marker": "x", "s": 55, "linewidths": 2},
    "tuned without factors": {"marker": "o", "s": 55, "facecolors": "white", "linewidths": 2},
    "tuned with factors": {"marker": "o", "s": 75},
    "distilled": {"marker": "*", "s": 170},
}
TICKS = (2, 3, 5, 10, 20, 50)
AT_LEFT = ("mixed, half of the FLOPs nvfp4 x nvfp4", "mixed, at most 6 bits")
"""What has its figures at the left, where nothing else is."""
ABOVE = {"xytext": (0, 9), "ha": "center", "va": "bottom"}
PLACES = {
    "nvfp4-4over6": {"xytext": (-9, 0), "ha": "right", "va": "center"},
    "mxfp8": {"xytext": (9, -12), "ha": "left", "va": "center"},
    "mixed, at most 6 bits": {"xytext": (9, 0), "ha": "left", "va": "center"},
}
"""Where names stand that would run into others if they were above the worst point; the last is at the best."""


class Point(NamedTuple):
    format: str
    kind: str
    error: float
    """Perplexity above float32, in percent."""


def kind_of(row: dict) -> str:
    if row["goal"] is not None:
        return "tuned with factors" if row["fold"] else "tuned without factors"
    return "distilled" if "distilled" in row["name"] else "untuned"


def points_of(rows: list[dict], format_of: Callable[[str], str]) -> list[Point]:
    """All rows but float32, by their perplexity of topics."""
    exact = next(row for row in rows if row["name"] == "float32")["topics"]["perplexity"]
    return [
        Point(format_of(row["name"]), kind_of(row), 100 * (row["topics"]["perplexity"] / exact - 1))
        for row in rows
        if row["name"] != "float32"
    ]


def frontier(found: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of speeds and errors, those that nothing beats in both, from slow to fast."""
    best: list[tuple[float, float]] = []
    for speed, error in sorted(found, key=lambda each: (-each[0], each[1])):
        if not best or error < best[-1][1]:
            best.append((speed, error))
    return best[::-1]


def plot(points: list[Point], works: dict[str, dict[str, float]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(works), figsize=(12.5, 5.6), sharey=True, layout="constrained")
    for axes, (work, speeds) in zip(panels, works.items(), strict=True):
        _draw(axes, points, speeds)
        axes.set_title(work, fontsize=11, fontweight="bold", loc="left")
        axes.set_xlabel("speed against eager float32, which is at 1 and +0 %; one thread", fontsize=10)
    panels[0].set_ylabel("perplexity above float32", fontsize=10)
    handles = [
        panels[0].scatter([], [], color="#444444", label=kind, **{**style, "s": 60}) for kind, style in KINDS.items()
    ]
    line = panels[0].plot([], [], color="#cccccc", linewidth=5, label="frontier: nothing is both faster and closer")[0]
    figure.legend(handles=[*handles, line], loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    title = "SmolLM2-135M: error against speed, by 8 x 256 tokens of topics of Python's documentation"
    figure.suptitle(title, fontsize=12)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _draw(axes, points: list[Point], speeds: dict[str, float]) -> None:
    best = frontier((speeds[each.format], each.error) for each in points)
    axes.plot(*zip(*best, strict=True), color="#d4d4d4", linewidth=6, zorder=1, drawstyle="steps-pre")
    for index, format in enumerate(NAMES):
        own = sorted((each for each in points if each.format == format), key=lambda each: each.error)
        if own:
            _draw_column(axes, own, speeds[format], f"C{index}")
    axes.set_yscale("log")
    axes.set_yticks(TICKS, [f"+{tick} %" for tick in TICKS])
    axes.minorticks_off()
    axes.set_ylim(1.6, 80)
    low, high = min(speeds[format] for format in NAMES), max(speeds[format] for format in NAMES)
    axes.set_xlim(low - 0.16 * (high - low), high + 0.14 * (high - low))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_column(axes, own: list[Point], speed: float, color: str) -> None:
    """The points of a format, with the error beside each, and the format's name above them."""
    axes.plot([speed] * len(own), [each.error for each in own], color=color, linewidth=1, alpha=0.6, zorder=2)
    is_left = own[0].format in AT_LEFT
    place = {"textcoords": "offset points", "color": color, "fontsize": 8, "zorder": 4}
    for each in own:
        axes.scatter([speed], [each.error], **{"color": color, "zorder": 3, **KINDS[each.kind]})
        side = {"xytext": (-9 if is_left else 9, 0), "ha": "right" if is_left else "left", "va": "center"}
        axes.annotate(f"+{each.error:.1f} %", (speed, each.error), **place, **side)
    format = own[0].format
    point = own[0] if format == "mixed, at most 6 bits" else own[-1]
    axes.annotate(NAMES[format], (speed, point.error), fontweight="bold", **place, **PLACES.get(format, ABOVE))
