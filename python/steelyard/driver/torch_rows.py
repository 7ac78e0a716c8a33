"""Rows for products that torch runs itself, without a program."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from steelyard.driver.explanation import Row
from steelyard.frontend.flops import PRODUCTS, Work, op_name

_CONVOLUTIONS = ("aten.convolution", "aten._convolution")


def rows_of_call(
    layer: str, op: Any, work: Work, arguments: Sequence[Any], reason: str, *, with_gradients: bool
) -> Iterator[Row]:
    """The row of an op that was run, and rows for the gradients that its backward computes."""
    name = op_name(op)
    row = _row(layer, name, work, _dtype(arguments), reason)
    yield row
    if not with_gradients:
        return
    operands = PRODUCTS.get(name) or ((0, 1) if name in _CONVOLUTIONS else None)
    if operands is None:
        if any(isinstance(value, torch.Tensor) and value.requires_grad for value in arguments):
            yield replace(row, kernel=f"{name}, backward", flops=2 * work.flops)
        return
    for kind, operand, order in zip(("dgrad", "wgrad"), operands, (_DGRAD, _WGRAD), strict=True):
        if arguments[operand].requires_grad:
            m, n, k = (getattr(row, size) for size in order)
            yield replace(row, kind=kind, M=m, N=n, K=k)


_DGRAD = ("M", "K", "N")
_WGRAD = ("N", "K", "M")


def _row(layer: str, name: str, work: Work, dtype: str, reason: str) -> Row:
    m, n, k = map(str, work.sizes or ("", "", ""))
    kind = "fprop" if work.sizes else ""
    return Row(layer, kind, m, n, k, dtype, dtype, "", name, "", "", reason, flops=work.flops)


def _dtype(values: Sequence[Any]) -> str:
    """The dtype of the first tensor, as the IR spells it."""
    found = next((value.dtype for value in values if isinstance(value, torch.Tensor)), None)
    return _SPELLED.get(found, str(found).removeprefix("torch.")) if found else ""


_SPELLED = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}
