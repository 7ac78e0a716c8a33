"""`steelyard inspect`: compile a model from the shell and show its explanation or its IR."""

import argparse
import importlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError
from steelyard.files import write_folder
from steelyard.tools.console import show

_INPUT = re.compile(r"(?:(?P<name>[^\W\d]\w*)=)?(?P<sizes>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")
_EXAMPLES = """examples:
  steelyard inspect mypackage.models:make_gpt --input 2x16:int64
  steelyard inspect mypackage.models:make_bert --recipe nvfp4 --input 2x16:int64 --input attention_mask=2x16:int64
  steelyard inspect mypackage.models:make_mlp --input 8x512:bfloat16 --override '0=none' --stage quantized
  steelyard inspect mypackage.models:make_gpt --input 2x16:int64 --dump-ir out --json
  steelyard inspect mypackage.models:make_gpt --input 2x16:int64 --target cuda:sm_100a --stage ptx
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Compile a model for inputs of these sizes, and show what became of its GEMMs, or the IR."
    parser.epilog = f"{_EXAMPLES}\n{parser.epilog}"
    add = parser.add_argument
    add("factory", metavar="MODULE:FACTORY", help="a function without arguments that returns the nn.Module")
    add("--recipe", default="mxfp8", help="a recipe's name (default: mxfp8)")
    add(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]SIZES[:DTYPE]",
        help="an argument of the model, once for each: 2x16:int64, 8x512 (float32), attention_mask=2x16:int64",
    )
    add("--override", action="append", default=[], metavar="PATTERN=RECIPE", help="head=none, blocks.0.*=nvfp4")
    add("--target", default="cpu", help="cpu, or a CUDA architecture, as in cuda:sm_90a (default: cpu)")
    add("--training", action="store_true", help="compile the backward too")
    add(
        "--stage",
        metavar="STAGE",
        help="print the IR of a stage: traced, raised, quantized, ..., lowered; of CUDA also gpu, nvvm, ptx",
    )
    add("--explain", action="store_true", help="print one row per GEMM (the default)")
    add("--layer", metavar="PATTERN", help="print only the ops of these layers of the stage, for example blocks.0.*")
    add("--json", action="store_true", help="print the rows as JSON")
    add("--dump-ir", metavar="DIR", help="write the IR into numbered files of this folder")


def run(arguments: argparse.Namespace) -> int:
    """Compile and show; raises `SteelyardError` for what the user can fix."""
    net = _compile(arguments)
    _show(net, arguments)
    return 0


def _compile(arguments: argparse.Namespace) -> Any:
    import steelyard

    overrides = _overrides(arguments.override)
    _check_options(arguments, overrides)
    make = _load_factory(arguments.factory)
    if not arguments.input:
        raise SteelyardError("give each argument of the model, as in --input 2x16:int64")
    inputs = [_make_input(text) for text in arguments.input]
    model = _make_model(arguments.factory, make).eval()
    net = steelyard.compile(model, arguments.recipe, target=arguments.target, overrides=overrides)
    positional = [tensor for name, tensor in inputs if name is None]
    keywords = {name: tensor for name, tensor in inputs if name is not None}
    _lower(net, model, positional, keywords, arguments)
    return net


def _check_options(arguments: argparse.Namespace, overrides: dict[str, str | None]) -> None:
    """Refuse wrong options before the model is made, which may take long."""
    from steelyard import recipes
    from steelyard.driver.compilation import all_stages
    from steelyard.targets import check_target

    check_target(arguments.target)
    for recipe in (arguments.recipe, *overrides.values()):
        if recipe is not None:
            recipes.get(recipe)
    stages = all_stages(arguments.target)
    if arguments.stage and arguments.stage not in stages:
        raise SteelyardError(f"stage must be one of {', '.join(stages)}, got {arguments.stage!r}")
    if arguments.layer is not None and not arguments.stage:
        raise SteelyardError("--layer needs a stage to show, as in --stage quantized")
    if arguments.dump_ir is not None:
        if not arguments.dump_ir:
            raise SteelyardError("--dump-ir needs the name of a folder, as in --dump-ir out")
        write_folder(Path(arguments.dump_ir), {})


def _lower(net: Any, model: Any, positional: list, keywords: dict, arguments: argparse.Namespace) -> None:
    import torch

    refused = f"the model cannot be called with --input {' --input '.join(arguments.input)}"
    # Where a call is wrong, torch logs the traceback of its own attempt to capture it.
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addFilter(_drop)
    try:
        with torch.set_grad_enabled(arguments.training):
            net.lower(*positional, **keywords)
    except Exception as error:
        # The model itself says what is wrong with its arguments more clearly than its capture does.
        with _reported(refused), torch.no_grad():
            _call_by_layers(model, positional, keywords)
        if isinstance(error, SteelyardError):
            raise
        raise SteelyardError(f"the model cannot be compiled: {_in_one_line(error)}") from error
    finally:
        logger.removeFilter(_drop)


def _drop(_: logging.LogRecord) -> bool:
    return False


def _call_by_layers(model: Any, positional: list, keywords: dict) -> None:
    """Call the model; an error names the layer that it comes from."""
    running: list[str] = []

    def leave(*_) -> None:
        running.pop()

    hooks = []
    for name, module in model.named_modules():
        place = f"layer {name} ({type(module).__name__})" if name else ""
        hooks.append(module.register_forward_pre_hook(lambda *_, place=place: running.append(place)))
        hooks.append(module.register_forward_hook(leave))
    try:
        model(*positional, **keywords)
    except Exception as error:
        place = running[-1] if running else ""
        raise SteelyardError(f"{place}{': ' if place else ''}{_in_one_line(error)}") from error
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Report errors of the user's code in one line."""
    try:
        yield
    except SteelyardError as error:
        raise SteelyardError(f"{what}: {error}") from error
    except Exception as error:
        raise SteelyardError(f"{what}: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _make_model(factory: str, make: Callable[[], Any]) -> Any:
    import torch

    with _reported(f"{factory} failed"):
        model = make()
    if not isinstance(model, torch.nn.Module):
        raise SteelyardError(f"{factory} must return an nn.Module, got {type(model).__name__}")
    return model


def _show(net: Any, arguments: argparse.Namespace) -> None:
    if arguments.dump_ir:
        for path in net.ir_dump(arguments.dump_ir):
            show(str(path))
    if arguments.stage:
        show(net.ir(arguments.stage, arguments.layer))
    if arguments.json:
        show(net.explain().to_json())
    if arguments.explain or not (arguments.dump_ir or arguments.stage or arguments.json):
        show(str(net.explain()))


def _load_factory(text: str) -> Callable[[], Any]:
    module_name, _, name = text.partition(":")
    if not (module_name and name):
        raise SteelyardError(f"the model must be MODULE:FACTORY, as in mypackage.models:make_gpt, got '{text}'")
    # Like `python -m`, find modules in the current folder.
    sys.path.insert(0, str(Path.cwd()))
    with _reported(f"cannot load {text}"):
        factory = getattr(importlib.import_module(module_name), name)
    if not callable(factory):
        raise SteelyardError(f"{text} must be a function that returns the model, got {type(factory).__name__}")
    return factory


def _make_input(text: str) -> tuple[str | None, Any]:
    """The argument's name, if it has one, and a tensor."""
    import torch

    match = _INPUT.fullmatch(text)
    dtype = getattr(torch, match["dtype"] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise SteelyardError(f"an input must be sizes and a torch dtype, as in 2x16:int64, got '{text}'")
    name, sizes = match["name"], [int(size) for size in match["sizes"].split("x")]
    with _reported(f"--input {text} cannot be made"):
        if dtype.is_floating_point:
            return name, torch.randn(sizes).to(dtype)
        # Token 0 is in every vocabulary; a mask of zeros would hide every token.
        return name, torch.full(sizes, "mask" in (name or ""), dtype=dtype)


def _overrides(words: list[str]) -> dict[str, str | None]:
    overrides = {}
    for word in words:
        pattern, equals, recipe = word.partition("=")
        if not equals:
            raise SteelyardError(f"an override must be PATTERN=RECIPE, got '{word}'")
        overrides[pattern] = None if recipe == "none" else recipe
    return overrides
