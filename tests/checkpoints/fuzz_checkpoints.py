"""Loads mutants of small checkpoints: `python fuzz_checkpoints.py SEED COUNT` prints every bad answer.

A mutant must be refused with a `SteelyardError`, or load to what its files mean, bit for bit, and `survey` must look at
it without an error of its own. A worker that dies, or hangs, is itself the bad answer to the mutant that it was at.
"""

import multiprocessing
import os
import random
import resource
import sys
import tempfile
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import mutations
import numpy
import small_folders
import small_formats
import small_gguf
import torch
import transformers

from steelyard.checkpoints.gguf_catalog import open_catalog
from steelyard.checkpoints.layers import inputs_of_model, make_overrides
from steelyard.checkpoints.loading import load_model, record_of
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.checkpoints.survey import survey
from steelyard.errors import SteelyardError
from steelyard.tensor.quantized_tensor import QuantizedTensor

SECONDS = 60
"""A mutant that takes longer hangs: most take a twentieth of a second, and a hostile pattern may take a few."""
MEMORY = 12 * 2**30
"""Bytes of address space of a worker: a mutant that would exhaust memory fails instead."""
REFUSED, LOADED = "refused", "loaded"
KINDS = [*small_folders.KINDS, *small_gguf.KINDS]
Kind = small_formats.Kind | small_gguf.Kind


def make_mutant(seed: int, number: int, folder: Path) -> tuple[Kind, str]:
    """Write a mutant; returns its format and what was changed."""
    rng = random.Random(f"{seed}.{number}")
    kind = KINDS[number % len(KINDS)]
    if isinstance(kind, small_gguf.Kind):
        small_gguf.write_folder(folder, kind)
        told = rng.choice(mutations.OF_GGUF)(rng, folder)
    else:
        small_folders.write_folder(folder, kind)
        told = rng.choice(mutations.OF_SAFETENSORS)(rng, folder)
    return kind, f"{kind.name}: {told}"


def expected_in(kind: Kind, folder: Path) -> small_formats.Tensors:
    """The parameters that the files of a folder mean."""
    if isinstance(kind, small_gguf.Kind):
        return small_gguf.expected_in(kind, folder)
    return small_folders.expected_weights(kind, small_folders.read_folder(folder))


def examine(kind: Kind, folder: Path) -> tuple[str, str]:
    """What became of a mutant, and what is wrong with that; empty if nothing is."""
    survey_error = _survey(folder)
    try:
        catalog = open_catalog(folder)
        plan = read_plan(catalog)
        model = load_model(catalog, plan)
        record = record_of(model)
        assert record is not None
        if plan.weights:
            make_overrides(inputs_of_model(record.targets, plan), None)
    except SteelyardError as error:
        text = str(error)
        return REFUSED, "" if text.isprintable() and len(text) < 2000 else f"refused by {text!r}"
    if survey_error:
        return LOADED, f"it loads, but survey says {survey_error}"
    return LOADED, _difference(model, expected_in(kind, folder))


def _survey(folder: Path) -> str:
    """What survey finds wrong that would keep a checkpoint from being loaded."""
    found = [problem.text for problem in survey(folder).problems]
    return next((text for text in found if "should be one number" not in text), "")


def _difference(model: Any, expected: small_formats.Tensors) -> str:
    for name, parameter in model.named_parameters():
        found = parameter.dequantize() if isinstance(parameter, QuantizedTensor) else parameter.detach()
        wanted = torch.from_numpy(numpy.array(expected[name], numpy.float32)).to(found.dtype)
        if not torch.equal(found.nan_to_num(12345.0), wanted.nan_to_num(12345.0)):
            return f"{name} differs"
    return ""


def _work(seed: int, numbers: list[int], answers: Connection) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for number in numbers:
        with tempfile.TemporaryDirectory() as root:
            kind, told = make_mutant(seed, number, Path(root, "mutant"))
            answers.send(("", told))
            try:
                became, wrong = examine(kind, Path(root, "mutant"))
            except BaseException as error:
                became, wrong = "", f"{type(error).__name__}: {error}"
            answers.send((became, wrong[:1000]))


def check_mutants(seed: int, count: int) -> int:
    """Load every mutant of a seed; returns how many answers were bad."""
    numbers, became, bad = list(range(count)), Counter[str](), 0
    while numbers:
        receiving, sending = multiprocessing.Pipe(duplex=False)
        worker = multiprocessing.get_context("fork").Process(target=_work, args=(seed, numbers, sending))
        worker.start()
        sending.close()
        told, wrong = "the worker", ""
        try:
            while numbers and not wrong:
                # The first answer says what was changed, so that it is known if there is no second one.
                _, told = receiving.recv()
                wrong = "" if receiving.poll(SECONDS) else f"did not finish in {SECONDS} s"
                answer, wrong = ("", wrong) if wrong else receiving.recv()
                became[answer] += 1
                numbers = numbers[1:]
        except EOFError:
            wrong, numbers = "died", numbers[1:]
        worker.kill()
        worker.join()
        if wrong:
            bad += 1
            print(f"seed {seed} number {count - len(numbers) - 1}: {told}\n  {wrong}", file=sys.stderr)
    # Mutants that load test the values, others the errors: both must be there.
    if became[LOADED] < count / 10 or became[REFUSED] < count / 3:
        sys.exit(f"too few mutants load, or too few are refused: {dict(became)}")
    print(f"{count} mutants: {dict(became)}")
    return bad


if __name__ == "__main__":
    sys.exit(1 if check_mutants(int(sys.argv[1]), int(sys.argv[2])) else 0)
