"""What low precision costs, on the CPU: of a quantized copy, and of a product. See `steelyard.formats.statistics`."""

from dataclasses import replace

import numpy as np
import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.statistics import (
    COPY_FIELDS,
    INFLUENCE_FIELDS,
    MAXIMA,
    PRODUCT_FIELDS,
    SCALE_BINS,
    SLACK,
    SMALLEST_EXPONENT,
    code_count,
    copy_length,
    largest_code,
)
from steelyard.reference import hadamard
from steelyard.reference.casts import E4M3, decode, decode_e8m0
from steelyard.reference.scales import nvfp4_range
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.decoding import dequantize


def measure_copy(copy: QuantizedCopy, source: torch.Tensor | None) -> torch.Tensor:
    """The statistics of a copy of `source`; without one, of what it decodes to, with errors that are NaN.

    Where the copy has the random Hadamard transform, the values are those after it.
    """
    plain = _without_transform(copy)
    decoded = dequantize(plain)
    values = decoded if source is None else _values(source, copy)
    limit = dequantize(replace(plain, codes=torch.full_like(plain.codes, largest_code(copy.scheme))))
    numbers = torch.zeros(copy_length(copy.scheme), dtype=torch.float64)
    found = _cpu.measure_values(
        values.data_ptr(), decoded.data_ptr(), limit.data_ptr(), values.numel(), SLACK, torch.get_num_threads()
    )
    scales = _effective_scales(copy).ravel()
    known = scales[np.isfinite(scales) & (scales != 0)]
    numbers[: len(COPY_FIELDS)] = torch.tensor(
        [values.numel(), *found, known.size, np.log2(known, dtype=np.float64).sum()], dtype=torch.float64
    )
    if source is None:
        numbers[COPY_FIELDS.index("error_square_sum")] = torch.nan
    codes = numbers[len(COPY_FIELDS) : len(COPY_FIELDS) + code_count(copy.scheme)]
    rows, columns = plain.stored_shape
    _cpu.count_codes(plain.codes.data_ptr(), rows, columns, code_count(copy.scheme) == 16, codes.data_ptr())
    numbers[-SCALE_BINS:] = _count_scales(scales)
    return numbers


def measure_groups(copies: list[QuantizedCopy], sources: list[torch.Tensor] | list[None]) -> torch.Tensor:
    """The statistics of several copies with the same scheme, as one."""
    return add_numbers([measure_copy(*pair) for pair in zip(copies, sources, strict=True)], COPY_FIELDS)


def add_numbers(each: list[torch.Tensor], fields: tuple[str, ...]) -> torch.Tensor:
    """Statistics of several calls as one: the sums, or of some fields the largest. A NaN stays."""
    together = torch.stack(each)
    total = together.sum(0)
    for name in set(MAXIMA).intersection(fields):
        total[fields.index(name)] = together[:, fields.index(name)].max()
    return total


def measure_product(computed: torch.Tensor, product: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The statistics of a GEMM's result, without its bias, beside the same product in high precision."""
    computed, product = _floats(computed), _floats(product)
    added = None if bias is None else _floats(bias)
    found = _cpu.measure_product(
        computed.data_ptr(),
        product.data_ptr(),
        0 if added is None else added.data_ptr(),
        *_matrix(product),
        torch.get_num_threads(),
    )
    assert len(found) + 1 == len(PRODUCT_FIELDS)
    return torch.tensor([product.numel(), *found], dtype=torch.float64)


def measure_influence(
    computed: torch.Tensor, product: torch.Tensor, gradient: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """How far a GEMM's error moves the loss, row by row."""
    computed, product, gradient = _floats(computed), _floats(product), _floats(gradient)
    added = None if bias is None else _floats(bias)
    rows, columns = _matrix(product)
    found = _cpu.measure_influence(
        computed.data_ptr(),
        product.data_ptr(),
        gradient.data_ptr(),
        0 if added is None else added.data_ptr(),
        rows,
        columns,
        torch.get_num_threads(),
    )
    assert len(INFLUENCE_FIELDS) == 2
    return torch.tensor([rows, found], dtype=torch.float64)


def _matrix(x: torch.Tensor) -> tuple[int, int]:
    return x.shape[:-1].numel(), x.shape[-1]


def _floats(x: torch.Tensor) -> torch.Tensor:
    return x.detach().float().contiguous()


def _without_transform(copy: QuantizedCopy) -> QuantizedCopy:
    """A copy with the random Hadamard transform as one of the transformed values, padding included."""
    if not copy.scheme.rht:
        return copy
    columns, rows = copy.stored_shape
    return replace(copy, scheme=replace(copy.scheme, rht=False), shape=(rows, columns))


def _values(source: torch.Tensor, copy: QuantizedCopy) -> torch.Tensor:
    """What was quantized, in the order of the matrix that it decodes to."""
    matrix = _floats(source).view(copy.shape)
    if not copy.scheme.rht:
        return matrix
    transformed = hadamard.transform(np.ascontiguousarray(matrix.numpy().T))
    return torch.from_numpy(np.ascontiguousarray(transformed.T))


def _count_scales(scales: np.ndarray) -> torch.Tensor:
    """How many scales are in each bin."""
    is_known = np.isfinite(scales) & (scales != 0)
    _, exponents = np.frexp(np.abs(scales[is_known]))
    bins = np.where(np.isfinite(scales), 0, SCALE_BINS - 1)
    # frexp gives x = m * 2^e with m from 0.5 to 1.
    bins[is_known] = exponents - SMALLEST_EXPONENT
    return torch.from_numpy(np.bincount(bins, minlength=SCALE_BINS).astype(np.float64))


def _effective_scales(copy: QuantizedCopy) -> np.ndarray:
    """What codes are multiplied by: the scales that are stored, each with what is above it."""
    scheme, scales = copy.scheme, copy.scales.numpy()
    if scheme.scale == "f32":
        return scales
    if scheme.scale == "f8E8M0FNU":
        return decode_e8m0(scales)
    assert copy.amax is not None, "two levels of scales"
    amax, decoded = copy.amax.numpy(), decode(scales, E4M3)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        if scheme.is_static:
            return decoded / amax if scheme.source == "divisor" else decoded * amax
        amax = amax[:, None] if scheme.second_level == "row" else amax
        return decoded * amax * np.float32(1 / nvfp4_range(scheme))
