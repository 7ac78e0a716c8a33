"""Writes docs/performance.md, and the tables of speeds in README.md and docs/index.md, from results/*.json.

`--check` only says whether they are up to date.
"""

import json
import sys
from pathlib import Path
from typing import Any

from report import SPEED, cell_text

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "performance.md"
SUMMARIES = (HERE.parent / "README.md", HERE.parent / "docs" / "index.md")
BEGIN, END = "<!-- speeds: written by benchmarks/page.py -->", "<!-- end of speeds -->"
# Contenders by the names that groups have for them, and how the summary names them.
SUMMARY_RECIPES = {
    ("steelyard fp8-current", "steelyard fp8"): "fp8-current",
    ("steelyard mxfp8",): "mxfp8",
    ("steelyard nvfp4",): "nvfp4",
}
# What a row of the summary is called, its group, and the cells that its rows there have in common.
SUMMARY = (
    ("GPT of 12 layers, 512 tokens, forward", "models", {"work": "GPT 12 x 768, 512 tokens", "threads": "1"}),
    (
        "Llama of 302 M parameters, one decoding step",
        "models",
        {"work": "Llama decode, 302 M, 1 token", "threads": "1"},
    ),
    ("GPT of 4 layers, 512 tokens, training step", "training", {"work": "GPT 4 x 512, 512 tokens", "threads": "1"}),
    ("linear of 2048 x 2048, 256 rows", "gemm", {"M x N x K": "256 x 2048 x 2048"}),
    ("linear of 2048 x 2048, 1 row, weights from DRAM", "gemv", {"M x N x K": "1 x 2048 x 2048"}),
)
ORDER = (
    "models",
    "decoding",
    "trained",
    "experts",
    "gemm",
    "gemv",
    "formats",
    "attention",
    "caches",
    "elementwise",
    "quantizers",
    "training",
    "measuring",
    "peers",
    "loading",
    "threads",
    "scaling",
    "jax",
    "compile",
    "call",
)

INTRODUCTION = """\
<!-- Made by `make bench` from benchmarks/results. Do not edit. -->

# Performance

**Every ratio is a speed: the time of the baseline divided by the time, so that above 1 is faster.** The baseline is
float32 in torch (or jnp), on the same machine and threads. A table with another baseline names it in the column: a copy
of the same bytes for the quantizers, one thread for threads, the nearest round size for awkward sizes, and a net that
is not cut into its blocks for first calls.

Each table was measured on a CPU by the command above it. Contenders are called in turns in one process, so that what
disturbs one disturbs all. Times depend on the machine, so read the ratios. Look at the load average, too: wall times,
which are used for more than one thread, are distorted where it is above the number of cores. A peer that is missing or
fails is shown as such.

`make bench` measures everything, `make bench GROUPS=models,peers` a part of it, and `make bench-quick` smaller sizes.
They install what they compare with (the extra `bench`).
"""


def page() -> str:
    """The text of the page."""
    files = sorted(RESULTS.glob("*.json"), key=lambda path: (_rank(path.stem), path.stem))
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


def speeds() -> str:
    """The table of speeds that README.md and docs/index.md show."""
    lines = [_row(["", *SUMMARY_RECIPES.values()]), _row(["---"] * (1 + len(SUMMARY_RECIPES)))]
    for text, group, matches in SUMMARY:
        rows = json.loads((RESULTS / f"{group}.json").read_text())["rows"]
        found = [row for row in rows if matches.items() <= row.items()]
        by_name = {row.get("contender", row.get("recipe")): row[SPEED] for row in found}
        cells = [next(by_name[name] for name in names if name in by_name) for names in SUMMARY_RECIPES]
        lines.append(_row([text, *(f"{cell:.2f}" for cell in cells)]))
    return "\n".join(lines) + "\n"


def with_speeds(text: str) -> str:
    """A document with the table of speeds between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{speeds()}\n{end}{after}"


def main(arguments: list[str]) -> int:
    """Write the documents, or check them."""
    wanted = {PAGE: page()} | {path: with_speeds(path.read_text()) for path in SUMMARIES}
    stale = {path: text for path, text in wanted.items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if "--check" in arguments:
            print(f"{path.name} is stale: run `python benchmarks/page.py`", file=sys.stderr)
        else:
            path.write_text(text)
            print(f"wrote {path.name}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
