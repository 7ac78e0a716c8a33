"""Linear layers as programs call their kernels."""

from collections.abc import Callable

import torch

from steelyard.formats.parts import can_pack
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu, cpu
from steelyard.runtime.cpu.arguments import plain_matrix
from steelyard.runtime.cpu.gemm import _matrix, _operand
from steelyard.runtime.cpu.quantization import _target_arguments, empty_copy

E4M3 = Scheme("f8E4M3FN", "tensor", "f32")
MXFP8, MXFP8_COLUMNS = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")
BLOCK, TILE = (Scheme("f8E4M3FN", block, "f32", power_of_two=True) for block in ("1x128", "128x128"))
ROW = Scheme("f8E4M3FN", "row", "f32")
MXFP4 = Scheme("f4E2M1FN", "1x32", "f8E8M0FNU")
NVFP4, NVFP4_TILES = (Scheme("f4E2M1FN", block, "f8E4M3FN", second_level="tensor") for block in ("1x16", "16x16"))
# Schemes of activations and weights, by the name of their recipe.
GEMMS = {"fp8": (E4M3, E4M3), "mxfp8": (MXFP8, MXFP8), "fp8 1x128": (BLOCK, TILE), "nvfp4": (NVFP4, NVFP4_TILES)}
NO_MATRIX = (0, 0, 0, 0, 0, 0)


def quantized_weight(w: torch.Tensor, scheme: Scheme):
    """A weight as programs keep it: FP4 packed."""
    copy = cpu.quantize(w, scheme, None)[0]
    assert copy is not None
    return cpu.pack(copy) if can_pack(scheme) else copy


def linear(x: torch.Tensor, scheme: Scheme | None, weight, out: torch.Tensor) -> Callable[[], None]:
    """x w^T with the quantization of x, if it has a scheme, as programs run it: in memory planned ahead, no checks."""
    M, K = x.shape
    if scheme is None:
        return lambda: _multiply(x, weight, out)
    copy = empty_copy(scheme, (M, K), columnwise=False)

    def run() -> None:
        threads = torch.get_num_threads()
        _cpu.quantize(plain_matrix(x), _target_arguments(copy, None), None, 0, 0, 0, threads, None)
        _multiply(copy, weight, out)

    return run


def _multiply(a, weight, out: torch.Tensor) -> None:
    _cpu.qgemm(_operand(a), _operand(weight), NO_MATRIX, NO_MATRIX, _matrix(out), torch.get_num_threads(), None)
