"""The steps of a program that are not ATen calls: each op's kernel, bound to what is known when it is compiled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from steelyard.dialect.matmul import USAGES, GemmOp, MatmulOp
from steelyard.dialect.produce import NORMS, ProduceQuantizeOp
from steelyard.dialect.quantize import QuantizeOp
from steelyard.dialect.types import tensor_info
from steelyard.errors import InternalError
from steelyard.runtime import cpu

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


Quantizers = Mapping[tuple[str, str], Any]
"""The user's own quantizers by layer and role."""


@dataclass(frozen=True, slots=True)
class QuantizedValue:
    """A `!scaled.tensor` at run time; `row` and `col` are one storage where a user's own quantizer made it."""

    row: Any
    col: Any
    lead: torch.Size
    """The dims before the last, which the copies flatten."""
    quantizer: Any = None
    """The user's own quantizer that made it."""

    def tensors(self) -> list[torch.Tensor]:
        """The tensors it consists of."""
        if self.quantizer is not None:
            parts = [getattr(self.row, name) for name in self.row.PARTS]
        else:
            copies = [copy for copy in (self.row, self.col) if copy is not None]
            parts = [part for copy in copies for part in (copy.codes, copy.scales, copy.amax)]
        return [part for part in parts if part is not None]

    def copy_of(self, usage: str) -> Any:
        """The copy that a GEMM reads."""
        copy = self.row if usage == "rowwise" else self.col
        if copy is None:
            raise InternalError(f"a GEMM reads the {usage} copy of a tensor that has none")
        return copy


def bind_quantize(op: QuantizeOp, quantizers: Quantizers) -> Callable[..., QuantizedValue]:
    """The kernel of a quantize; a second operand is its scale."""
    if any(scheme.custom for scheme in op.result.type.info.schemes):
        return _bind_custom_quantize(quantizers[op.layer.value, op.role.value])
    if op.amax is not None or op.rng is not None or op.new_amax is not None:
        raise InternalError("the CPU target has no kernel for a quantize with an amax or random bits of its own")
    info = op.result.type.info
    row, col = info.row, info.col

    def quantize(source: torch.Tensor, scale: torch.Tensor | None = None) -> QuantizedValue:
        copies = cpu.quantize(source.detach(), row, col, scale=scale)
        return QuantizedValue(*copies, source.shape[:-1])

    return quantize


def bind_produce_quantize(op: ProduceQuantizeOp, quantizers: Quantizers) -> Callable[..., QuantizedValue]:
    """The kernel of a quantize that computes a norm or an activation; the last operand may be its scale."""
    info = op.result.type.info
    row, col, dtype = info.row, info.col, DTYPES[info.dtype]
    producer, has_scale = op.producer.value, op.scale is not None
    epsilon = (op.epsilon.value,) if producer in NORMS else ()

    def produce_quantize(*operands: torch.Tensor) -> QuantizedValue:
        inputs = tuple(operand.detach() for operand in operands)
        inputs, scale = (inputs[:-1], inputs[-1]) if has_scale else (inputs, None)
        copies = cpu.quantize_produced(producer, (*inputs, *epsilon), row, col, scale=scale, dtype=dtype)
        return QuantizedValue(*copies, operands[0].shape[:-1])

    return produce_quantize


def _bind_custom_quantize(quantizer: Any) -> Callable[..., QuantizedValue]:
    def quantize(source: torch.Tensor) -> QuantizedValue:
        storage = quantizer.quantize(source.detach().reshape(-1, source.shape[-1]))
        return QuantizedValue(storage, storage, source.shape[:-1], quantizer)

    return quantize


def bind_gemm(op: GemmOp, quantizers: Quantizers) -> Callable[..., torch.Tensor]:
    """The kernel of a GEMM."""
    if op.accumulator is not None or op.preactivation is not None:
        raise InternalError("the CPU target has no step yet that accumulates or keeps a preactivation")
    kind, epilogue = op.kind.value, op.epilogue.value
    has_bias, has_residual = op.bias is not None, op.residual is not None
    left_usage, right_usage = USAGES[kind]
    info = tensor_info(op.result.type)
    assert info is not None
    out_dtype = DTYPES[info.dtype]

    def gemm(lhs: QuantizedValue, rhs: QuantizedValue, *addends: torch.Tensor) -> torch.Tensor:
        left, right = lhs.copy_of(left_usage), rhs.copy_of(right_usage)
        bias = addends[0].detach() if has_bias else None
        if lhs.quantizer is not None:
            product = lhs.quantizer.qgemm(left, right, kind=kind, bias=bias, out_dtype=out_dtype)
        else:
            residual = addends[-1].detach().reshape(-1, addends[-1].shape[-1]) if has_residual else None
            product = cpu.qgemm(left, right, bias=bias, residual=residual, epilogue=epilogue, out_dtype=out_dtype)
        return product if kind == "wgrad" else product.view(*lhs.lead, product.shape[-1])

    return gemm


def bind_matmul(op: MatmulOp, quantizers: Quantizers) -> Callable[..., torch.Tensor]:
    """A GEMM that stays in high precision: torch's own."""
    if op.kind.value != "fprop":
        raise InternalError(f"a high-precision {op.kind.value} has no spelling in torch here")
    if op.batch_dims.value == 0:
        return functional.linear
    return lambda lhs, rhs: torch.matmul(lhs, rhs.transpose(-1, -2))
