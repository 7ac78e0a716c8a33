"""`steelyard tune`: quantize a plain checkpoint so that it loses little, and write it."""

import argparse
import json
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
    add("--costs", metavar="TARGET", help="cpu, sm_90a, sm_100a, or a file, for --speed (default: measured here)")
    add("--text", type=Path, metavar="FILE", help="text to calibrate by (default: Python's documentation)")
    add("--tokens", type=int, default=4096, metavar="N", help="how many of its tokens (default: 4096)")
    add("--length", type=int, default=256, metavar="N", help="tokens of a row (default: 256)")
    add("--formats", nargs="+", metavar="RECIPE", help="what to choose among (default: NVFP4, MXFP4, MXFP8 and others)")
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

    for name in ("tokens", "length"):
        if getattr(arguments, name) < 1:
            raise SteelyardError(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    folders.check_new(arguments.folder)
    batches = _batches(arguments)
    announce(f"loading {arguments.source}")
    model = _load(arguments.source)
    announce(f"tuning by {sum(batch.numel() for batch in batches)} tokens")
    work = arguments.work or arguments.folder.with_name(f"{arguments.folder.name}.unfinished")
    tuned, recipe = tuning.tune(
        model,
        batches,
        bits=arguments.bits,
        speed=arguments.speed,
        error=arguments.error,
        share=_share(arguments.share),
        formats=arguments.formats or tuning.FORMATS,
        sensitivity=arguments.sensitivity,
        options=None if arguments.fold is None else Options(fold=arguments.fold),
        costs=arguments.costs,
        folder=work,
        seed=arguments.seed,
    )
    show(tuning.table(recipe))
    saving.save(compile(tuned, recipe, weights="quantized"), arguments.folder, format=arguments.format)
    folders.copy_companions(arguments.source, arguments.folder)
    (arguments.folder / RECIPE_FILE).write_text(json.dumps(recipe.to_dict(), indent=1))
    show(_left(recipe.about["left"]))
    show(f"{arguments.folder}: written, with the recipe in {RECIPE_FILE}")
    if arguments.work is None:
        shutil.rmtree(work, ignore_errors=True)
    return 0


def _share(given: list[str] | None) -> dict[str, float] | None:
    """Parts of the multiplications by formats."""
    if given is None:
        return None
    try:
        return {name: float(part) for name, _, part in (each.rpartition("=") for each in given)}
    except ValueError as error:
        raise SteelyardError(f"--share must be like nvfp4-4over6=0.5, got {' '.join(given)}") from error


def _left(about: dict[str, float]) -> str:
    size = f"{about['numbers'] / 1e6:.1f} M numbers of {about['bits']:.0f} bits"
    return f"not counted: {size}, such as embeddings and norms"


def _batches(arguments: argparse.Namespace) -> list[Any]:
    """Rows of tokens of the text."""
    tokenizer = read_tokenizer(arguments.source)
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
