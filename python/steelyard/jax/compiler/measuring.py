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
from steelyard.jax.copies import CopySpec
from steelyard.jax.nodes import Node
from steelyard.runtime.cpu import measuring


@register_pytree_node_class
class Measured(Node):
    """What a measuring op reads: the numbers are counted where the program returns them."""

    leaves = ("arrays",)
    static = ("spec",)

    arrays: tuple[Any, ...]
    spec: CopySpec | None
    """Of a quantized copy; None for a product."""

    def __init__(self, arrays: tuple[Any, ...], spec: CopySpec | None):
        self.arrays, self.spec = arrays, spec


def measured_results(function: ir.Operation) -> dict[int, list[str]]:
    """The results of a function that are numbers, and what each is of."""
    return {
        number: [ir.StringAttr(name).value for name in ir.ArrayAttr(own[MEASURES])]
        for number, own in enumerate(result_attributes(function))
        if MEASURES in own
    }


def run_measure_product(_: ir.Operation, operands: list[Any]) -> list[Any]:
    """Run a `scaled.measure_product`."""
    return [Measured(tuple(operands), None)]


def run_measure_quantize(op: ir.Operation, operands: list[Any]) -> list[Any]:
    """Run a `scaled.measure_quantize`."""
    view: Any = op.opview
    copy, source = operands[0].copy_of(view.usage.value), operands[1]
    # The rows of experts lie in blocks that only their GEMM knows; what it loses is measured by its product.
    if scaled_info_of(view.quantized).groups:
        return [None]
    values = source.reshape(-1, source.shape[-1])
    is_own = copy.spec.columnwise == (view.usage.value == "columnwise")
    return [Measured((*copy.parts, values if is_own else values.T), copy.spec)]


def hand_out(measured: Measured | None, names: Sequence[str], collector: Collector | None) -> None:
    """Give numbers to the collector whenever the program that is traced runs: in a loop, for each trip."""
    if measured is None or collector is None:
        return
    if measured.spec is None:
        jax.debug.callback(partial(_take_product, collector, names), *measured.arrays)
    else:
        jax.debug.callback(partial(_take_copy, collector, names, measured.spec), *measured.arrays)


def _take_product(collector: Collector, names: Sequence[str], computed: Any, product: Any) -> None:
    found, wanted = (_floats(each).reshape(-1, each.shape[-1]) for each in (computed, product))
    collector.add(None, dict.fromkeys(names, measuring.measure_product(found, wanted, None)))


def _take_copy(
    collector: Collector, names: Sequence[str], spec: CopySpec, codes: Any, scales: Any, amax: Any, source: Any
) -> None:
    known = None if amax is None else torch.from_numpy(np.array(amax))
    copy = QuantizedCopy(_bytes(codes), _scales(scales), known, spec.scheme, spec.shape, spec.columnwise)
    collector.add(None, dict.fromkeys(names, measuring.measure_copy(copy, _floats(source))))


def _bytes(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array).view(np.uint8))


def _scales(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array)) if np.asarray(array).dtype == np.float32 else _bytes(array)


def _floats(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))


def first_output(returned: Any) -> torch.Tensor:
    """The result by which functions are compared: the first that is floats."""
    for leaf in jax.tree.leaves(returned):
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            return _floats(leaf)
    raise UnsupportedModelError("a function whose error is measured must return floats, also in a pytree, got none")
