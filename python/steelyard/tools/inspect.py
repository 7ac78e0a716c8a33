"""`steelyard inspect`: compile a model from the shell and show its explanation or its IR."""

import argparse
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError

_INPUT = re.compile(r"(?P<sizes>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    add("factory", metavar="MODULE:FACTORY", help="a function without arguments that returns the nn.Module")
    add("--recipe", default="mxfp8", help="a recipe's name (default: mxfp8)")
    add("--input", action="append", default=[], metavar="SIZES[:DTYPE]", help="2x16:int64; once an argument")
    add("--override", action="append", default=[], metavar="PATTERN=RECIPE", help="head=none, blocks.0.*=nvfp4")
    add("--stage", metavar="STAGE", help="print the IR of a stage: traced, raised, quantized, fused or lowered")
    add("--explain", action="store_true", help="print a row a GEMM (the default)")
    add("--json", action="store_true", help="print the rows as JSON")
    add("--dump-ir", metavar="DIR", help="write every stage into files of this folder")


def run(arguments: argparse.Namespace) -> int:
    """Compile and show; 1 for an error that the user can mend."""
    try:
        net = _compile(arguments)
        _show(net, arguments)
    except SteelyardError as error:
        print(f"steelyard inspect: error: {error}", file=sys.stderr)
        return 1
    return 0


def _compile(arguments: argparse.Namespace) -> Any:
    import torch

    import steelyard

    model = _load_factory(arguments.factory)()
    if not isinstance(model, torch.nn.Module):
        raise SteelyardError(f"{arguments.factory} must return an nn.Module, got {type(model).__name__}")
    net = steelyard.compile(model.eval(), arguments.recipe, overrides=_overrides(arguments.override))
    if not arguments.input:
        raise SteelyardError("give each argument of the model, as in --input 2x16:int64")
    return net.lower(*(_make_input(text) for text in arguments.input))


def _show(net: Any, arguments: argparse.Namespace) -> None:
    if arguments.dump_ir:
        for path in net.ir_dump(arguments.dump_ir):
            print(path)
    if arguments.stage:
        print(net.ir(arguments.stage))
    if arguments.json:
        print(net.explain().to_json())
    if arguments.explain or not (arguments.dump_ir or arguments.stage or arguments.json):
        print(net.explain())


def _load_factory(text: str) -> Callable[[], Any]:
    module_name, colon, name = text.partition(":")
    if not colon:
        raise SteelyardError(f"the model must be MODULE:FACTORY, as in mypackage.models:make_gpt, got '{text}'")
    # A command finds modules of the folder it is started in, as `python -m` does.
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise SteelyardError(f"cannot load {text}: {error}") from None


def _make_input(text: str) -> Any:
    import torch

    match = _INPUT.fullmatch(text)
    dtype = getattr(torch, match["dtype"] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise SteelyardError(f"an input must be sizes and a torch dtype, as in 2x16:int64, got '{text}'")
    sizes = [int(size) for size in match["sizes"].split("x")]
    return torch.randn(sizes).to(dtype) if dtype.is_floating_point else torch.zeros(sizes, dtype=dtype)


def _overrides(words: list[str]) -> dict[str, str | None]:
    overrides = {}
    for word in words:
        pattern, equals, recipe = word.partition("=")
        if not equals:
            raise SteelyardError(f"an override must be PATTERN=RECIPE, got '{word}'")
        overrides[pattern] = None if recipe == "none" else recipe
    return overrides
