"""The operators of a KV cache: what it takes in as codes, and back. Compiled programs have them in the IR.

A row has a scale that is measured, or all rows have one that is given.
"""

from dataclasses import dataclass
from typing import Any

import torch

from steelyard.errors import TargetError
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import CACHED, CACHED_STATIC, Scheme
from steelyard.runtime import cpu


@dataclass(frozen=True)
class GivenScale:
    """What the keys, or the values, of a layer are decoded by, as state that outlives caches."""

    scale: torch.Tensor
    saturated: torch.Tensor
    """How many values were too large for it so far; it is written in place."""

    def __deepcopy__(self, _memo: Any) -> "GivenScale":
        # Copies of a cache, which some ways of generating make, count into the same state.
        return self


@torch.library.custom_op("steelyard::encode_rows", mutates_args=())
def encode_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes of a tensor in bytes, and the f32 scale of each row, along its last dim."""
    copy = _encoded(x, CACHED, None)
    return copy.codes.view(x.shape), copy.scales.view(*x.shape[:-1], 1)


@encode_rows.register_fake
def _(x):
    return x.new_empty(x.shape, dtype=torch.uint8), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


@torch.library.custom_op("steelyard::decode_rows", mutates_args=())
def decode_rows(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of rows."""
    return _decoded(codes, scales.reshape(-1, 1).contiguous(), CACHED, dtype)


@decode_rows.register_fake
def _(codes, scales, dtype):
    return codes.new_empty(codes.shape, dtype=dtype)


@torch.library.custom_op("steelyard::encode_static", mutates_args=())
def encode_static(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The codes of a tensor in bytes, by what they are multiplied by to decode them."""
    return _encoded(x, CACHED_STATIC, scale).codes.view(x.shape)


@encode_static.register_fake
def _(x, scale):
    return x.new_empty(x.shape, dtype=torch.uint8)


@torch.library.custom_op("steelyard::decode_static", mutates_args=())
def decode_static(codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of codes."""
    return _decoded(codes, scale, CACHED_STATIC, dtype)


@decode_static.register_fake
def _(codes, scale, dtype):
    return codes.new_empty(codes.shape, dtype=dtype)


@torch.library.custom_op("steelyard::count_saturated", mutates_args=())
def count_saturated(x: torch.Tensor, scale: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """A count plus the number of values that `encode_static` saturates."""
    _check_place(x)
    return count + cpu.count_saturated(x, scale, CACHED_STATIC)


@count_saturated.register_fake
def _(x, scale, count):
    return count.new_empty(count.shape)


def _encoded(x: torch.Tensor, scheme: Scheme, scale: torch.Tensor | None) -> QuantizedCopy:
    _check_place(x)
    copy, _ = cpu.quantize(x, scheme, None, scale=scale)
    assert copy is not None
    return copy


def _decoded(codes: torch.Tensor, scales: torch.Tensor, scheme: Scheme, dtype: torch.dtype) -> torch.Tensor:
    _check_place(codes)
    rows, columns = codes.shape[:-1].numel(), codes.shape[-1]
    matrix = codes.reshape(rows, columns).contiguous()
    # A copy with one scale has a place for its amax, which nothing reads where the scale is given.
    amax = scales if scheme.is_static else None
    copy = QuantizedCopy(matrix, scales, amax, scheme, (rows, columns), columnwise=False)
    return cpu.dequantize(copy, dtype).view(codes.shape)


def _check_place(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise TargetError(
            f"outside of compiled programs, KV caches are quantized on the CPU, got a tensor on {tensor.device}; "
            'compile the model with kv_cache="fp8"'
        )
