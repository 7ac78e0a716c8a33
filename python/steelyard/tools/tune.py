"""`steelyard tune`: quantize a plain checkpoint so that it loses little, and write it."""

import argparse
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

from steelyard.errors import CheckpointError, FileError, SteelyardError
from steelyard.files import failure
from steelyard.tools.console import announce, show
from steelyard.tools.generate import read_tokenizer

RECIPE_FILE = "steelyard_recipe.json"
_ROWS = 4
"""Rows of tokens in a batch."""
_FORMATS = ("steelyard", "compressed-tensors", "modelopt")
_TARGETS = "cpu, cpu-avx2, cpu-avx512, sm_90a, sm_100a"
_DEFAULT = "(default: of NVFP4, MXFP4, MXFP8 and others, what --format holds)"
_NONE = "none"
_LONG = 1 << 40
_MARK = ".steelyard-tune"
"""A file in folders of unfinished work that the command made, and may remove."""
Formats = dict[str, Any]
"""Recipes by their names, None for high precision."""
_EXAMPLES = """examples:
  steelyard tune SmolLM2-135M out --bits 5
  steelyard tune SmolLM2-135M out --bits 4.5 --formats nvfp4-4over6/none --format compressed-tensors
  steelyard tune SmolLM2-135M out --speed 1.3 --text novel.txt --tokens 8192
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Choose a format for each layer of a plain checkpoint, round its weights so that they make up for\nthe error, "
        "and write the result. The same command goes on where it was interrupted."
    )
    parser.epilog = f"{_EXAMPLES}\n{parser.epilog}"
    add = parser.add_argument
    add("source", metavar="FOLDER", type=Path, help="a folder with config.json, plain safetensors and a tokenizer")
    add("folder", metavar="OUT", type=Path, help="the folder to write, which must not exist yet")
    add("--bits", type=float, help="the most bits per weight, on average, as in 5")
    add("--speed", type=float, help="the least speed against float32 by this machine's kernels, as in 1.4")
    add("--error", type=float, help="the largest KL divergence of the logits, as in 0.02")
    add("--share", action="append", metavar="RECIPE=PART", help="the least part of multiplications in a format")
    add("--costs", metavar="TARGET", help=f"{_TARGETS}, or a file, for --speed (default: measured here)")
    add("--text", type=Path, metavar="FILE", help="text to calibrate by (default: Python's documentation)")
    add("--tokens", type=int, default=4096, metavar="N", help="how many of its tokens (default: 4096)")
    add("--length", type=int, default=256, metavar="N", help="tokens of a row (default: 256)")
    add("--formats", nargs="+", metavar="RECIPE", help=f"what to choose among {_DEFAULT}")
    add("--sensitivity", choices=("gradient", "kl"), default="gradient", help="how layers are compared")
    add("--format", choices=_FORMATS, default=_FORMATS[0], help="what is written (default: %(default)s)")
    add("--fold", action=argparse.BooleanOptionalAction, help="fold factors of inputs into the layers before")
    add("--work", type=Path, metavar="FOLDER", help="where finished layers are kept (default: OUT.unfinished)")
    add("--seed", type=int, default=0, help="of all random numbers (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Tune, and write; raises `SteelyardError` for what the user can fix."""
    from steelyard.checkpoints import folders, saving
    from steelyard.driver.net import compile
    from steelyard.tuning import tune as tuning
    from steelyard.tuning.gptq import Options

    # All that can be refused is refused before anything takes long.
    _check_numbers(arguments)
    formats = _formats(arguments)
    share = _share(arguments.share, formats)
    _check_goals(arguments, share, formats)
    folder, work = _folders(arguments)
    batches = _batches(arguments)
    announce(f"loading {arguments.source}")
    model = _load(arguments.source)
    announce(f"tuning by {sum(batch.numel() for batch in batches)} tokens")
    if arguments.work is None:
        _mark(work)
    tuned, recipe = tuning.tune(
        model,
        batches,
        bits=arguments.bits,
        speed=arguments.speed,
        error=arguments.error,
        share=share,
        formats=list(formats),
        sensitivity=arguments.sensitivity,
        options=None if arguments.fold is None else Options(fold=arguments.fold),
        costs=arguments.costs,
        folder=work,
        seed=arguments.seed,
    )
    show(tuning.table(recipe))
    saving.save(compile(tuned, recipe, weights="quantized"), folder, format=arguments.format)
    folders.copy_companions(arguments.source, folder)
    (folder / RECIPE_FILE).write_text(json.dumps(recipe.to_dict(), indent=1))
    show(_left(recipe.about["left"]))
    show(f"{folder}: written, with the recipe in {RECIPE_FILE}")
    if arguments.work is None:
        _remove(work)
    return 0


