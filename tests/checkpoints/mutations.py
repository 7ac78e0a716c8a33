"""Changes to a checkpoint that make it a mutant: each says what it did."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy
import small_folders
import small_gguf

_INDEX = "model.safetensors.index.json"


def _nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


VALUES = [
    *(None, True, False, 0, 1, 2, 3, -1, 7, 16, 32, 64, 128),
    *(10**5, 10**9, 10**30, 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "Linear", "lm_head", "\x1b[31m", "re:(a+)+$", "re:(", "*", "../x.safetensors", "/etc/passwd", "é" * 600),
    *("float16", "bfloat16", "float8_e4m3fn", "int8", "nn", "LlamaModel", "AutoModel", "pipeline", "bert", "qwen3"),
    *("tensor", "channel", "token", "group", "block", "tensor_group", "float", "int", "local", "dynamic", "dense"),
    *("PerRow", "PerTensor", "MXTensor", "NVFP4Tensor", "float4_e2m1fn_x2", "FLOOR", "fp4", "static", "gpt_oss"),
    *("FP8", "NVFP4", "MXFP8", "W4A16_NVFP4", "MIXED_PRECISION", "modelopt", "compressed-tensors", "fp8", "mxfp4"),
    *([], {}, [1], ["x"], [None], {"a": 1}, {"": ""}, [[128, 128]], [64, 64], _nested(500), ["re:(.*)*x"] * 3),
]
_ADDED = ["a.weight_scale", "lm_head.bias", small_folders.METADATA]
_ADDED_ENDS = [
    ".pre_quant_scale",
    ".input_scale",
    ".weight_scale_2",
    ".k_scale",
    ".scale",
    "_weight_scale",
    ".weight_scale",
]
"""Tensors that some format has."""
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
    return rng.choice(sorted([*folder.glob("*.safetensors"), *folder.glob("*.gguf")]))


def mutate_header(rng: random.Random, folder: Path) -> str:
    """Change what a header says about one tensor."""
    file = _any_file(rng, folder)
    header, data = small_folders.split_file(file.read_bytes())
    tensors = [name for name in header if name != small_folders.METADATA]
    name, other = rng.choice(tensors), rng.choice(tensors)
    about = header[name]
    kinds = ["rename", "drop", "exchange", "dtype", "shape", "offsets", "list", "value", "add", "twice"]
    kind = rng.choice([*kinds, *["metadata"] * (8 if small_folders.METADATA in header else 0)])
    if kind == "metadata":
        name = f"{kind} {_change_metadata(rng, header[small_folders.METADATA])}"
    elif kind == "rename":
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
        header[rng.choice([*_ADDED, *(name.rpartition(".")[0] + end for end in _ADDED_ENDS)])] = dict(about)
    text = json.dumps(header)
    if kind == "twice":
        text = f'{{"{name}": {json.dumps(header[other])}, {text[1:]}'
    file.write_bytes(len(text.encode()).to_bytes(8, "little") + text.encode() + data)
    return f"{file.name} {kind} {name[:80]}"


def _change_metadata(rng: random.Random, metadata: dict[str, str]) -> str:
    """Change the JSON that describes a tensor."""
    name = rng.choice(list(metadata))
    about = json.loads(metadata[name])
    told = change_value(rng, about)
    metadata[name] = rng.choice([json.dumps(about)] * 8 + ["", "[" * 5000])
    return f"{name} {told}"


def mutate_scales(rng: random.Random, folder: Path) -> str:
    """Change the bytes of one tensor, a small one most of the time: those are scales."""
    file = _any_file(rng, folder)
    header, data = small_folders.split_file(file.read_bytes())
    tensors = [name for name in header if name != small_folders.METADATA]
    names = [name for name in tensors if "scale" in name]
    name = rng.choice(names if names and rng.random() < 0.8 else tensors)
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


def mutate_tensor_info(rng: random.Random, folder: Path) -> str:
    """Change what a GGUF file says about one tensor."""
    reader = gguf.GGUFReader(folder / small_gguf.FILE, "r+")
    tensor, other = rng.choice(reader.tensors), rng.choice(reader.tensors)
    kind = rng.choice(["exchange", "name", "dims", "type", "offset", "length", "count"])
    length, name, count, dims, code, offset = tensor.field.parts
    if kind == "exchange":
        position = rng.choice([4, 5])
        mine, theirs = tensor.field.parts[position], other.field.parts[position]
        mine[0], theirs[0] = theirs[0], mine[0]
    elif kind == "name":
        name[rng.randrange(len(name))] = rng.randrange(256)
    elif kind == "dims":
        dims[rng.randrange(len(dims))] = rng.choice([0, 1, 32, 64, 128, int(dims[0]) * 2, 2**32, 2**63, 2**64 - 1])
    elif kind == "type":
        code[0] = rng.choice([0, 1, 2, 8, 24, 28, 30, 39, 40, 41, 2**31])
    elif kind == "offset":
        offset[0] = rng.choice([0, 1, 32, int(offset[0]) + 32, 2**40, 2**63, 2**64 - 32])
    else:
        part = length if kind == "length" else count
        part[0] = rng.choice([0, 1, 2, 3, 5, 2**20, 2**31])
    return f"{kind} of {tensor.name}"


def mutate_field(rng: random.Random, folder: Path) -> str:
    """Change a number or a letter of what a GGUF file says about itself."""
    reader = gguf.GGUFReader(folder / small_gguf.FILE, "r+")
    name, field = rng.choice(list(reader.fields.items()))
    part = rng.choice([part for part in field.parts if part.size])
    at = rng.randrange(part.size)
    part[at] = rng.choice([0, 1, 2, 9, 39, 255, int(numpy.iinfo(part.dtype).max)])
    return f"field {name}"


def mutate_blocks(rng: random.Random, folder: Path) -> str:
    """Change bytes of a tensor of a GGUF file."""
    reader = gguf.GGUFReader(folder / small_gguf.FILE, "r+")
    tensor = rng.choice(reader.tensors)
    raw = tensor.data.reshape(-1).view(numpy.uint8)
    at, width = rng.randrange(raw.size), rng.choice([1, 2, 4])
    new = rng.choice([0, 0x7E, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    raw[at : at + width] = new
    return f"{tensor.name} byte {at}: {new} x {width}"


Mutation = Callable[[random.Random, Path], str]
_OF_ANY: list[Mutation] = [*[mutate_config] * 4, mutate_bytes, mutate_text]
OF_SAFETENSORS = [*_OF_ANY, *[mutate_header] * 3, *[mutate_scales] * 3, mutate_files]
OF_GGUF = [*_OF_ANY, *[mutate_tensor_info] * 3, *[mutate_blocks] * 3, mutate_field]
