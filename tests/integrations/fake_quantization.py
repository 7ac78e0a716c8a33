"""An eager model whose GEMMs round their operands to the values of a recipe, in NumPy alone.

Nothing here is shared with the compiler, its kernels or its reference: the rules are written again, in float32, on top
of the number formats of ml_dtypes.
"""

from collections.abc import Callable, Set

import ml_dtypes
import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

Gemm = tuple[str, str, str]
_PRODUCTS = [
    getattr(torch.ops.aten, name) for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "convolution")
]
_COPIES = (torch.ops.aten.clone, torch.ops.aten._to_copy)
E4M3, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn


def fake_fp8(x: np.ndarray, in_tiles: bool) -> np.ndarray:
    """One scale per tensor, which maps the largest magnitude to 448."""
    amax = np.abs(x).max(initial=np.float32(0))
    scale = np.float32(448) / amax if amax > 0 else np.float32(1)
    return _cast(x * scale, E4M3, 448) * (np.float32(1) / scale)


def fake_mxfp8(x: np.ndarray, in_tiles: bool) -> np.ndarray:
    """A power of two per 32 values of a row, the smallest that makes all of them at most 448."""
    blocks = _blocks(x, 1, 32)
    amax = np.abs(blocks).max(axis=(1, 3), keepdims=True)
    mantissa, exponent = np.frexp(amax * np.float32(1 / 448))
    exponent = np.maximum(exponent - (mantissa == 0.5), -127)
    decoded = np.ldexp(_cast(np.ldexp(blocks, -exponent), E4M3, 448), exponent)
    return _unblocked(decoded, x)


def fake_nvfp4(x: np.ndarray, in_tiles: bool) -> np.ndarray:
    """A byte in E4M3 per 16 values of a row, or per 16x16 tile, and a factor per tensor."""
    amax = np.abs(x).max(initial=np.float32(0))
    encode = np.float32(448 * 6) / amax if amax > 0 else np.float32(1)
    blocks = _blocks(x, 16 if in_tiles else 1, 16)
    largest = np.abs(blocks).max(axis=(1, 3), keepdims=True)
    scales = _cast(largest * (encode * np.float32(1 / 6)), E4M3, 448)
    with np.errstate(divide="ignore"):
        factors = np.minimum(np.float32(1) / (scales * (np.float32(1) / encode)), np.finfo(np.float32).max)
    codes = _cast(blocks * factors, E2M1, 6)
    return _unblocked(codes * scales, x) * (amax * np.float32(1 / (6 * 448)))


FAKES: dict[str, Callable[[np.ndarray, bool], np.ndarray]] = {
    "fp8-current": fake_fp8,
    "mxfp8": fake_mxfp8,
    "nvfp4": fake_nvfp4,
}


def _cast(x: np.ndarray, dtype: type, largest: float) -> np.ndarray:
    """The nearest value of a format, saturated, as float32."""
    return np.clip(x, -largest, largest).astype(np.float32).astype(dtype).astype(np.float32)


def _blocks(x: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The matrix as [block row, row, block column, column], filled up with zeros."""
    padded = np.pad(x, ((0, -x.shape[0] % rows), (0, -x.shape[1] % columns)))
    return padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)


def _unblocked(blocks: np.ndarray, like: np.ndarray) -> np.ndarray:
    matrix = blocks.reshape(blocks.shape[0] * blocks.shape[1], -1)
    return np.ascontiguousarray(matrix[: like.shape[0], : like.shape[1]])


class FakeQuantizedGemms(TorchDispatchMode):
    """While it is active, GEMMs of a model's parameters round their operands, where `quantized` has them.

    A GEMM is known by its layer, N and K, as text. `found` has all those of parameters, rounded or not. `layers` has
    every layer that multiplies by a parameter, also in batches or a convolution. The layer of experts is the parameter.
    """

    def __init__(self, model: nn.Module, recipe: str, quantized: Set[Gemm]):
        super().__init__()
        self._fake = FAKES[recipe]
        # Weights of a net that trains are in tiles.
        self._has_tiles = model.training
        self._quantized = quantized
        self._parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._names = {p.untyped_storage().data_ptr(): name for name, p in model.named_parameters()}
        # Held, so that no other tensor gets their memory.
        self._copies: list[torch.Tensor] = []
        self._stack = [""]
        self._hooks = [hook for name, module in model.named_modules() for hook in self._watch(name, module)]
        self.found: set[Gemm] = set()
        self.layers: set[str] = set()

    def _watch(self, name: str, module: nn.Module) -> tuple:
        def leave(*_) -> None:
            self._stack.pop()

        enter = module.register_forward_pre_hook(lambda *_: self._stack.append(name))
        return enter, module.register_forward_hook(leave)

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten._grouped_mm:
            return self._grouped_product(*args)
        if func.overloadpacket in _PRODUCTS and any(map(self._is_of_a_parameter, args[:3])):
            self.layers.add(self._stack[-1])
        match func.overloadpacket:
            case torch.ops.aten.mm:
                return self._product(*args)
            case torch.ops.aten.addmm if not kwargs:
                return args[0] + self._product(*args[1:])
            case torch.ops.aten.linear:  # In inference mode it comes whole.
                x, w, *bias = args
                product = self._product(x.flatten(0, -2), w.t()).unflatten(0, x.shape[:-1])
                return product + bias[0] if bias else product
            case torch.ops.aten.bmm if _is_repeated(args[1]):
                batch, rows, _ = args[0].shape
                product = self._product(args[0].flatten(0, 1), args[1][0])
                return product.reshape(batch, rows, -1)
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _COPIES and self._is_of_a_parameter(args[0]):
            self._copies.append(result)
            self._parameters.add(result.untyped_storage().data_ptr())
        return result

    def _is_of_a_parameter(self, x: object) -> bool:
        return isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() in self._parameters

    def _grouped_product(self, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, *_) -> torch.Tensor:
        """The rows of each group times the weight of its expert, each rounded as a matrix of its own."""
        gemm = self._names[w.untyped_storage().data_ptr()], str(w.shape[2]), str(w.shape[1])
        self.found.add(gemm)
        rounds = self._fake if gemm in self._quantized else lambda values, _: values
        product, start = torch.zeros(x.shape[0], w.shape[2], dtype=x.dtype), 0
        for expert, end in zip(w, ends.tolist(), strict=True):
            left, right = rounds(_array(x[start:end]), False), rounds(_array(expert.t()), True)
            product[start:end] = torch.from_numpy(left.astype(np.float64) @ right.T.astype(np.float64))
            start = end
        return product

    def _product(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """x times a weight that is stored as [K, N] or seen so."""
        if not self._is_of_a_parameter(w):
            return torch.mm(x, w)
        gemm = self._stack[-1], str(w.shape[1]), str(w.shape[0])
        self.found.add(gemm)
        if gemm not in self._quantized:
            return torch.mm(x, w)
        left, right = self._fake(_array(x), False), self._fake(_array(w.t()), self._has_tiles)
        return torch.from_numpy(left.astype(np.float64) @ right.T.astype(np.float64)).to(x.dtype)


def _is_repeated(x: torch.Tensor) -> bool:
    return x.stride(0) == 0 or x.shape[0] == 1


def _array(x: torch.Tensor) -> np.ndarray:
    return x.detach().float().numpy()
