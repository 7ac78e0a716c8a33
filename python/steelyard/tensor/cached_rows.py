"""The two operators of a KV cache: rows as codes with a scale each, and back. Compiled programs have them in the IR."""

import torch

from steelyard.errors import TargetError
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import CACHED
from steelyard.runtime import cpu


@torch.library.custom_op("steelyard::encode_rows", mutates_args=())
def encode_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes of a tensor in bytes, and the f32 scale of each row, along its last dim."""
    _check_place(x)
    copy, _ = cpu.quantize(x, CACHED, None)
    assert copy is not None
    return copy.codes.view(x.shape), copy.scales.view(*x.shape[:-1], 1)


@encode_rows.register_fake
def _(x):
    return x.new_empty(x.shape, dtype=torch.uint8), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


@torch.library.custom_op("steelyard::decode_rows", mutates_args=())
def decode_rows(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of rows."""
    _check_place(codes)
    rows, columns = codes.shape[:-1].numel(), codes.shape[-1]
    matrix, factors = codes.reshape(rows, columns).contiguous(), scales.reshape(rows, 1).contiguous()
    copy = QuantizedCopy(matrix, factors, None, CACHED, (rows, columns), columnwise=False)
    return cpu.dequantize(copy, dtype).view(codes.shape)


@decode_rows.register_fake
def _(codes, scales, dtype):
    return codes.new_empty(codes.shape, dtype=dtype)


def _check_place(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise TargetError(
            f"outside of compiled programs, KV caches are quantized on the CPU, got a tensor on {tensor.device}; "
            'compile the model with kv_cache="fp8"'
        )
