"""Kernels of a user's own quantizer: its `quantize` and `qgemm`."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from steelyard.ir.kernel_calls import Kernel
from steelyard.runtime.dtypes import result_dtype


class Quantizers(Protocol):
    """The user's own quantizers by layer and role, and the algorithms that pick amaxes."""

    def __getitem__(self, key: tuple[str, str], /) -> Any: ...


class CustomValue:
    """What a user's quantizer made of a tensor."""

    __slots__ = ("lead", "quantizer", "storage")

    def __init__(self, storage: Any, quantizer: Any, lead: torch.Size):
        self.storage = storage
        self.quantizer = quantizer
        self.lead = lead
        """The dims before the last, which the storage flattens."""

    def tensors(self) -> list[torch.Tensor]:
        """The tensors it consists of."""
        parts = [getattr(self.storage, name) for name in self.storage.PARTS]
        return [part for part in parts if part is not None]


def _bind_quantize(kernel: Kernel, quantizers: Quantizers) -> Callable[..., CustomValue]:
    quantizer = quantizers[str(kernel.config["layer"]), str(kernel.config["role"])]

    def quantize(source: torch.Tensor) -> CustomValue:
        storage = quantizer.quantize(source.detach().reshape(-1, source.shape[-1]))
        return CustomValue(storage, quantizer, source.shape[:-1])

    return quantize


def _bind_gemm(kernel: Kernel, quantizers: Quantizers) -> Callable[..., torch.Tensor]:
    kind, has_bias = kernel.config["kind"], "bias" in kernel.operands
    out_dtype = result_dtype(kernel.types[0])

    def gemm(lhs: CustomValue, rhs: CustomValue, bias: torch.Tensor | None = None) -> torch.Tensor:
        bias = bias.detach() if bias is not None and has_bias else None
        product = lhs.quantizer.qgemm(lhs.storage, rhs.storage, kind=kind, bias=bias, out_dtype=out_dtype)
        return product if kind == "wgrad" else product.view(*lhs.lead, product.shape[-1])

    return gemm


BINDINGS: dict[str, Callable[[Kernel, Quantizers], Callable]] = {
    "quantize": _bind_quantize,
    "gemm": _bind_gemm,
}
