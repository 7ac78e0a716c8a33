"""Kernels of the CPU, bound to a program: no argument is checked, because the program made them all.

Each binding gives `run` and `allocate`. With `allocate`, which makes a call's results from its operands, `run` takes
the operands and then the results; parts of quantized tensors are addresses to `run`. Without, it takes tensors and
returns the results.
"""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import part_shapes, stored_shape
from steelyard.formats.schemes import Scheme
from steelyard.ir.kernel_calls import Kernel
from steelyard.reference.gemm import EPILOGUES
from steelyard.runtime import _cpu, dtypes
from steelyard.runtime.cpu import decoding, delayed, producers, quantization
from steelyard.runtime.cpu.arguments import DTYPES, flat, plain_matrix, scheme_bits
from steelyard.runtime.cpu.gemm import PACKED
from steelyard.runtime.ranks import largest_of_ranks

_NO_MATRIX = (0, 0, 0, 0, 0, 0)
_WORD = 0xFFFFFFFFFFFFFFFF
_COPIES = (("row", False), ("col", True))

Bound = tuple[Callable, Callable | None]


class _Destination:
    """Where the parts of one copy are among the values of a call."""

    def __init__(self, kernel: Kernel, copy: str, has_amax: bool):
        self._scheme = kernel.config[copy]
        assert isinstance(self._scheme, Scheme)
        first = len(kernel.operands)
        names = {name: first + i for i, name in enumerate(kernel.results)}
        self._bits, self._epsilon = scheme_bits(self._scheme), self._scheme.epsilon
        self._codes, self._scales = names[f"{copy}.codes"], names[f"{copy}.scales"]
        self._amax = names.get(f"{copy}.amax")
        self._has_amax = has_amax and self._amax is not None

    def arguments(self, values: tuple) -> tuple:
        """The copy as the quantize kernel takes it."""
        amax = 0 if self._amax is None else values[self._amax]
        return self._bits, self._epsilon, values[self._codes], values[self._scales], amax, self._has_amax, False

    def put_amax(self, amax: torch.Tensor, values: tuple) -> None:
        """Put an amax that is known before in its place."""
        if self._has_amax and self._amax is not None:
            ctypes.memmove(values[self._amax], amax.contiguous().data_ptr(), amax.numel() * 4)


def _destinations(kernel: Kernel, *, has_amax: bool) -> list[_Destination | None]:
    return [_Destination(kernel, copy, has_amax) if copy in kernel.config else None for copy, _ in _COPIES]


def _bind_quantize(kernel: Kernel) -> Bound:
    scale, amax, rng = (kernel.operands.index(n) if n in kernel.operands else None for n in ("scale", "amax", "rng"))
    row, col = _destinations(kernel, has_amax=amax is not None)
    native, threads = _cpu.quantize, torch.get_num_threads

    def quantize(*values: Any) -> None:
        source = flat(values[0])
        if amax is not None:
            for copy in (row, col):
                if copy is not None:
                    copy.put_amax(values[amax], values)
        seed, offset = (0, 0) if rng is None else (word & _WORD for word in values[rng].tolist())
        native(
            plain_matrix(source),
            None if row is None else row.arguments(values),
            None if col is None else col.arguments(values),
            0 if scale is None else values[scale].data_ptr(),
            seed,
            offset,
            threads(),
            None,
        )

    return quantize, _allocate_copies(kernel)


