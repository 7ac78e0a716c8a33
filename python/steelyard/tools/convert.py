"""`steelyard convert`: quantize a checkpoint without loading the model."""

import argparse
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from steelyard.recipes import NAMES
from steelyard.tools.console import show

_FORMATS = ("compressed-tensors", "modelopt", "fp8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Quantize the linear layers of a checkpoint by a recipe, and write it in a format that other\nprograms read. "
        "Works file by file. A conversion that was interrupted goes on when the same\ncommand is given again."
    )
    parser.add_argument("source", metavar="IN", type=Path, help="a folder with config.json and plain safetensors files")
    parser.add_argument("folder", metavar="OUT", type=Path, help="the folder to write, which must not exist yet")
    parser.add_argument(
        "--recipe", required=True, help=f"{', '.join(NAMES)}, or weights/activations such as nvfp4/mxfp8 or nvfp4/none"
    )
    parser.add_argument(
        "--format", default=_FORMATS[0], choices=_FORMATS, help="what is written (default: %(default)s)"
    )
    parser.add_argument(
        "--ignore",
        action="append",
        metavar="PATTERN",
        help="layers that stay as they are, as in --ignore lm_head --ignore '*.0.*' (default: lm_head)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert, with a bar on a terminal."""
    from steelyard.checkpoints.conversion import DEFAULT_IGNORED, convert, total_size

    ignore = DEFAULT_IGNORED if arguments.ignore is None else arguments.ignore
    steps = convert(arguments.source, arguments.folder, arguments.recipe, format=arguments.format, ignore=ignore)
    for _ in _with_bar(steps, total_size(arguments.source)):
        pass
    before, after = total_size(arguments.source), total_size(arguments.folder)
    show(f"{arguments.folder}: {after / 1e6:.1f} MB, {after / before:.0%} of {before / 1e6:.1f} MB")
    return 0


def _with_bar(steps: Iterable[int], total: int) -> Iterator[int]:
    """The same steps, with a bar that shows how many bytes they are."""
    tqdm = importlib.import_module("tqdm").tqdm
    with tqdm(total=total, unit="B", unit_scale=True, disable=not sys.stderr.isatty()) as bar:
        for size in steps:
            bar.update(size)
            yield size
