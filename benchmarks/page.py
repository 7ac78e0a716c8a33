"""Writes docs/performance.md from results/*.json. `--check` only says whether it is up to date."""

import json
import sys
from pathlib import Path
from typing import Any

from report import cell_text

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
ORDER = ("models", "gemm", "gemv", "quantizers", "training", "peers", "threads", "scaling", "jax", "compile", "call")

INTRODUCTION = """\
<!-- Made by `make bench` from benchmarks/results. Do not edit. -->

# Performance

Every table was measured on a CPU by the command above it, contenders called in turns in one process, so that what
disturbs one disturbs all. Times depend on the machine, so read the ratios, and look at the load average: times on the
wall, as of several threads, are distorted where it is above the number of cores. `make bench` measures everything
(`make bench GROUPS=models,peers` some of it), `make bench-quick` smaller sizes; both install what they compare with
(the extra `bench`). A peer that is missing or fails is shown as such.
"""


def page(results: Path = HERE / "results") -> str:
    """The text of the page."""
    files = sorted(results.glob("*.json"), key=lambda path: (_rank(path.stem), path.stem))
    sections = [_section(path.stem, json.loads(path.read_text()), path.with_suffix(".png").exists()) for path in files]
    return "\n".join([INTRODUCTION, *sections])


def _rank(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _section(name: str, data: dict[str, Any], has_chart: bool) -> str:
    lines = [f"## {data['title']}", "", f"`{data['command']}`", ""]
    if has_chart:
        lines += [f"![{data['title']}](../benchmarks/results/{name}.png)", ""]
    columns = list(data["rows"][0]) if data["rows"] else []
    lines += [_row(columns), _row(["---"] * len(columns))]
    lines += [_row([cell_text(row[column]) for column in columns]) for row in data["rows"]]
    lines += ["", *(f"- {note}" for note in data["notes"])]
    lines += ["", "; ".join(f"{key}: {value}" for key, value in data["machine"].items()), ""]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    if "--check" in arguments:
        print("docs/performance.md is stale: run `python benchmarks/page.py`", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    print(f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