def _check_numbers(arguments: argparse.Namespace) -> None:
    for name in ("tokens", "length"):
        if getattr(arguments, name) < 1:
            raise SteelyardError(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    for name in ("bits", "speed", "error"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < math.inf:
            raise SteelyardError(f"--{name} must be a positive number, got {value}")


def _formats(arguments: argparse.Namespace) -> Formats:
    """What there is to choose among, by names, all of which can be written; None is high precision."""
    from steelyard.tuning import tune as tuning

    names = arguments.formats or tuning.FORMATS
    found = {name: _recipe(name) for name in names}
    held = {name: recipe for name, recipe in found.items() if _is_held(arguments.format, recipe)}
    if arguments.formats and len(held) < len(found):
        others = ", ".join(name for name in found if name not in held)
        known = " ".join(name for name in tuning.FORMATS if _is_held(arguments.format, _recipe(name)))
        raise CheckpointError(
            f"--format {arguments.format} must hold all of --formats, and cannot hold {others}; leave them out, choose "
            f"among {known}, or write another format"
        )
    return held


def _recipe(name: str) -> Any:
    from steelyard import recipes

    return None if name == _NONE else recipes.get(name).settled(trains=False)


def _is_held(format: str, recipe: Any) -> bool:
    """Whether a format of files can say what a recipe makes of a layer."""
    from steelyard.checkpoints.layer_formats import format_of
    from steelyard.checkpoints.saving import WRITERS

    if recipe is None or format not in WRITERS:
        return True
    layer = format_of("layer", "layer", recipe)
    try:
        WRITERS[format].stored_scheme(layer)
    except CheckpointError:
        return False
    return True


def _share(given: list[str] | None, formats: Formats) -> dict[str, float] | None:
    """Parts of the multiplications by formats."""
    if given is None:
        return None
    try:
        found = {name: float(part) for name, _, part in (each.rpartition("=") for each in given)}
    except ValueError as error:
        raise SteelyardError(f"--share must be like nvfp4-4over6=0.5, got {' '.join(given)}") from error
    unknown = [name for name in found if name not in formats]
    if unknown:
        raise SteelyardError(
            f"--share must name some of --formats, {', '.join(formats)}, got {', '.join(map(repr, unknown))}"
        )
    if not all(0 < part <= 1 for part in found.values()) or sum(found.values()) > 1:
        raise SteelyardError(f"--share must have parts above 0 and at most 1 in all, got {' '.join(given)}")
    return found


def _check_goals(arguments: argparse.Namespace, share: dict[str, float] | None, formats: Formats) -> None:
    """Refuse goals and costs that no model can meet."""
    import torch

    from steelyard.tuning import costs
    from steelyard.tuning.grids import weight_bits

    if arguments.bits is arguments.speed is arguments.error is share is None:
        raise SteelyardError("a goal must be given, and none was: --bits 5, --speed 1.4, --error 0.02, or several")
    # Of such a long row, the scales that are one per row have no bits to speak of.
    least = min(weight_bits(recipe, (1, _LONG), torch.float32) / _LONG for recipe in formats.values())
    if arguments.bits is not None and arguments.bits < least:
        raise SteelyardError(
            f"--bits must be at least {least:.4g} with the formats {', '.join(formats)}, got {arguments.bits}"
        )
    if arguments.costs is not None:
        costs.resolve(arguments.costs, [], formats)


def _folders(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """The folder to write, and that of unfinished work; neither holds anything that is not this command's."""
    from steelyard.checkpoints import folders

    folder = arguments.folder
    if not folder.name:
        raise FileError(f"OUT must be a new folder with a name of its own, got '{folder}'; give one, such as tuned")
    folders.check_new(folder)
    work = arguments.work or folder.with_name(f"{folder.name}.unfinished")
    if work.exists() and not work.is_dir():
        raise FileError(f"'{work}', where finished layers are kept, must be a folder, and is none; choose --work")
    if arguments.work is None and work.exists() and any(work.iterdir()) and not (work / _MARK).is_file():
        raise FileError(
            f"'{work}', where finished layers are kept, must be made by this command, and holds other things, such as "
            f"{min(each.name for each in work.iterdir())}; move it, or choose another folder by --work"
        )
    return folder, work


def _mark(work: Path) -> None:
    """Make the folder of unfinished work, and note in it that it is the command's own."""
    work.mkdir(parents=True, exist_ok=True)
    (work / _MARK).write_text("steelyard tune keeps finished layers here until its checkpoint is written\n")


def _remove(work: Path) -> None:
    """Remove what `steelyard.tune` has made in a folder, and the folder if nothing else is in it."""
    from steelyard.tuning.finished_work import NAME

    for each in work.iterdir():
        if each.is_dir() and not each.is_symlink() and re.fullmatch(NAME, each.name):
            shutil.rmtree(each, ignore_errors=True)
    (work / _MARK).unlink(missing_ok=True)
    try:
        work.rmdir()
    except OSError:
        show(f"{work}: kept, for it holds other things")


def _left(about: dict[str, float]) -> str:
    size = f"{about['numbers'] / 1e6:.1f} M numbers of {about['bits']:.0f} bits"
    return f"not counted: {size}, such as embeddings and norms"


def _batches(arguments: argparse.Namespace) -> list[Any]:
    """Rows of tokens of the text."""
    tokenizer = read_tokenizer(arguments.source, "the text for calibration")
    tokens = tokenizer(_text(arguments.text), return_tensors="pt").input_ids[0][: arguments.tokens]
    rows = len(tokens) // arguments.length
    if not rows:
        raise FileError(
            f"the text must have at least --length {arguments.length} tokens, got {len(tokens)}; give a longer text or "
            "shorter rows"
        )
    return list(tokens[: rows * arguments.length].reshape(rows, arguments.length).split(_ROWS))


def _text(file: Path | None) -> str:
    if file is None:
        import pydoc_data.topics

        return "\n\n".join(pydoc_data.topics.topics.values())
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise failure(f"cannot read '{file}'", error) from error
    except UnicodeDecodeError as error:
        raise FileError(f"'{file}' must be text in UTF-8: {error}; convert it") from error


def _load(folder: Path) -> Any:
    """The model of a plain checkpoint, in float32."""
    import torch

    from steelyard.checkpoints.gguf_catalog import open_catalog
    from steelyard.checkpoints.loading import load_model
    from steelyard.checkpoints.methods.choice import read_plan

    catalog = open_catalog(folder)
    plan = read_plan(catalog)
    if plan.weights:
        raise CheckpointError(f"the weights in '{folder}' must be plain, and are quantized already; fetch those")
    return load_model(catalog, plan, torch.float32)
