"""The ops of a program that measure what low precision costs: they hand their numbers out of it while it runs."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from jax.tree_util import register_pytree_node_class
from torch_mlir import ir

from steelyard.dialect.types import scaled_info_of
from steelyard.errors import UnsupportedModelError
from steelyard.formats.copies import QuantizedCopy
from steelyard.insight.collecting import Collector
from steelyard.ir.attributes import MEASURES
from steelyard.ir.functions import result_attributes
from steelyard.jax import grouped_layout
from steelyard.jax.copies import CopySpec, Parts, flat_parts
from steelyard.jax.nodes import Node
from steelyard.runtime.cpu import measuring


@register_pytree_node_class
class Measured(Node):
    """What a measuring op reads: the numbers are counted where the program returns them."""

    leaves = ("parts", "arrays")
    static = ("spec",)

    parts: Parts | None
    """Of a quantized copy, or of copies in groups; None for a product."""
    arrays: tuple[Any, ...]
    """What the copy was made of, and where groups end; or both results of a product."""
    spec: CopySpec | None

    def __init__(self, parts: Parts | None, arrays: tuple[Any, ...], spec: CopySpec | None):
        self.parts, self.arrays, self.spec = parts, arrays, spec


def measured_results(function: ir.Operation) -> dict[int, list[str]]:
    """The results of a function that are numbers, and what each is of."""
    return {
        number: [ir.StringAttr(name).value for name in ir.ArrayAttr(own[MEASURES])]
        for number, own in enumerate(result_attributes(function))
        if MEASURES in own
    }


def run_measure_product(_: ir.Operation, operands: list[Any]) -> list[Any]:
    """Run a `scaled.measure_product`."""
    return [Measured(None, tuple(operands), None)]


def run_measure_quantize(op: ir.Operation, operands: list[Any]) -> list[Any]:
    """Run a `scaled.measure_quantize`."""
    view: Any = op.opview
    copy, source, *ends = operands[0].copy_of(view.usage.value), *operands[1:]
    is_stack = len(scaled_info_of(view.quantized).shape) > 2 and scaled_info_of(view.quantized).groups > 0
    values = source if is_stack else source.reshape(-1, source.shape[-1])
    is_own = copy.spec.columnwise == (view.usage.value == "columnwise")
    return [Measured(copy.parts, (values if is_own else jax.numpy.swapaxes(values, -1, -2), *ends), copy.spec)]


def count_call(collector: Collector | None) -> None:
    """Count a call whenever the program that is traced runs."""
    if collector is not None:
        jax.debug.callback(partial(_count, collector))


def _count(collector: Collector) -> None:
    collector.steps += 1


def hand_out(measured: Measured, names: Sequence[str], collector: Collector | None) -> None:
    """Give numbers to the collector whenever the program that is traced runs: in a loop, for each trip."""
    if collector is None:
        return
    if measured.spec is None:
        jax.debug.callback(partial(_take_product, collector, names), *measured.arrays)
    else:
        jax.debug.callback(partial(_take_copy, collector, names, measured.spec), measured.parts, *measured.arrays)


def _take_product(collector: Collector, names: Sequence[str], computed: Any, product: Any) -> None:
    found, wanted = (floats(each).reshape(-1, each.shape[-1]) for each in (computed, product))
    collector.add(None, dict.fromkeys(names, measuring.measure_product(found, wanted, None)))


def _take_copy(
    collector: Collector, names: Sequence[str], spec: CopySpec, parts: Parts, source: Any, ends: Any = None
) -> None:
    copies = _copies(spec, Parts(*map(_array, parts)), np.asarray(source), _array(ends))
    if copies:
        numbers = measuring.measure_groups([copy for copy, _ in copies], [values for _, values in copies])
        collector.add(None, dict.fromkeys(names, numbers))


def _copies(spec: CopySpec, parts: Parts, source: Any, ends: Any) -> list[tuple[QuantizedCopy, torch.Tensor]]:
    """Each matrix that was quantized by itself, with what it was made of."""
    if ends is not None:
        sizes = np.diff(ends, prepend=0)
        pieces = zip(grouped_layout.cut(parts, spec, sizes), np.split(source, ends)[: len(ends)], strict=True)
        return [(_copy(*own), floats(values)) for own, values in pieces if values.size]
    if source.ndim == 2:
        return [(_copy(spec, parts), floats(source))]
    each = [Parts(*(part[i] for part in flat_parts(parts))) for i in range(len(source))]
    return [(_copy(spec, own), floats(values)) for own, values in zip(each, source, strict=True)]


def _copy(spec: CopySpec, parts: Parts) -> QuantizedCopy:
    known = None if parts.amax is None else torch.from_numpy(np.array(parts.amax))
    return QuantizedCopy(_bytes(parts.codes), _scales(parts.scales), known, spec.scheme, spec.shape, spec.columnwise)


def _array(part: Any) -> Any:
    return None if part is None else np.asarray(part)


def _bytes(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array).view(np.uint8))


def _scales(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array)) if np.asarray(array).dtype == np.float32 else _bytes(array)


def floats(array: Any) -> torch.Tensor:
    """An array for the kernels that measure."""
    return torch.from_numpy(np.array(array, dtype=np.float32))


def first_output(returned: Any) -> jax.Array:
    """The result by which functions are compared: the first that is floats."""
    for leaf in jax.tree.leaves(returned):
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            return leaf
    raise UnsupportedModelError("a function whose error is measured must return floats, also in a pytree, got none")
