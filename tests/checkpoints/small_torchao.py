"""Tensors of torchao, written by hand; metadata of the file says what they are."""

from typing import Any

import ml_dtypes
import numpy
from small_dense import SHARED
from small_formats import (
    Kind,
    Tensors,
    bytes_of,
    e4m3,
    fp4_values,
    fp8,
    mxfp4,
    mxfp8,
    numbers,
    powers,
    row_scales,
    spread,
)

_METHOD = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8WeightOnlyConfig", "_data": {}}}}
_CODES, _SCALES, _LEVEL = "_weight_qdata", "_weight_scale", "_weight_per_tensor_scale"


def _object(kind: str, **data: Any) -> dict[str, Any]:
    return {"_type": kind, "_data": data}


def _float8(shape: tuple[int, int]) -> dict[str, Any]:
    row = _object("PerRow", dim=-1)
    inputs = _object("QuantizeTensorToFloat8Kwargs", granularity=row, hp_value_ub=1200.0)
    return _object("Float8Tensor", block_size=[1, shape[1]], act_quant_kwargs=inputs)


def _mx(element: str) -> dict[str, Any]:
    dtype, rule = _object("torch.dtype"), _object("ScaleCalculationMode")
    kind = {"elem_dtype": {**dtype, "_data": element}, "block_size": 32}
    inputs = _object("QuantizeTensorToMXKwargs", **kind, scaling_mode={**rule, "_data": "RCEIL"})
    return _object("MXTensor", **kind, is_swizzled_scales=False, act_quant_kwargs=inputs)


def _places(rows: int, columns: int) -> numpy.ndarray:
    """Where each scale lies in the order that GPU GEMMs read: in tiles of 128 rows and 4 columns."""
    row, column = numpy.arange(rows)[:, None], numpy.arange(columns)
    tiles = row // 128 * -(-columns // 4) + column // 4
    return tiles * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4


def _swizzled(rng: numpy.random.Generator, n: int, k: int) -> Tensors:
    tiles = -(-n // 128), -(-(k // 16) // 4)
    placed = numpy.zeros((tiles[0] * 32, tiles[1] * 16), numpy.uint8)
    placed.reshape(-1)[_places(n, k // 16)] = e4m3(rng, n, k // 16).view(numpy.uint8)
    scales = placed.view(ml_dtypes.float8_e4m3fn)
    return {_CODES: bytes_of(rng, n, k // 2), _SCALES: scales, _LEVEL: numpy.array(SHARED[1])}


def _swizzled_values(part: Tensors) -> numpy.ndarray:
    codes = fp4_values(part[_CODES])
    rows, columns = codes.shape
    scales = part[_SCALES].reshape(-1)[_places(rows, columns // 16)].astype(numpy.float32)
    return codes * spread(scales * part[_LEVEL].reshape(()), 1, 16, codes.shape)


def _powers(rng: numpy.random.Generator, n: int, k: int) -> numpy.ndarray:
    return powers(rng, n, k // 32).view(ml_dtypes.float8_e8m0fnu)


KINDS = [
    Kind(
        "torchao-float8",
        _METHOD,
        lambda rng, n, k: {_CODES: fp8(rng, n, k), _SCALES: numbers(rng, n, 1)},
        lambda part: row_scales(part, _CODES, _SCALES),
        describe=_float8,
    ),
    Kind(
        "torchao-mxfp8",
        _METHOD,
        lambda rng, n, k: {_CODES: fp8(rng, n, k), _SCALES: _powers(rng, n, k)},
        lambda part: mxfp8(part, _CODES, _SCALES),
        describe=lambda shape: _mx("float8_e4m3fn"),
    ),
    Kind(
        "torchao-mxfp4",
        _METHOD,
        lambda rng, n, k: {_CODES: bytes_of(rng, n, k // 2), _SCALES: _powers(rng, n, k)},
        lambda part: mxfp4(part, _CODES, _SCALES),
        describe=lambda shape: _mx("float4_e2m1fn_x2"),
    ),
    Kind(
        "torchao-nvfp4",
        _METHOD,
        _swizzled,
        _swizzled_values,
        describe=lambda shape: _object("NVFP4Tensor", block_size=16, is_swizzled_scales=True, act_quant_kwargs=None),
    ),
]
