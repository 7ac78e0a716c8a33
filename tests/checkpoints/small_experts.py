"""Experts in every format, written by hand: as one layer each, or as stacks."""

from dataclasses import replace

import numpy
import small_dense
from small_formats import (
    Kind,
    Tensors,
    bytes_of,
    e4m3,
    fp8,
    mxfp4,
    numbers,
    nvfp4,
    plain,
    plain_values,
    powers,
)
from tiny_models import WIDTH, gpt_oss, llama4, qwen3_moe

_DENSE = {kind.name: kind for kind in small_dense.KINDS}


def _one_by_one(name: str, inner: int = 32, shards: int = 1) -> Kind:
    """A format of dense layers, of which experts are some."""
    return replace(_DENSE[name], name=f"{name}-experts", model=qwen3_moe(inner), shards=shards)


def _blocks(rng: numpy.random.Generator, e: int, n: int, k: int) -> Tensors:
    return {"_blocks": bytes_of(rng, e, n, k // 32, 16), "_scales": powers(rng, e, n, k // 32)}


def _block_values(part: Tensors) -> numpy.ndarray:
    blocks = part["_blocks"]
    return mxfp4({"codes": blocks.reshape(*blocks.shape[:2], -1), "scales": part["_scales"]}, "codes", "scales")


def _nvfp4_stack(rng: numpy.random.Generator, e: int, n: int, k: int) -> Tensors:
    return {
        "": bytes_of(rng, e, k // 2, n),
        "_weight_scale": e4m3(rng, e, k // 16, n),
        "_weight_scale_2": numpy.array(small_dense.SHARED[1]),
        "_input_scale": numpy.array(0.003, numpy.float32),
    }


def _nvfp4_stack_values(part: Tensors) -> numpy.ndarray:
    codes, scales = (numpy.ascontiguousarray(part[end].swapaxes(1, 2)) for end in ("", "_weight_scale"))
    return nvfp4({"weight": codes, "weight_scale": scales, "weight_scale_2": part["_weight_scale_2"]})


def _fp8_stack(rng: numpy.random.Generator, e: int, n: int, k: int) -> Tensors:
    return {"": fp8(rng, e, k, n), "_weight_scale": numbers(rng), "_input_scale": numbers(rng)}


def _fp8_stack_values(part: Tensors) -> numpy.ndarray:
    return part[""].astype(numpy.float32).swapaxes(1, 2) * part["_weight_scale"].reshape(())


def _row_stack(rng: numpy.random.Generator, e: int, n: int, k: int) -> Tensors:
    # One scale per column of results in both; FBGEMM spells that of the second projection in its own way.
    return {"": fp8(rng, e, k, n), "_scale": numbers(rng, e, *((n, 1) if n == WIDTH else (1, n)))}


def _row_stack_values(part: Tensors) -> numpy.ndarray:
    codes = part[""].astype(numpy.float32).swapaxes(1, 2)
    return codes * part["_scale"].astype(numpy.float32).reshape(*codes.shape[:2], 1)


_FP4_STACK, _FP8_STACK = (_nvfp4_stack, _nvfp4_stack_values), (_fp8_stack, _fp8_stack_values)
KINDS = [
    _one_by_one("ct-fp8"),
    _one_by_one("ct-fp8-dynamic"),
    _one_by_one("ct-mxfp4", shards=2),
    _one_by_one("ct-nvfp4"),
    _one_by_one("modelopt-fp8"),
    _one_by_one("modelopt-nvfp4", shards=2),
    _one_by_one("modelopt-mxfp8"),
    # Gate and up must be joined in whole tiles.
    _one_by_one("fp8", inner=128),
    Kind(
        "mxfp4",
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
        plain,
        plain_values,
        model=gpt_oss(),
        stack=(_blocks, _block_values),
    ),
    replace(_DENSE["modelopt-nvfp4"], name="modelopt-nvfp4-gpt-oss", model=gpt_oss(), stack=_FP4_STACK, shards=1),
    replace(_DENSE["modelopt-nvfp4"], name="modelopt-nvfp4-llama4", model=llama4(), stack=_FP4_STACK),
    replace(_DENSE["modelopt-fp8"], name="modelopt-fp8-llama4", model=llama4(), stack=_FP8_STACK),
    replace(_DENSE["fbgemm"], name="fbgemm-llama4", model=llama4(), stack=(_row_stack, _row_stack_values)),
]
