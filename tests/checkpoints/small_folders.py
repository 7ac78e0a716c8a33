"""Small checkpoints of every format, written by hand, and what they mean.

Nothing here calls Steelyard: the rules are those of the producers.
"""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy
import small_dense
import small_experts
import small_torchao
from small_formats import Kind, Tensors, bf16

DTYPES: dict[str, Any] = {
    "U8": numpy.uint8,
    "I8": numpy.int8,
    "I64": numpy.int64,
    "F32": numpy.float32,
    "F16": numpy.float16,
    "F64": numpy.float64,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}
SPELLINGS = {numpy.dtype(dtype): name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
KINDS = [*small_dense.KINDS, *small_experts.KINDS, *small_torchao.KINDS]


def tensors_of(kind: Kind, seed: int = 0) -> Tensors:
    """All tensors of a small model."""
    rng = numpy.random.default_rng(seed)
    found: Tensors = {name: bf16(rng.normal(size=shape)) for name, shape in kind.model.plain.items()}
    for layer, shape in kind.model.layers.items():
        found |= {f"{layer}.{end}": each for end, each in kind.write(rng, *shape).items()}
    for name, shape in kind.model.stacks.items():
        assert kind.stack is not None
        found |= {f"{name}{end}": each for end, each in kind.stack[0](rng, *shape).items()}
    return found


def decoded_weights(kind: Kind, tensors: Tensors) -> Tensors:
    """What the tensors of a folder mean, each weight under the name that it has if it is not quantized."""
    model, found = kind.model, dict(tensors)

    def take(prefix: str) -> Tensors:
        names = [name for name in found if name.startswith(prefix) and name not in model.plain]
        return {name.removeprefix(prefix): found.pop(name) for name in names}

    for layer in model.layers:
        found[f"{layer}.weight"] = kind.decode(take(f"{layer}."))
    for name in model.stacks:
        assert kind.stack is not None
        found[name] = kind.stack[1](take(name)).swapaxes(1, 2)
    return found


def expected_weights(kind: Kind, tensors: Tensors) -> Tensors:
    """The parameters of the model, by what the tensors of a folder mean."""
    return kind.model.join(decoded_weights(kind, tensors))


def config_of(kind: Kind) -> dict[str, Any]:
    """What is in config.json."""
    quantization = kind.quantization
    return kind.model.config if quantization is None else {**kind.model.config, "quantization_config": quantization}


def metadata_of(kind: Kind) -> dict[str, str]:
    """What files say beside their tensors."""
    if kind.describe is None:
        return {}
    return {f"{layer}.weight": json.dumps(kind.describe(shape)) for layer, shape in kind.model.layers.items()}


def write_folder(folder: Path, kind: Kind, seed: int = 0) -> None:
    """Write a checkpoint of a format."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(kind), indent=1))
    tensors = tensors_of(kind, seed)
    if kind.shards == 1:
        (folder / "model.safetensors").write_bytes(file_of(tensors, metadata_of(kind)))
        return
    names = sorted(tensors)
    weight_map = {}
    for shard in range(kind.shards):
        file = f"model-{shard + 1:05}-of-{kind.shards:05}.safetensors"
        own = names[shard :: kind.shards]
        (folder / file).write_bytes(file_of({name: tensors[name] for name in own}))
        weight_map |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def file_of(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file."""
    header: dict[str, Any] = {METADATA: metadata} if metadata else {}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.tobytes()
        about = {"dtype": SPELLINGS[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = {**about, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return with_header(header, data)


def with_header(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def split_file(raw: bytes) -> tuple[Any, bytes]:
    """The header and the data of a safetensors file."""
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def read_folder(folder: Path) -> Tensors:
    """All tensors of a folder."""
    found: Tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        header, data = split_file(file.read_bytes())
        for name, about in header.items():
            if name != METADATA:
                begin, end = about["data_offsets"]
                found[name] = numpy.frombuffer(data[begin:end], DTYPES[about["dtype"]]).reshape(about["shape"])
    return found
