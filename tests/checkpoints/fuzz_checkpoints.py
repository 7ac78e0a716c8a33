"""Loads mutants of small checkpoints: `python fuzz_checkpoints.py SEED COUNT` prints every bad answer.

A mutant must be refused with a `SteelyardError`, or load to what its files mean, bit for bit, and `survey` must look at
it without an error of its own. A worker that dies, or hangs, is itself the bad answer to the mutant that it was at.
"""

import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy
import small_folders
import torch
import transformers

from steelyard.checkpoints.catalog import read_catalog
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
_INDEX = "model.safetensors.index.json"


def _nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


VALUES = [
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        3,
        -1,
        7,
        16,
        32,
        64,
        128,
        10**5,
        10**9,
        10**30,
        0.5,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *("", "x", "Linear", "lm_head", "\x1b[31m", "re:(a+)+$", "re:(", "*", "../x.safetensors", "/etc/passwd", "é" * 600),
    *("float16", "bfloat16", "float8_e4m3fn", "int8", "nn", "LlamaModel", "AutoModel", "pipeline", "bert", "qwen3"),
    *("tensor", "channel", "token", "group", "block", "tensor_group", "float", "int", "local", "dynamic", "dense"),
    *("FP8", "NVFP4", "MXFP8", "W4A16_NVFP4", "MIXED_PRECISION", "modelopt", "compressed-tensors", "fp8", "mxfp4"),
    *([], {}, [1], ["x"], [None], {"a": 1}, {"": ""}, [[128, 128]], [64, 64], _nested(500), ["re:(.*)*x"] * 3),
]
DTYPES = [*small_folders.DTYPES, "F4", "F8_E5M2", "BOOL", "I32", "C64", "", "f32", 3, None]


def _places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The paths of all values within a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _places(value[key], (*path, key))


def _holder(value: Any, path: tuple) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def change_value(rng: random.Random, value: Any) -> str:
    """Set, delete, move or add one value within a JSON object."""
    path = rng.choice(list(_places(value)))
    holder, new = _holder(value, path), rng.choice(VALUES)
    kind = rng.choice(["set", "set", "set", "delete", "add", "near", "swap"])
    if kind == "delete":
        del holder[path[-1]]
    elif kind == "add" and isinstance(holder, dict):
        path = (
            *path[:-1],
            rng.choice(["auto_map", "attn_implementation", "num_labels", "x", "format", "dtype", "rope_scaling"]),
        )
        holder[path[-1]] = new
    elif kind == "near" and type(holder[path[-1]]) in (int, float):
        holder[path[-1]] += rng.choice([-1, 1, holder[path[-1]], 10**7])
        new = holder[path[-1]]
    elif kind == "swap":
        other = rng.choice(list(_places(value)))
        new = _holder(value, other)[other[-1]]
        holder[path[-1]] = json.loads(json.dumps(new))
    else:
        holder[path[-1]] = new
    return f"{kind} {path} {str(new)[:60]}"


def mutate_config(rng: random.Random, folder: Path) -> str:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    within = config.get("quantization_config")
    told = change_value(rng, within if within and rng.random() < 0.6 else config)
    file.write_text(json.dumps(config))
    return f"config {told}"


def mutate_text(rng: random.Random, folder: Path) -> str:
    """Change bytes of a JSON file."""
    file = rng.choice(sorted(folder.glob("*.json")))
    raw = bytearray(file.read_bytes())
    at = rng.randrange(len(raw))
    raw[at : at + rng.choice([0, 1, 5])] = rng.choice([b"", b"}", b"\0", b"9", b'"', b"[" * 5000, b"1e999", b"\xff"])
    file.write_bytes(raw)
    return f"{file.name} at {at}"


def _any_file(rng: random.Random, folder: Path) -> Path:
    return rng.choice(sorted(folder.glob("*.safetensors")))


def mutate_header(rng: random.Random, folder: Path) -> str:
    """Change what a header says about one tensor."""
    file = _any_file(rng, folder)
    header, data = small_folders.split_file(file.read_bytes())
    name, other = rng.choice(list(header)), rng.choice(list(header))
    about = header[name]
    kind = rng.choice(["rename", "drop", "exchange", "dtype", "shape", "offsets", "list", "value", "add", "twice"])
    if kind == "rename":
        new = rng.choice([name + "_2", name[:-1], name.replace("weight", "scale"), "\x1b[2J", "", other, "x" * 700])
        header[new] = header.pop(name)
    elif kind == "drop":
        del header[name]
    elif kind == "exchange":
        header[name], header[other] = header[other], header[name]
    elif kind == "dtype":
        about["dtype"] = rng.choice(DTYPES)
    elif kind == "shape":
        shape = about["shape"]
        about["shape"] = rng.choice(
            [
                shape[::-1],
                [1, *shape],
                [*shape, 1],
                [numpy.prod(shape, dtype=int).item()],
                [-1],
                [2**63, 2],
                shape * 2,
                [0],
            ]
        )
    elif kind == "offsets":
        begin, end = about["data_offsets"]
        about["data_offsets"] = rng.choice(
            [[begin + 1, end + 1], [end, begin], [begin, 2**62], [-1, end], [begin], header[other]["data_offsets"]]
        )
    elif kind == "list":
        header[name] = [about["dtype"], about["shape"], about["data_offsets"]]
    elif kind == "value":
        change_value(rng, header)
    elif kind == "add":
        header[rng.choice(["a.weight_scale", f"{name}_scale", "lm_head.bias", "__metadata__"])] = dict(about)
    text = json.dumps(header)
    if kind == "twice":
        text = f'{{"{name}": {json.dumps(header[other])}, {text[1:]}'
    file.write_bytes(len(text.encode()).to_bytes(8, "little") + text.encode() + data)
    return f"{file.name} {kind} {name[:80]}"


