"""Norms, activations and sums that are quantized as they are produced, never written to memory in between."""

from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import torch

from steelyard.errors import require, shown
from steelyard.formats.checks import check_dtype
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import (
    ACTIVATIONS,
    DTYPES,
    PRODUCERS,
    check_tensor,
    matrix_of,
)
from steelyard.runtime.cpu.quantization import check_schemes, quantize, quantize_source

_NO_MATRIX = (0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class _Kind:
    """How a producer reads its inputs: matrices, then vectors of a row's length, then epsilon; and the names that the
    native module knows it by."""

    name: str
    activation_name: str = "none"
    matrices: int = 1
    vectors: int = 0

    @property
    def inputs(self) -> int:
        return self.matrices + (self.vectors + 1 if self.vectors else 0)

    @cached_property
    def numbers(self) -> tuple[int, int]:
        """Kind and activation, as the native module numbers them."""
        return PRODUCERS[self.name], ACTIVATIONS[self.activation_name]


_KINDS = {
    "relu": _Kind("activation", "relu"),
    "gelu": _Kind("activation", "gelu"),
    "gelu_tanh": _Kind("activation", "gelu_tanh"),
    "silu": _Kind("activation", "silu"),
    "silu_and_multiply": _Kind("silu_and_multiply", matrices=2),
    "add": _Kind("add", matrices=2),
    "layer_norm": _Kind("layer_norm", vectors=2),
    "rms_norm": _Kind("rms_norm", vectors=1),
}

_COSTLY = ("gelu", "gelu_tanh", "silu", "silu_and_multiply")
_REUSED_BYTES = 32 << 20


@dataclass(frozen=True)
class Source:
    """A producer as kernels take it, with the tensors that it reads."""

    arguments: tuple
    matrix: tuple  # of the result: no data yet, shape, dtype, strides of the first input
    shape: torch.Size
    tensors: list[torch.Tensor]


def produce(producer: str, inputs: tuple, dtype: torch.dtype) -> torch.Tensor:
    """What a producer makes, computed in float32 and rounded once.

    Producers and inputs: "relu", "gelu", "gelu_tanh", "silu" (x,); "silu_and_multiply", "add" (a, b); "layer_norm"
    (x, weight, bias, epsilon) and "rms_norm" (x, weight, epsilon) over the last dim, None for no weight or bias.
    """
    return produce_whole(make_source(producer, inputs, dtype), dtype)


def produce_whole(source: Source, dtype: torch.dtype, amax: torch.Tensor | None = None) -> torch.Tensor:
    """The whole result; an `amax` of 0 is raised to its own."""
    out = torch.empty(source.shape, dtype=dtype)
    if out.numel() > 0:
        _, _, rows, columns, *_ = source.matrix
        target = out.data_ptr(), DTYPES[dtype], rows, columns, columns, 1
        pointer = 0 if amax is None else amax.data_ptr()
        _cpu.produce(target, source.arguments, pointer, torch.get_num_threads())
    return out


def quantize_produced(
    producer: str,
    inputs: tuple,
    row: Scheme | None,
    col: Scheme | None,
    *,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | tuple | None = None,
    rng: tuple[int, int] | None = None,
    dtype: torch.dtype,
) -> tuple[QuantizedCopy | None, QuantizedCopy | None]:
    """`quantize(produce(producer, inputs, dtype), row, col, ...)`, the same bytes, without the tensor in between.

    Schemes that need an amax first produce twice, except where keeping the tensor is faster. A rowwise copy with the
    Hadamard transform is made from the whole tensor: it is quantized down the columns of its transpose.
    """
    check_schemes(row, col)
    source = make_source(producer, inputs, dtype)
    finds_any = any(finds_amax(scheme, scale, amax) for scheme in (row, col))
    if (row is not None and row.rht) or (finds_any and is_kept(producer, source, dtype)):
        found = torch.zeros(()) if amax is None else None
        tensor = produce_whole(source, dtype, found)
        amaxes = amax if found is None else tuple(found if has_plain_amax(scheme) else None for scheme in (row, col))
        return quantize(tensor, row, col, scale=scale, amax=amaxes, rng=rng)
    return quantize_source(source.matrix, row, col, scale=scale, amax=amax, rng=rng, producer=source.arguments)


def has_plain_amax(scheme: Scheme | None) -> bool:
    """The scheme's amax is that of the whole tensor as it is."""
    return scheme is not None and (scheme.family == "tensor" or (scheme.second_level == "tensor" and not scheme.rht))


def finds_amax(scheme: Scheme | None, scale, amax) -> bool:
    """Codes wait for a pass over all values."""
    if scheme is None or amax is not None:
        return False
    return scheme.family in ("nvfp4", "row") or (scheme.family == "tensor" and scale is None)


def is_costly(producer: str) -> bool:
    """Exponentials cost more than memory, so that they are computed once where an amax is found first."""
    return producer in _COSTLY


def is_kept(producer: str, source: Source, dtype: torch.dtype) -> bool:
    """Not in memory that is new: an allocator gives large blocks back each time."""
    return is_costly(producer) and (dtype != torch.float32 or source.shape.numel() * 4 <= _REUSED_BYTES)


def describe(producer: str, first: int, epsilon: float, vectors: int | None = None) -> tuple:
    """A producer whose inputs are among the values of a program's call from a position on, as the native module takes
    it; `vectors` is how many there are, where not all."""
    kind = _KINDS[producer]
    return *kind.numbers, first, kind.matrices, kind.vectors if vectors is None else vectors, epsilon


def make_source(producer: str, inputs: tuple, dtype: torch.dtype) -> Source:
    """A producer with its inputs, checked."""
    known = isinstance(producer, str) and producer in _KINDS
    require(known, "producer_kind", f"producer must be one of {', '.join(_KINDS)}, got {shown(producer)}")
    kind = _KINDS[producer]
    require(isinstance(inputs, tuple), "producer_inputs", f"inputs must be a tuple, got {type(inputs).__name__}")
    require(
        len(inputs) == kind.inputs,
        "producer_inputs",
        f"{producer} must have {kind.inputs} inputs, got {len(inputs)}",
    )
    check_dtype(dtype, "dtype", "producer_dtype")
    matrices = [matrix_of(tensor) for tensor in inputs[: kind.matrices]]
    shapes = [tuple(tensor.shape) for tensor in inputs[: kind.matrices]]
    require(len(set(shapes)) == 1, "producer_inputs", f"inputs of {producer} must have one shape, got {shapes}")
    columns = matrices[0][1][3]
    vectors = [_vector(tensor, columns, producer) for tensor in inputs[kind.matrices : kind.matrices + kind.vectors]]
    epsilon = _epsilon(inputs[-1], producer) if kind.vectors else 0.0
    arguments = [arguments for _, arguments in matrices] + [_NO_MATRIX] * (2 - kind.matrices)
    arguments += vectors + [_NO_MATRIX] * (2 - kind.vectors)
    _, _, rows, _, *strides = matrices[0][1]
    return Source(
        (*kind.numbers, *arguments, epsilon),
        (0, DTYPES[dtype], rows, columns, *strides),
        inputs[0].shape,
        [tensor for tensor, _ in matrices],
    )


def _epsilon(value: Any, producer: str) -> float:
    require(
        isinstance(value, Real) and not isinstance(value, bool),
        "producer_inputs",
        f"epsilon of {producer} must be a number, got {shown(value)}",
    )
    return float(value)


def _vector(tensor: torch.Tensor | None, columns: int, producer: str) -> tuple:
    if tensor is None:
        return _NO_MATRIX
    check_tensor(tensor, f"weight and bias of {producer}")
    require(
        tuple(tensor.shape) == (columns,) and tensor.dtype in DTYPES and not tensor.is_neg(),
        "producer_inputs",
        f"weight and bias of {producer} must have shape ({columns},) of float32, bfloat16 or float16, "
        f"got {tuple(tensor.shape)} of {'negated ' if tensor.is_neg() else ''}{tensor.dtype}",
    )
    return tensor.data_ptr(), DTYPES[tensor.dtype], 1, columns, 0, tensor.stride(0)
