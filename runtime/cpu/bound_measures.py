"""Kernels of the CPU that measure, bound to a program like those of `bound`."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import part_shapes
from steelyard.ir.kernel_calls import MeasureInfluenceCall, MeasureProductCall, MeasureQuantizeCall, SwitchCall
from steelyard.runtime.cpu import measuring
from steelyard.runtime.quantizers import Quantizers

Bound = tuple[Callable, Callable | None]


def bind_quantize(call: MeasureQuantizeCall, _: Quantizers) -> Bound:
    """Measure a copy, or the copies of all groups."""
    source, ends, places = call.operand("source"), call.operand("ends"), call.copy.places
    split = _split_groups(call) if call.groups else None
    known = prod(size for size in call.shape[:-1] if size is not None)
    runtime_sizes, columns, scheme, columnwise = call.sizes, call.shape[-1] or 0, call.scheme, call.columnwise

    def measure_quantize(*values: Any) -> tuple[torch.Tensor]:
        own = None if source is None else values[source].detach()
        parts = {part: values[place] for part, place in places.items()}
        if split is not None:
            return (measuring.measure_groups(*split(parts, own, None if ends is None else values[ends])),)
        # What a source has of rows need not be told.
        rows = known * prod(values[runtime_sizes]) if own is None else own.shape[:-1].numel()
        copy = QuantizedCopy(parts["codes"], parts["scales"], parts.get("amax"), scheme, (rows, columns), columnwise)
        return (measuring.measure_copy(copy, own),)

    return measure_quantize, None


def _split_groups(call: MeasureQuantizeCall) -> Callable[..., tuple[list[QuantizedCopy], list]]:
    """From the parts of a tensor in groups, which hold one group after the other, to the copies of its groups."""
    scheme, columnwise, groups, columns = call.scheme, call.columnwise, call.groups, call.shape[-1] or 0

    def split(parts: dict[str, torch.Tensor], source: torch.Tensor | None, ends: torch.Tensor | None) -> tuple:
        limits = [0, *ends.tolist()] if ends is not None else None
        places = dict.fromkeys(parts, 0)
        copies, sources = [], []
        for group in range(groups):
            rows = (call.shape[1] or 0) if limits is None else limits[group + 1] - limits[group]
            own = {}
            for part, (sizes, _) in part_shapes(scheme, (rows, columns), columnwise).items():
                shape = [size or 0 for size in sizes]
                own[part] = parts[part][places[part] : places[part] + prod(shape)].view(shape)
                places[part] += prod(shape)
            copies.append(
                QuantizedCopy(own["codes"], own["scales"], own.get("amax"), scheme, (rows, columns), columnwise)
            )
            if source is None:
                sources.append(None)
            else:
                sources.append(source[group] if limits is None else source[limits[group] : limits[group + 1]])
        return copies, sources

    return split


def bind_product(_call: MeasureProductCall, _: Quantizers) -> Bound:
    """Measure the result of a GEMM."""

    def measure_product(computed: torch.Tensor, product: torch.Tensor, *bias: torch.Tensor) -> tuple[torch.Tensor]:
        return (measuring.measure_product(computed, product, bias[0] if bias else None),)

    return measure_product, None


def bind_influence(_call: MeasureInfluenceCall, _: Quantizers) -> Bound:
    """Measure what the error of a GEMM does to the loss."""

    def measure_influence(
        computed: torch.Tensor, product: torch.Tensor, gradient: torch.Tensor, *bias: torch.Tensor
    ) -> tuple[torch.Tensor]:
        return (measuring.measure_influence(computed, product, gradient, bias[0] if bias else None),)

    return measure_influence, None


def bind_switch(_call: SwitchCall, _: Quantizers) -> Bound:
    """Choose one of two results."""

    def switch(on: torch.Tensor, quantized: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor]:
        return (quantized if on.item() else exact,)

    return switch, None