def mutate_scales(rng: random.Random, folder: Path) -> str:
    """Change the bytes of one tensor, a small one most of the time: those are scales."""
    file = _any_file(rng, folder)
    header, data = small_folders.split_file(file.read_bytes())
    names = [name for name in header if "scale" in name]
    name = rng.choice(names if names and rng.random() < 0.8 else list(header))
    begin, end = header[name]["data_offsets"]
    raw = bytearray(data)
    width = rng.choice([1, 2, 4, end - begin])
    at = rng.randrange(begin, end)
    new = rng.choice([b"\x00", b"\xff", b"\x7f", b"\x80", b"\x7e", bytes([rng.randrange(256)])]) * width
    raw[at : min(end, at + width)] = new[: min(end, at + width) - at]
    file.write_bytes(small_folders.with_header(header, bytes(raw)))
    return f"{file.name} {name} byte {at - begin}: {new[:4].hex()} x {width}"


def mutate_bytes(rng: random.Random, folder: Path) -> str:
    """Cut a file off, make it longer, or change a byte of its first hundreds."""
    file = _any_file(rng, folder)
    raw = bytearray(file.read_bytes())
    kind = rng.choice(["cut", "longer", "byte", "length", "empty"])
    at = rng.randrange(len(raw))
    if kind == "cut":
        raw = raw[:at]
    elif kind == "longer":
        raw += bytes(rng.choice([1, 1000]))
    elif kind == "byte":
        at = rng.randrange(min(len(raw), 600))
        raw[at] = rng.randrange(256)
    elif kind == "length":
        raw[:8] = rng.choice([0, 1, at, 2**40, 2**64 - 1]).to_bytes(8, "little")
    else:
        raw = bytearray()
    file.write_bytes(raw)
    return f"{file.name} {kind} {at}"


def mutate_files(rng: random.Random, folder: Path) -> str:
    """Change the index, or which files there are."""
    index = folder / _INDEX
    file = _any_file(rng, folder)
    kind = rng.choice(["index", "index", "index", "remove", "rename", "copy", "link", "folder", "pickle"])
    if kind == "index" and index.exists():
        value = json.loads(index.read_text())
        told = change_value(rng, value)
        index.write_text(json.dumps(value))
        return f"index {told}"
    if kind == "copy":
        shutil.copy(file, folder / "other.safetensors")
    elif kind == "rename":
        file.rename(folder / "other.safetensors")
    else:
        file.unlink()
    if kind == "link":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    elif kind == "pickle":
        (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    return f"{kind} {file.name}"


MUTATIONS: list[Callable[[random.Random, Path], str]] = [
    *[mutate_config] * 4,
    *[mutate_header] * 3,
    *[mutate_scales] * 3,
    mutate_bytes,
    mutate_text,
    mutate_files,
]


def make_mutant(seed: int, number: int, folder: Path) -> tuple[small_folders.Kind, str]:
    """Write a mutant; returns its format and what was changed."""
    rng = random.Random(f"{seed}.{number}")
    kind = small_folders.KINDS[number % len(small_folders.KINDS)]
    small_folders.write_folder(folder, kind)
    told = rng.choice(MUTATIONS)(rng, folder)
    return kind, f"{kind.name}: {told}"


def examine(kind: small_folders.Kind, folder: Path) -> tuple[str, str]:
    """What became of a mutant, and what is wrong with that; empty if nothing is."""
    survey_error = _survey(folder)
    try:
        catalog = read_catalog(folder)
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
    return LOADED, _difference(model, small_folders.expected_weights(kind, small_folders.read_folder(folder)))


def _survey(folder: Path) -> str:
    """What survey finds wrong that would keep a checkpoint from being loaded."""
    found = [problem.text for problem in survey(folder).problems]
    return next((text for text in found if "should be one number" not in text), "")


def _difference(model: Any, expected: small_folders.Tensors) -> str:
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
