"""Formats of small checkpoints: how each writes a weight, and what its tensors mean, decoded by numpy.

Nothing here calls Steelyard: the rules are those of the producers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy
from tiny_models import LLAMA, Model

Tensors = dict[str, numpy.ndarray]
Writer = Callable[..., Tensors]
"""From a generator and a shape to the tensors of a weight, by the ends of their names."""
Decoder = Callable[[Tensors], numpy.ndarray]
"""The weight, in float32, from these."""
_FP4 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], numpy.float32)


@dataclass(frozen=True)
class Kind:
    """A format, of a model."""

    name: str
    quantization: dict[str, Any] | None
    write: Writer
    decode: Decoder
    shards: int = 1
    model: Model = LLAMA
    stack: tuple[Writer, Decoder] | None = None
    """How experts in one tensor are written and decoded."""
    describe: Callable[[tuple[int, int]], dict[str, Any]] | None = None
    """What the metadata of a file says about a weight of a shape."""

    @property
    def quantized(self) -> set[str]:
        """The parameters that are quantized."""
        is_quantized = self.quantization is not None
        return self.model.quantized(has_layers=self.write is not plain) if is_quantized else set()


def plain(rng: numpy.random.Generator, n: int, k: int) -> Tensors:
    return {"weight": bf16(rng.normal(size=(n, k)))}


def plain_values(part: Tensors) -> numpy.ndarray:
    return part["weight"]


def bytes_of(rng: numpy.random.Generator, *shape: int) -> numpy.ndarray:
    return rng.integers(0, 256, shape, dtype=numpy.uint8)


def fp8(rng: numpy.random.Generator, *shape: int) -> numpy.ndarray:
    codes = bytes_of(rng, *shape)
    return numpy.where(codes & 0x7F == 0x7F, 0, codes).astype(numpy.uint8).view(ml_dtypes.float8_e4m3fn)


def numbers(rng: numpy.random.Generator, *shape: int) -> numpy.ndarray:
    return numpy.asarray(rng.uniform(0.001, 0.1, shape), numpy.float32)


def powers(rng: numpy.random.Generator, *shape: int) -> numpy.ndarray:
    return rng.integers(115, 130, shape, dtype=numpy.uint8)


def e4m3(rng: numpy.random.Generator, *shape: int) -> numpy.ndarray:
    return rng.uniform(0.25, 448, shape).astype(ml_dtypes.float8_e4m3fn)


def bf16(values: numpy.ndarray) -> numpy.ndarray:
    return values.astype(ml_dtypes.bfloat16)


def fp4_values(packed: numpy.ndarray) -> numpy.ndarray:
    """Two values of each byte, the low nibble first."""
    packed = packed.view(numpy.uint8)
    return numpy.stack([_FP4[packed & 15], _FP4[packed >> 4]], -1).reshape(*packed.shape[:-1], -1)


def power_of_two(scales: numpy.ndarray) -> numpy.ndarray:
    return numpy.ldexp(numpy.float32(1), scales.view(numpy.uint8).astype(numpy.int32) - 127).astype(numpy.float32)


def spread(scales: numpy.ndarray, rows: int, columns: int, shape: tuple[int, ...]) -> numpy.ndarray:
    """Scales of blocks of so many rows and columns, one for each value."""
    return scales.repeat(rows, -2)[..., : shape[-2], :].repeat(columns, -1)[..., : shape[-1]]


def one_scale(part: Tensors) -> numpy.ndarray:
    return part["weight"].astype(numpy.float32) * part["weight_scale"].astype(numpy.float32).reshape(())


def row_scales(part: Tensors, codes: str = "weight", scales: str = "weight_scale") -> numpy.ndarray:
    return part[codes].astype(numpy.float32) * part[scales].astype(numpy.float32).reshape(-1, 1)


def tile_scales(part: Tensors, name: str = "weight_scale") -> numpy.ndarray:
    codes = part["weight"].astype(numpy.float32)
    tiles = part[name].astype(numpy.float32).reshape(-(-codes.shape[0] // 128), -1)
    return codes * spread(tiles, 128, 128, codes.shape)


def mxfp8(part: Tensors, codes: str = "weight", scales: str = "weight_scale") -> numpy.ndarray:
    values = part[codes].astype(numpy.float32)
    return values * spread(power_of_two(part[scales]), 1, 32, values.shape)


def mxfp4(part: Tensors, codes: str = "weight", scales: str = "weight_scale") -> numpy.ndarray:
    values = fp4_values(part[codes])
    return values * spread(power_of_two(part[scales]), 1, 32, values.shape)


def nvfp4_divided(part: Tensors) -> numpy.ndarray:
    codes, scales = fp4_values(part["weight_packed"]), part["weight_scale"].astype(numpy.float32)
    return codes * spread(scales / part["weight_global_scale"].reshape(()), 1, 16, codes.shape)


def nvfp4(part: Tensors) -> numpy.ndarray:
    codes, scales = fp4_values(part["weight"]), part["weight_scale"].astype(numpy.float32)
    return codes * spread(scales * part["weight_scale_2"].reshape(()), 1, 16, codes.shape)
