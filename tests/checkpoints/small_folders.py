"""Small checkpoints of every format, written by hand, and what they mean, decoded by numpy.

Nothing here calls Steelyard: the rules are those of the producers.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy

WIDTH, INNER, VOCABULARY, HEADS = 64, 160, 48, 4
LAYERS = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (WIDTH, WIDTH),
    "self_attn.v_proj": (WIDTH, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": WIDTH // HEADS,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "dtype": "float32",
    "vocab_size": VOCABULARY,
}
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
Tensors = dict[str, numpy.ndarray]
_FP4 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], numpy.float32)


@dataclass(frozen=True)
class Kind:
    """A format: how a layer is written, and what its tensors decode to."""

    name: str
    quantization: dict[str, Any] | None
    write: Callable[[numpy.random.Generator, int, int], Tensors]
    """The tensors of a layer by the ends of their names."""
    decode: Callable[[Tensors], numpy.ndarray]
    """The weight, in float32, from these."""
    shards: int = 1


def bytes_of(rng: numpy.random.Generator, rows: int, columns: int) -> numpy.ndarray:
    return rng.integers(0, 256, (rows, columns), dtype=numpy.uint8)


def fp8(rng: numpy.random.Generator, rows: int, columns: int) -> numpy.ndarray:
    codes = bytes_of(rng, rows, columns)
    return numpy.where(codes & 0x7F == 0x7F, 0, codes).astype(numpy.uint8).view(ml_dtypes.float8_e4m3fn)


def numbers(rng: numpy.random.Generator, *shape: int) -> numpy.ndarray:
    return rng.uniform(0.001, 0.1, shape).astype(numpy.float32)


def powers(rng: numpy.random.Generator, *shape: int) -> numpy.ndarray:
    return rng.integers(115, 130, shape, dtype=numpy.uint8)


def fp4_values(packed: numpy.ndarray) -> numpy.ndarray:
    """Two values of each byte, the low nibble first."""
    packed = packed.view(numpy.uint8)
    return numpy.stack([_FP4[packed & 15], _FP4[packed >> 4]], -1).reshape(packed.shape[0], -1)


def power_of_two(scales: numpy.ndarray) -> numpy.ndarray:
    return numpy.ldexp(numpy.float32(1), scales.view(numpy.uint8).astype(numpy.int32) - 127).astype(numpy.float32)


def spread(scales: numpy.ndarray, rows: int, columns: int, shape: tuple[int, ...]) -> numpy.ndarray:
    """Scales of blocks of so many rows and columns, one for each value."""
    return scales.repeat(rows, 0)[: shape[0]].repeat(columns, 1)[:, : shape[1]]


def _one_scale(part: Tensors) -> numpy.ndarray:
    return part["weight"].astype(numpy.float32) * part["weight_scale"].astype(numpy.float32).reshape(())


def _row_scales(part: Tensors) -> numpy.ndarray:
    return part["weight"].astype(numpy.float32) * part["weight_scale"].astype(numpy.float32).reshape(-1, 1)


def _tile_scales(part: Tensors, name: str = "weight_scale") -> numpy.ndarray:
    codes = part["weight"].astype(numpy.float32)
    tiles = part[name].astype(numpy.float32).reshape(-(-codes.shape[0] // 128), -1)
    return codes * spread(tiles, 128, 128, codes.shape)


def _mxfp8(part: Tensors) -> numpy.ndarray:
    codes = part["weight"].astype(numpy.float32)
    return codes * spread(power_of_two(part["weight_scale"]), 1, 32, codes.shape)


def _mxfp4(part: Tensors) -> numpy.ndarray:
    codes = fp4_values(part.get("weight_packed", part.get("weight")))
    return codes * spread(power_of_two(part["weight_scale"]), 1, 32, codes.shape)


def _nvfp4_divided(part: Tensors) -> numpy.ndarray:
    codes, scales = fp4_values(part["weight_packed"]), part["weight_scale"].astype(numpy.float32)
    return codes * spread(scales / part["weight_global_scale"].reshape(()), 1, 16, codes.shape)


def _nvfp4(part: Tensors) -> numpy.ndarray:
    codes, scales = fp4_values(part["weight"]), part["weight_scale"].astype(numpy.float32)
    return codes * spread(scales * part["weight_scale_2"].reshape(()), 1, 16, codes.shape)


def _bf16(values: numpy.ndarray) -> numpy.ndarray:
    return values.astype(ml_dtypes.bfloat16)


def _e4m3(rng: numpy.random.Generator, *shape: int) -> numpy.ndarray:
    return rng.uniform(0.25, 448, shape).astype(ml_dtypes.float8_e4m3fn)


def _compressed(format: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    given = {"type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**given, **weights},
        "input_activations": inputs and {**given, **inputs},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*router$"],
        "kv_cache_scheme": None,
    }


def _modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "ignore": ["lm_head", "model.vision*"],
        "producer": {"name": "modelopt", "version": "0.47.0"},
        **more,
    }


_NVFP4 = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
_MX = {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
_SHARED = numpy.float32(321.5), numpy.float32(0.0123)
"""Second levels: those of q, k and v, for instance, are one number."""

KINDS = [
    Kind("plain", None, lambda rng, n, k: {"weight": _bf16(rng.normal(size=(n, k)))}, lambda part: part["weight"]),
    Kind(
        "ct-fp8",
        _compressed(
            "float-quantized",
            {"num_bits": 8, "strategy": "tensor"},
            {"num_bits": 8, "strategy": "tensor", "dynamic": False},
        ),
        lambda rng, n, k: {
            "weight": fp8(rng, n, k),
            "weight_scale": _bf16(numbers(rng, 1)),
            "input_scale": _bf16(numbers(rng, 1)),
        },
        _one_scale,
        shards=2,
    ),
    Kind(
        "ct-fp8-dynamic",
        _compressed(
            "float-quantized",
            {"num_bits": 8, "strategy": "channel"},
            {"num_bits": 8, "strategy": "token", "dynamic": True},
        ),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": _bf16(numbers(rng, n, 1))},
        _row_scales,
    ),
    Kind(
        "ct-fp8-block",
        _compressed(
            "float-quantized",
            {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
            {"num_bits": 8, "strategy": "group", "group_size": 128, "dynamic": True},
        ),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": _bf16(numbers(rng, -(-n // 128), -(-k // 128)))},
        _tile_scales,
    ),
    Kind(
        "ct-mxfp8",
        _compressed("mxfp8-quantized", {"num_bits": 8, **_MX}, {"num_bits": 8, "dynamic": True, **_MX}),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": powers(rng, n, k // 32)},
        _mxfp8,
    ),
    Kind(
        "ct-mxfp4",
        _compressed("mxfp4-pack-quantized", {"num_bits": 4, **_MX}, {"num_bits": 4, "dynamic": True, **_MX}),
        lambda rng, n, k: {"weight_packed": bytes_of(rng, n, k // 2), "weight_scale": powers(rng, n, k // 32)},
        _mxfp4,
        shards=2,
    ),
    Kind(
        "ct-nvfp4",
        _compressed("nvfp4-pack-quantized", _NVFP4, {**_NVFP4, "dynamic": "local"}),
        lambda rng, n, k: {
            "weight_packed": bytes_of(rng, n, k // 2),
            "weight_scale": _e4m3(rng, n, k // 16),
            "weight_global_scale": numpy.full(1, _SHARED[0]),
            "input_global_scale": numpy.full(1, 700, numpy.float32),
        },
        _nvfp4_divided,
    ),
    Kind(
        "modelopt-fp8",
        _modelopt("FP8", kv_cache_scheme={"num_bits": 8, "type": "float"}),
        lambda rng, n, k: {
            "weight": fp8(rng, n, k),
            "weight_scale": numbers(rng).reshape(()),
            "input_scale": numbers(rng).reshape(()),
        },
        _one_scale,
    ),
    Kind(
        "modelopt-fp8-rows",
        _modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": numbers(rng, n)},
        _row_scales,
    ),
    Kind(
        "modelopt-fp8-tiles",
        _modelopt("fp8_pb_wo"),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": numbers(rng, -(-n // 128), 1, -(-k // 128), 1)},
        _tile_scales,
    ),
    Kind(
        "modelopt-nvfp4",
        _modelopt("NVFP4"),
        lambda rng, n, k: {
            "weight": bytes_of(rng, n, k // 2),
            "weight_scale": _e4m3(rng, n, k // 16),
            "weight_scale_2": numpy.array(_SHARED[1]),
            "input_scale": numpy.array(0.003, numpy.float32),
        },
        _nvfp4,
        shards=2,
    ),
    Kind(
        "modelopt-mxfp8",
        _modelopt("MXFP8"),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": powers(rng, n, k // 32)},
        _mxfp8,
    ),
    Kind(
        "modelopt-mixed",
        _modelopt("MIXED_PRECISION", quantized_layers={"model.layers.0": {"quant_algo": "mxfp4", "group_size": 32}}),
        lambda rng, n, k: {"weight": bytes_of(rng, n, k // 2), "weight_scale": powers(rng, n, k // 32)},
        _mxfp4,
    ),
    Kind(
        "fp8",
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"},
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale_inv": numbers(rng, -(-n // 128), -(-k // 128))},
        lambda part: _tile_scales(part, "weight_scale_inv"),
    ),
    Kind(
        "mxfp8",
        {"quant_method": "mxfp8", "weight_block_size": [1, 32], "activation_scheme": "dynamic"},
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale_inv": powers(rng, n, k // 32)},
        lambda part: _mxfp8({"weight": part["weight"], "weight_scale": part["weight_scale_inv"]}),
    ),
    Kind(
        "fbgemm",
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": numbers(rng, n, 1)},
        _row_scales,
    ),
]


def tensors_of(kind: Kind, seed: int = 0) -> Tensors:
    """All tensors of a small Llama."""
    rng = numpy.random.default_rng(seed)
    found: Tensors = {
        "model.embed_tokens.weight": _bf16(rng.normal(size=(VOCABULARY, WIDTH))),
        "lm_head.weight": _bf16(rng.normal(size=(VOCABULARY, WIDTH))),
        "model.norm.weight": _bf16(rng.normal(size=WIDTH)),
        "model.layers.0.input_layernorm.weight": _bf16(rng.normal(size=WIDTH)),
        "model.layers.0.post_attention_layernorm.weight": _bf16(rng.normal(size=WIDTH)),
    }
    for layer, (rows, columns) in LAYERS.items():
        found |= {f"model.layers.0.{layer}.{end}": each for end, each in kind.write(rng, rows, columns).items()}
    return found


def expected_weights(kind: Kind, tensors: Tensors) -> Tensors:
    """The parameters of the model, by what the tensors of a folder mean."""
    layers = [f"model.layers.0.{layer}" for layer in LAYERS]
    found = {name: each for name, each in tensors.items() if not name.startswith(tuple(f"{x}." for x in layers))}
    for layer in layers:
        ends = {name.removeprefix(f"{layer}."): each for name, each in tensors.items() if name.startswith(f"{layer}.")}
        found[f"{layer}.weight"] = kind.decode(ends)
    return found


def write_folder(folder: Path, kind: Kind, seed: int = 0) -> None:
    """Write a checkpoint of a format."""
    folder.mkdir(parents=True, exist_ok=True)
    config = MODEL if kind.quantization is None else {**MODEL, "quantization_config": kind.quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = tensors_of(kind, seed)
    if kind.shards == 1:
        (folder / "model.safetensors").write_bytes(file_of(tensors))
        return
    names = sorted(tensors)
    weight_map = {}
    for shard in range(kind.shards):
        file = f"model-{shard + 1:05}-of-{kind.shards:05}.safetensors"
        own = names[shard :: kind.shards]
        (folder / file).write_bytes(file_of({name: tensors[name] for name in own}))
        weight_map |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def file_of(tensors: Tensors) -> bytes:
    """The bytes of a safetensors file."""
    header, data = {}, b""
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
            if name != "__metadata__":
                begin, end = about["data_offsets"]
                found[name] = numpy.frombuffer(data[begin:end], DTYPES[about["dtype"]]).reshape(about["shape"])
    return found
