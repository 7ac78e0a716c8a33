"""Dense layers in every format, written by hand."""

from typing import Any

import numpy
from small_formats import (
    Kind,
    Tensors,
    bf16,
    bytes_of,
    e4m3,
    fp8,
    mxfp4,
    mxfp8,
    numbers,
    nvfp4,
    nvfp4_divided,
    one_scale,
    plain,
    plain_values,
    powers,
    row_scales,
    tile_scales,
)


def compressed(format: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
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


def modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "ignore": ["lm_head", "model.vision*"],
        "producer": {"name": "modelopt", "version": "0.47.0"},
        **more,
    }


NVFP4 = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
MX = {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
SHARED = numpy.float32(321.5), numpy.float32(0.0123)
"""Second levels: those of q, k and v, for instance, are one number."""


def _nvfp4(rng: numpy.random.Generator, n: int, k: int) -> Tensors:
    return {
        "weight": bytes_of(rng, n, k // 2),
        "weight_scale": e4m3(rng, n, k // 16),
        "weight_scale_2": numpy.array(SHARED[1]),
        "input_scale": numpy.array(0.003, numpy.float32),
    }


KINDS = [
    Kind("plain", None, plain, plain_values),
    Kind(
        "ct-fp8",
        compressed(
            "float-quantized",
            {"num_bits": 8, "strategy": "tensor"},
            {"num_bits": 8, "strategy": "tensor", "dynamic": False},
        ),
        lambda rng, n, k: {
            "weight": fp8(rng, n, k),
            "weight_scale": bf16(numbers(rng, 1)),
            "input_scale": bf16(numbers(rng, 1)),
        },
        one_scale,
        shards=2,
    ),
    Kind(
        "ct-fp8-dynamic",
        compressed(
            "float-quantized",
            {"num_bits": 8, "strategy": "channel"},
            {"num_bits": 8, "strategy": "token", "dynamic": True},
        ),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": bf16(numbers(rng, n, 1))},
        row_scales,
    ),
    Kind(
        "ct-fp8-block",
        compressed(
            "float-quantized",
            {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
            {"num_bits": 8, "strategy": "group", "group_size": 128, "dynamic": True},
        ),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": bf16(numbers(rng, -(-n // 128), -(-k // 128)))},
        tile_scales,
    ),
    Kind(
        "ct-mxfp8",
        compressed("mxfp8-quantized", {"num_bits": 8, **MX}, {"num_bits": 8, "dynamic": True, **MX}),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": powers(rng, n, k // 32)},
        mxfp8,
    ),
    Kind(
        "ct-mxfp4",
        compressed("mxfp4-pack-quantized", {"num_bits": 4, **MX}, {"num_bits": 4, "dynamic": True, **MX}),
        lambda rng, n, k: {"weight_packed": bytes_of(rng, n, k // 2), "weight_scale": powers(rng, n, k // 32)},
        lambda part: mxfp4(part, "weight_packed"),
        shards=2,
    ),
    Kind(
        "ct-nvfp4",
        compressed("nvfp4-pack-quantized", NVFP4, {**NVFP4, "dynamic": "local"}),
        lambda rng, n, k: {
            "weight_packed": bytes_of(rng, n, k // 2),
            "weight_scale": e4m3(rng, n, k // 16),
            "weight_global_scale": numpy.full(1, SHARED[0]),
            "input_global_scale": numpy.full(1, 700, numpy.float32),
        },
        nvfp4_divided,
    ),
    Kind(
        "modelopt-fp8",
        modelopt("FP8", kv_cache_scheme={"num_bits": 8, "type": "float"}),
        lambda rng, n, k: {
            "weight": fp8(rng, n, k),
            "weight_scale": numbers(rng).reshape(()),
            "input_scale": numbers(rng).reshape(()),
        },
        one_scale,
    ),
    Kind(
        "modelopt-fp8-rows",
        modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": numbers(rng, n)},
        row_scales,
    ),
    Kind(
        "modelopt-fp8-tiles",
        modelopt("fp8_pb_wo"),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": numbers(rng, -(-n // 128), 1, -(-k // 128), 1)},
        tile_scales,
    ),
    Kind(
        "modelopt-nvfp4",
        modelopt("NVFP4"),
        _nvfp4,
        nvfp4,
        shards=2,
    ),
    Kind(
        "modelopt-nvfp4-awq",
        modelopt("NVFP4_AWQ"),
        lambda rng, n, k: {**_nvfp4(rng, n, k), "pre_quant_scale": bf16(numbers(rng, k))},
        nvfp4,
    ),
    Kind(
        "modelopt-mxfp8",
        modelopt("MXFP8"),
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": powers(rng, n, k // 32)},
        mxfp8,
    ),
    Kind(
        "modelopt-mixed",
        modelopt("MIXED_PRECISION", quantized_layers={"model.layers.0": {"quant_algo": "mxfp4", "group_size": 32}}),
        lambda rng, n, k: {"weight": bytes_of(rng, n, k // 2), "weight_scale": powers(rng, n, k // 32)},
        mxfp4,
    ),
    Kind(
        "fp8",
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"},
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale_inv": numbers(rng, -(-n // 128), -(-k // 128))},
        lambda part: tile_scales(part, "weight_scale_inv"),
    ),
    Kind(
        "mxfp8",
        {"quant_method": "mxfp8", "weight_block_size": [1, 32], "activation_scheme": "dynamic"},
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale_inv": powers(rng, n, k // 32)},
        lambda part: mxfp8(part, scales="weight_scale_inv"),
    ),
    Kind(
        "fbgemm",
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        lambda rng, n, k: {"weight": fp8(rng, n, k), "weight_scale": numbers(rng, n, 1)},
        row_scales,
    ),
]
