"""Hooks of the site: charts that live beside the benchmarks are shown as if they were below docs/."""

from pathlib import Path

from mkdocs.structure.files import File

CHARTS = Path(__file__).parents[1] / "benchmarks" / "results"
OUTSIDE, INSIDE = "../benchmarks/results/", "images/benchmarks/"


def on_files(files, config):
    """Add the charts to the files of the site."""
    for path in sorted(CHARTS.glob("*.png")):
        files.append(File.generated(config, f"{INSIDE}{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, **_):
    """Let pages at the top level show them from there."""
    return markdown.replace(f"]({OUTSIDE}", f"]({INSIDE}")