def _bind_produce_quantize(kernel: Kernel) -> Bound:
    count = len([name for name in kernel.operands if name != "scale"])
    scale = kernel.operands.index("scale") if "scale" in kernel.operands else None
    producer, epsilon = str(kernel.config["producer"]), kernel.config["epsilon"]
    assert isinstance(epsilon, float)
    make_source = producers.bind_source(producer, epsilon)
    schemes = [scheme for scheme in (kernel.config.get("row"), kernel.config.get("col")) if isinstance(scheme, Scheme)]
    two_passes = any(producers.finds_amax(scheme, scale, None) for scheme in schemes)
    plain = _destinations(kernel, has_amax=False)
    known = [
        _Destination(kernel, copy, producers.has_plain_amax(kernel.config[copy])) if copy in kernel.config else None  # pyright: ignore[reportArgumentType]
        for copy, _ in _COPIES
    ]

    def run(values: tuple, copies: list[_Destination | None], matrix: tuple, arguments: tuple | None) -> None:
        row, col = (None if copy is None else copy.arguments(values) for copy in copies)
        pointer = 0 if scale is None else values[scale].data_ptr()
        _cpu.quantize(matrix, row, col, pointer, 0, 0, torch.get_num_threads(), arguments)

    def produce_quantize(*values: Any) -> None:
        inputs = values[:count]
        dtype = inputs[0].dtype
        source = make_source(inputs)
        if not (two_passes and producers.is_kept(producer, source, dtype)):
            run(values, plain, source.matrix, source.arguments)
            return
        found = torch.zeros(())
        produced = producers.produce_whole(source, dtype, found)
        for copy in known:
            if copy is not None:
                copy.put_amax(found, values)
        run(values, known, plain_matrix(produced), None)

    return produce_quantize, _allocate_copies(kernel)


