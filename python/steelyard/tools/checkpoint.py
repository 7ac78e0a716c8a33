"""`steelyard checkpoint`: what is in the folder of a checkpoint, and what is wrong with it."""

import argparse
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from steelyard.tools.console import show
from steelyard.tools.sizes import size_text

if TYPE_CHECKING:
    from steelyard.checkpoints.survey import Survey, SurveyedLayer

WRONG = 1
_EXAMPLES = """examples:
  steelyard checkpoint Llama-3.1-8B-NVFP4
  steelyard checkpoint Llama-3.1-8B-NVFP4 --all
  steelyard checkpoint Llama-3.1-8B-NVFP4 --json
"""


class _Row(NamedTuple):
    """Layers that are alike."""

    layers: str
    count: int
    weights: str
    inputs: str
    shape: tuple[int, ...]
    bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Show which layers of a checkpoint are quantized, and how, and what is wrong with it. Headers and scales are\n"
        "read; no weights are, and no code in the folder is run."
    )
    parser.epilog = f"{_EXAMPLES}\n{parser.epilog}"
    parser.add_argument(
        "folder", metavar="FOLDER", help="a folder with config.json, and safetensors files or a GGUF file"
    )
    parser.add_argument("--all", action="store_true", help="one row per layer, not per group of layers that are alike")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show a checkpoint; the exit code says whether something is wrong with it."""
    from steelyard.checkpoints.survey import survey

    found = survey(arguments.folder)
    rows = _rows(found.layers, folds=not arguments.all)
    show(json.dumps(_data(found, rows), indent=1) if arguments.json else _text(found, rows))
    return WRONG if found.problems else 0


def _rows(layers: "list[SurveyedLayer]", *, folds: bool) -> list[_Row]:
    from steelyard.checkpoints.patterns import folded

    groups: dict[tuple, list[SurveyedLayer]] = {}
    for each in layers:
        name = folded(each.layer) if folds else each.layer
        groups.setdefault((name, each.weights, each.inputs, each.shape), []).append(each)
    return [
        _Row(name, len(group), weights, inputs, shape, sum(each.size for each in group))
        for (name, weights, inputs, shape), group in groups.items()
    ]


def _text(found: "Survey", rows: list[_Row]) -> str:
    from steelyard.insight.table import format_table

    heads = ["layers", "count", "weights", "inputs", "shape", "bytes"]
    cells = [
        [row.layers, str(row.count), row.weights, row.inputs or "plain", _shape(row.shape), size_text(row.bytes)]
        for row in rows
    ]
    lines = [f"{found.folder.name}: {found.method or 'unknown'}", ""]
    lines += [*format_table(heads, cells), ""] if rows else []
    lines += [_totals(found)]
    lines += [f"wrong: {problem.place}: {problem.text}" for problem in found.problems]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def _totals(found: "Survey") -> str:
    lines = []
    if found.layers:
        size = size_text(sum(layer.size for layer in found.layers))
        lines.append(
            f"quantized  {len(found.layers)} weights, {size}, {found.bits_per_weight:.2f} bits per weight on average"
        )
    for dtype, (count, size) in found.plain.items():
        lines.append(f"plain      {count} tensors in {dtype}, {size_text(size)}")
    if found.kept[0]:
        lines.append(f"others     {found.kept[0]} scales of inputs and caches, {size_text(found.kept[1])}")
    return "\n".join([*lines, f"in all     {size_text(found.size)}"])


def _data(found: "Survey", rows: list[_Row]) -> dict[str, Any]:
    return {
        "folder": str(found.folder),
        "method": found.method,
        "layers": [row._asdict() for row in rows],
        "plain": {dtype: {"count": count, "bytes": size} for dtype, (count, size) in found.plain.items()},
        "others": {"count": found.kept[0], "bytes": found.kept[1]},
        "bytes": found.size,
        "bits_per_weight": found.bits_per_weight,
        "problems": [problem._asdict() for problem in found.problems],
        "notes": found.notes,
    }


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
