"""Kernels of a user's own quantizer: its `quantize` and `qgemm`."""

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch

from steelyard.errors import UnsupportedModelError
from steelyard.ir.kernel_calls import GemmCall, KernelCall, QuantizeCall
from steelyard.runtime.dtypes import result_dtype
from steelyard.runtime.quantizers import Quantizers


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


@singledispatch
def bind(call: KernelCall, quantizers: Quantizers) -> Callable[..., Any]:
    """The function of a call that a user's own quantizer runs, which returns its one result."""
    raise UnsupportedModelError(f"a user's own quantizer does not run '{call.OPERATION}'")


@bind.register
def _bind_quantize(call: QuantizeCall, quantizers: Quantizers) -> Callable[..., CustomValue]:
    quantizer = quantizers[call.layer, call.role]

    def quantize(source: torch.Tensor) -> CustomValue:
        storage = quantizer.quantize(source.detach().reshape(-1, source.shape[-1]))
        return CustomValue(storage, quantizer, source.shape[:-1])

    return quantize


@bind.register
def _bind_gemm(call: GemmCall, _: Quantizers) -> Callable[..., torch.Tensor]:
    kind, has_bias = call.kind, call.bias is not None
    out_dtype = result_dtype(call.results[0].type)

    def gemm(lhs: CustomValue, rhs: CustomValue, bias: torch.Tensor | None = None) -> torch.Tensor:
        bias = bias.detach() if bias is not None and has_bias else None
        product = lhs.quantizer.qgemm(lhs.storage, rhs.storage, kind=kind, bias=bias, out_dtype=out_dtype)
        return product if kind == "wgrad" else product.view(*lhs.lead, product.shape[-1])

    return gemm