def _allocate_copies(kernel: Kernel) -> Callable:
    copies = [(kernel.config[copy], columnwise) for copy, columnwise in _COPIES if copy in kernel.config]

    def allocate(source: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        shape = source.shape[:-1].numel(), source.shape[-1]
        return tuple(
            torch.empty([size or 0 for size in sizes], dtype=dtypes.DTYPES[dtype])
            for scheme, columnwise in copies
            for sizes, dtype in part_shapes(scheme, shape, columnwise).values()  # pyright: ignore[reportArgumentType]
        )

    return allocate


class _Operand:
    """Where an operand of a GEMM is among the values of a call."""

    def __init__(self, kernel: Kernel, name: str, columnwise: bool):
        scheme, shape = kernel.config[name], kernel.config[f"{name}_shape"]
        assert isinstance(scheme, Scheme)
        assert isinstance(shape, tuple)
        names = {operand: i for i, operand in enumerate(kernel.operands)}
        self._is_packed = scheme.layout == "packed"
        bits = scheme_bits(replace(scheme, layout="compact")) | (PACKED if self._is_packed else 0)
        self._head = bits, columnwise
        self._codes = names[f"{name}.packed" if self._is_packed else f"{name}.codes"]
        self._scales, self._amax = names.get(f"{name}.scales", -1), names.get(f"{name}.amax")
        self._known = prod(size for size in shape[:-1] if size is not None)
        self._is_static = None not in shape[:-1]
        self._columns = shape[-1]

    def rows(self, sizes: tuple) -> int:
        """Rows of the matrix: tokens, or a weight's."""
        return self._known if self._is_static else self._known * prod(sizes)

    def arguments(self, values: tuple, rows: int) -> tuple:
        """The operand as the kernel takes it."""
        if self._is_packed:
            return *self._head, values[self._codes], 0, 0, rows, self._columns
        amax = 0 if self._amax is None else values[self._amax]
        return *self._head, values[self._codes], values[self._scales], amax, rows, self._columns


def _bind_gemm(kernel: Kernel) -> Bound:
    kind = str(kernel.config["kind"])
    lhs = _Operand(kernel, "lhs", kind == "wgrad")
    rhs = _Operand(kernel, "rhs", kind != "fprop")
    bias, residual, accumulator = (
        kernel.operands.index(name) if name in kernel.operands else None for name in ("bias", "residual", "accumulator")
    )
    sizes_begin, sizes_end = len(kernel.operands) - kernel.operands.count("size"), len(kernel.operands)
    activation = list(EPILOGUES).index(str(kernel.config["epilogue"]))
    keeps, preactivation = "preactivation" in kernel.results, sizes_end + 1
    has_epilogue = activation > 0 or keeps
    native, threads = _cpu.qgemm, torch.get_num_threads

    def gemm(*values: Any) -> None:
        out = values[sizes_end]
        if out.numel() == 0:
            return
        sizes = values[sizes_begin:sizes_end]
        target = plain_matrix(out)
        kept = [] if residual is None else [flat(values[residual])]
        addend = plain_matrix(kept[0]) if kept else _NO_MATRIX
        if accumulator is not None:
            kept.append(flat(values[accumulator]))
        added = plain_matrix(kept[-1]) if accumulator is not None else _NO_MATRIX
        native(
            lhs.arguments(values, lhs.rows(sizes)),
            rhs.arguments(values, rhs.rows(sizes)),
            _NO_MATRIX if bias is None else _row(values[bias], target),
            added if has_epilogue or residual is None else addend,
            target,
            threads(),
            (activation, addend, plain_matrix(values[preactivation]) if keeps else _NO_MATRIX)
            if has_epilogue
            else None,
        )

    return gemm, _allocate_products(kernel, sizes_begin, sizes_end)


def _bind_batched_gemm(kernel: Kernel) -> Bound:
    """One product for each entry of the batch dims; blocks of scales run along rows, so that each has its own."""
    batch_dims, shape = kernel.config["batch_dims"], kernel.config["lhs_shape"]
    scheme = kernel.config["lhs"]
    assert isinstance(batch_dims, int)
    assert isinstance(shape, tuple)
    assert isinstance(scheme, Scheme)
    bits, columns = scheme_bits(scheme), shape[-1]
    dtype = dtypes.result_dtype(kernel.types[0])
    names = {name: i for i, name in enumerate(kernel.operands)}
    parts = [[names.get(f"{side}.{part}") for part in ("codes", "scales", "amax")] for side in ("lhs", "rhs")]

    def batched_gemm(*values: Any) -> tuple[torch.Tensor]:
        sizes = iter(values[len(values) - kernel.operands.count("size") :])
        lead = [next(sizes) if size is None else size for size in shape[:-1]]
        count, tokens = prod(lead[:batch_dims]), prod(lead[batch_dims:])
        tensors: list[list[Any]] = [[None if i is None else values[i] for i in part] for part in parts]
        rows = tensors[1][0].shape[0] // count if count else 0
        out = torch.empty((*lead, rows), dtype=dtype)
        for entry in range(count if out.numel() else 0):
            left, right = (
                _entry(bits, tensor, entry, each, columns) for tensor, each in zip(tensors, (tokens, rows), strict=True)
            )
            address = out.data_ptr() + entry * tokens * rows * dtype.itemsize
            target = address, DTYPES[dtype], tokens, rows, rows, 1
            _cpu.qgemm(left, right, _NO_MATRIX, _NO_MATRIX, target, torch.get_num_threads(), None)
        return (out,)

    return batched_gemm, None


def _entry(bits: int, tensors: list, entry: int, rows: int, columns: Any) -> tuple:
    """The rows of one entry of a batch as an operand."""
    codes, scales, amax = tensors
    first = entry * rows
    address = scales.data_ptr() + (first * scales.stride(0) * scales.itemsize if scales.dim() == 2 else 0)
    # One amax is the tensor's; several are those of the rows.
    second = 0 if amax is None else amax.data_ptr() + (first * 4 if amax.dim() else 0)
    return bits, False, codes.data_ptr() + first * codes.stride(0), address, second, rows, columns


def _row(bias: torch.Tensor, target: tuple) -> tuple:
    """A vector that every row of the target gets."""
    return bias.data_ptr(), DTYPES[bias.dtype], target[2], target[3], 0, bias.stride(0)


def _allocate_products(kernel: Kernel, sizes_begin: int, sizes_end: int) -> Callable:
    shapes = [dtypes.shape_of(type_) for type_ in kernel.types]
    types = [dtypes.result_dtype(type_) for type_ in kernel.types]

    def allocate(*operands: Any) -> tuple[torch.Tensor, ...]:
        made = []
        for shape, dtype in zip(shapes, types, strict=True):
            sizes = iter(operands[sizes_begin:sizes_end])
            made.append(torch.empty([next(sizes) if size is None else size for size in shape], dtype=dtype))
        return tuple(made)

    return allocate


def _bind_transpose(kernel: Kernel) -> Bound:
    source, columnwise = ("row", False) if "from_row" in kernel.config else ("col", True)
    scheme = kernel.config[f"from_{source}"]

    def transpose(codes: torch.Tensor, scales: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        amax, sizes = (rest[0], rest[1:]) if f"{source}.amax" in kernel.operands else (None, rest)
        turned = decoding.transpose(QuantizedCopy(codes, scales, amax, scheme, _shape(kernel, sizes), columnwise))  # pyright: ignore[reportArgumentType]
        parts = (turned.codes, turned.scales, turned.amax)
        return tuple(part for part in parts if part is not None)

    return transpose, None


def _bind_pack(kernel: Kernel) -> Bound:
    names = {name: i for i, name in enumerate((*kernel.operands, *kernel.results))}
    copies = []
    for copy, columnwise in _COPIES:
        scheme = kernel.config.get(f"from_{copy}")
        if isinstance(scheme, Scheme):
            parts = [names[f"{copy}.{part}"] for part in ("codes", "scales", "amax")]
            stored = stored_shape(scheme, _shape(kernel, ()), columnwise)
            copies.append((parts, (*stored, scheme.second_level == "row"), names[f"{copy}.packed"]))

    def pack(*values: Any) -> None:
        for parts, described, packed in copies:
            _cpu.pack_weight((*(values[part] for part in parts), *described), values[packed])

    return pack, _allocate_products(kernel, 0, 0)


def _bind_dequantize(kernel: Kernel) -> Bound:
    scheme, columnwise = kernel.config["scheme"], kernel.config["usage"] == "columnwise"
    dtype = dtypes.result_dtype(kernel.types[0])
    shape = kernel.config["shape"]
    assert isinstance(shape, tuple)

    def dequantize(codes: torch.Tensor, scales: torch.Tensor, *rest: Any) -> tuple[torch.Tensor]:
        amax, sizes = (rest[0], rest[1:]) if "amax" in kernel.operands else (None, rest)
        copy = QuantizedCopy(codes, scales, amax, scheme, _shape(kernel, sizes), columnwise)  # pyright: ignore[reportArgumentType]
        lead = iter(sizes)
        return (decoding.dequantize(copy, dtype).view([next(lead) if size is None else size for size in shape]),)

    return dequantize, None


def _shape(kernel: Kernel, sizes: tuple) -> tuple[int, int]:
    shape = kernel.config["shape"]
    assert isinstance(shape, tuple)
    assert shape[-1] is not None
    return prod(size for size in shape[:-1] if size is not None) * prod(sizes), shape[-1]


def _bind_amax(kernel: Kernel) -> Bound:
    per_row, rht = bool(kernel.config["per_row"]), bool(kernel.config["rht"])

    def amax(source: torch.Tensor) -> tuple[torch.Tensor]:
        return (
            quantization.amax(source.detach(), rht=rht, per_row=per_row).view(source.shape[:-1] if per_row else ()),
        )

    return amax, None


def _bind_update_scale(kernel: Kernel) -> Bound:
    scheme, margin, algorithm = (kernel.config[name] for name in ("scheme", "margin", "algorithm"))
    reduce = bool(kernel.config.get("reduce"))

    def update_scale(scale: torch.Tensor, history: torch.Tensor, amax: torch.Tensor) -> tuple:
        history = history.clone()
        history[0] = largest_of_ranks(amax) if reduce else amax
        return delayed.update_scale(scale, history, scheme, margin=margin, algorithm=algorithm)  # pyright: ignore[reportArgumentType]

    return update_scale, None


def _bind_advance_rng(kernel: Kernel) -> Bound:
    def advance_rng(state: torch.Tensor) -> tuple[torch.Tensor]:
        return (state + torch.tensor([0, 1]),)

    return advance_rng, None


BINDINGS: dict[str, Callable[[Kernel], Bound]] = {
    "quantize": _bind_quantize,
    "produce_quantize": _bind_produce_quantize,
    "gemm": _bind_gemm,
    "batched_gemm": _bind_batched_gemm,
    "transpose": _bind_transpose,
    "pack": _bind_pack,
    "dequantize": _bind_dequantize,
    "amax": _bind_amax,
    "update_scale": _bind_update_scale,
    "advance_rng": _bind_advance_rng,
}
