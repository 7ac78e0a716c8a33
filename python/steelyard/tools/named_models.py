"""Models that commands name by a function, and inputs that they spell by sizes."""

import argparse
import importlib
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError
from steelyard.targets import CPU

Inputs = tuple[list[Any], dict[str, Any]]
"""Arguments and keywords of a model."""
_INPUT = re.compile(r"(?:(?P<name>[^\W\d]\w*)=)?(?P<sizes>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which model is compiled, and how."""
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


def check_recipes(arguments: argparse.Namespace) -> None:
    """Refuse unknown recipes before the model is made, which may take long."""
    from steelyard import recipes

    for one in (arguments.recipe, *_read_overrides(arguments.override).values()):
        if one is not None:
            recipes.get(one)


def check_page(path: str) -> None:
    """Refuse a path that no page can be written to, before the model is made."""
    from steelyard.driver.reporting import check_page_path

    check_page_path(path)


def compile_model(arguments: argparse.Namespace, make: Callable[[], Any], target: str = CPU) -> tuple[Any, Any]:
    """The model that a factory makes, for inference, and a net of it."""
    import steelyard

    model = _make_model(arguments.factory, make).eval()
    overrides = _read_overrides(arguments.override)
    return model, steelyard.compile(model, arguments.recipe, target=target, overrides=overrides)


def lower(net: Any, model: Any, inputs: Inputs, texts: Sequence[str], *, training: bool) -> None:
    """Compile a net for inputs; where that fails, the model itself is asked what is wrong with them."""
    import torch

    positional, keywords = inputs

    refused = f"the model cannot be called with --input {' --input '.join(texts)}"
    # Where a call is wrong, torch logs the traceback of its own attempt to capture it.
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addFilter(_drop)
    try:
        with torch.set_grad_enabled(training):
            net.lower(*positional, **keywords)
    except Exception as error:
        # The model itself says what is wrong with its arguments more clearly than its capture does.
        with reported(refused), torch.no_grad():
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
def reported(what: str) -> Iterator[None]:
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
    """The model that a factory returns."""
    import torch

    with reported(f"{factory} failed"):
        model = make()
    if not isinstance(model, torch.nn.Module):
        raise SteelyardError(f"{factory} must return an nn.Module, got {type(model).__name__}")
    return model


def load_function(text: str) -> Callable[[], Any]:
    """The function that MODULE:FACTORY names."""
    module_name, _, name = text.partition(":")
    if not (module_name and name):
        raise SteelyardError(f"the model must be MODULE:FACTORY, as in mypackage.models:make_gpt, got '{text}'")
    # Like `python -m`, find modules in the current folder.
    sys.path.insert(0, str(Path.cwd()))
    with reported(f"cannot load {text}"):
        factory = getattr(importlib.import_module(module_name), name)
    if not callable(factory):
        raise SteelyardError(f"{text} must be a function that returns the model, got {type(factory).__name__}")
    return factory


def make_inputs(texts: Sequence[str], tokens: int = 1) -> Inputs:
    """The arguments and keywords that --input spells; whole numbers are drawn below `tokens`."""
    if not texts:
        raise SteelyardError("give each argument of the model, as in --input 2x16:int64")
    made = [_make_input(text, tokens) for text in texts]
    return [tensor for name, tensor in made if name is None], {
        name: tensor for name, tensor in made if name is not None
    }


def _make_input(text: str, tokens: int) -> tuple[str | None, Any]:
    """The argument's name, if it has one, and a tensor."""
    import torch

    match = _INPUT.fullmatch(text)
    dtype = getattr(torch, match["dtype"] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise SteelyardError(f"an input must be sizes and a torch dtype, as in 2x16:int64, got '{text}'")
    name, sizes = match["name"], [int(size) for size in match["sizes"].split("x")]
    with reported(f"--input {text} cannot be made"):
        if dtype.is_floating_point:
            return name, torch.randn(sizes).to(dtype)
        # A mask of zeros would hide every token.
        if "mask" in (name or ""):
            return name, torch.ones(sizes, dtype=dtype)
        # Token 0 is in every vocabulary.
        return name, torch.randint(0, tokens, sizes).to(dtype)


def _read_overrides(words: list[str]) -> dict[str, str | None]:
    """The overrides that PATTERN=RECIPE spell."""
    overrides = {}
    for word in words:
        pattern, equals, recipe = word.partition("=")
        if not equals:
            raise SteelyardError(f"an override must be PATTERN=RECIPE, got '{word}'")
        overrides[pattern] = None if recipe == "none" else recipe
    return overrides
