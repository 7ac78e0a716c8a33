"""A stack of quantized matrices of one format, as the experts of a layer have them: each is a matrix of its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from steelyard.errors import RecipeError, shown
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import PACKED_ALIGNMENT, can_pack, packed_size, part_shapes, round_up
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu
from steelyard.tensor import kernels, traced
from steelyard.tensor.arguments import check_dtype, check_flag, check_tensor_dtype
from steelyard.tensor.data import FlattenMethod
from steelyard.tensor.elements import HIGH_PRECISION
from steelyard.tensor.float8 import Float8Quantizer
from steelyard.tensor.packed import PackedStorage
from steelyard.tensor.quantized_tensor import QuantizedTensor, as_parameter

aten = torch.ops.aten
_COMPACT = ("_codes", "_scales", "_amax")


class QuantizedStack(QuantizedTensor):  # pyright: ignore[reportIncompatibleVariableOverride]
    """`QuantizedStack(matrices)`: quantized matrices [N, K] of one format as one tensor [E, N, K].

    Each matrix keeps its own scales and second level. What lies one after the other in one memory already is not
    copied. With `transposed=True` the stack presents the transposes, [E, K, N], of the matrices that it stores.
    `stack[i]` is the quantized matrix i. Transposing the last two dims keeps codes, as `to`, `clone`, `detach` and
    `copy_` do; other operations decode.
    """

    STORAGE: Any = SimpleNamespace
    PARTS = (*_COMPACT, "_packed_data")
    _codes: Any
    _scales: Any
    _amax: Any
    _packed_data: Any
    _transposed = False

    def __new__(cls, matrices: Sequence[QuantizedTensor], *, transposed: bool = False, requires_grad: bool = False):
        check_flag(transposed, "transposed")
        check_flag(requires_grad, "requires_grad")
        first = _check_alike(matrices)
        parts = {name: _stacked([matrix[name] for matrix in map(_compact_parts, matrices)]) for name in _COMPACT}
        quantizer = _of_rows(first._quantizer)
        if isinstance(quantizer, Float8Quantizer):
            quantizer = quantizer.of_stack(torch.stack([matrix._quantizer.scale.reshape(()) for matrix in matrices]))
        rows, columns = first.shape
        return cls._of(parts, quantizer, (rows, columns), first.dtype, transposed, requires_grad=requires_grad)

    def __init__(self, *arguments, **options):
        """Everything is done by `__new__`."""

    @classmethod
    def _of(
        cls,
        parts: dict[str, torch.Tensor | None],
        quantizer: Any,
        matrix: tuple[int, int],
        dtype: torch.dtype,
        transposed: bool,
        *,
        requires_grad: bool = False,
    ) -> "QuantizedStack":
        """The stack of parts that have one dim more than those of a matrix; a packed one is a row of bytes."""
        any_part = next(part for part in parts.values() if part is not None)
        storage = SimpleNamespace(**dict.fromkeys(cls.PARTS) | parts)
        storage._shape = torch.Size((len(any_part), *(matrix[::-1] if transposed else matrix)))
        storage._dtype, storage._device, storage._quantizer = dtype, any_part.device, quantizer
        storage._matrix, storage._transposed, storage._root = matrix, transposed, None
        return cls._wrap(storage, requires_grad=requires_grad)  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_parts(
        cls,
        parts: Sequence[torch.Tensor],
        quantizer: Any,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        transposed: bool,
    ) -> "QuantizedStack":
        """The stack of what programs read of one: codes, scales and amaxes, or bytes that are packed.

        `shape` is that of the stack, and the quantizer makes the matrices that are stored.
        """
        check_tensor_dtype(dtype)
        count, *presented = shape
        rows, columns = reversed(presented) if transposed else presented
        scheme = quantizer.row_scheme
        if len(parts) == 1:
            named: dict[str, torch.Tensor | None] = {"_packed_data": parts[0].reshape(count, -1)}
        else:
            sizes = [size for size, _ in part_shapes(scheme, (rows, columns), columnwise=False).values()]
            given = zip(_COMPACT, parts, sizes, strict=False)
            named = {name: part.reshape([count, *map(int, size)]) for name, part, size in given}  # pyright: ignore
            if scheme.family != "nvfp4":
                named["_amax"] = None
        return cls._of(named, _of_rows(quantizer), (rows, columns), dtype, transposed)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        handler = _HANDLERS.get(func)
        kwargs = kwargs or {}
        result = NotImplemented if handler is None else handler(func, *args, **kwargs)
        return _run_decoded(func, args, kwargs) if result is NotImplemented else result

    @property
    def scheme(self) -> Scheme:
        """The scheme of each matrix that is stored."""
        return self._quantizer.row_scheme

    @property
    def is_packed(self) -> bool:
        """Whether it has the layout that the CPU's GEMMs read."""
        return self._packed_data is not None

    def packed(self) -> "QuantizedStack":
        """The same matrices of FP4 in the layout that the CPU's GEMMs read."""
        if self.is_packed or not can_pack(self.scheme):
            return self
        parts: dict[str, torch.Tensor | None] = {"_packed_data": self._pack()}
        return self._of(parts, self._quantizer.copy(), self._matrix, self.dtype, self._transposed)

    def unpacked(self) -> "QuantizedStack":
        """The same matrices in the compact layout."""
        if not self.is_packed:
            return self
        return self._of(self._unpack(), self._quantizer.copy(), self._matrix, self.dtype, self._transposed)

    def get_usages(self) -> dict[str, bool]:
        exists = any(getattr(self, name) is not None for name in self.PARTS)
        return {"rowwise": exists and not self._transposed, "columnwise": exists and self._transposed}

    def get_metadata(self) -> dict[str, Any]:
        compact = self.unpacked()
        parts = {name[1:]: getattr(compact, name) for name in _COMPACT}
        about = {"shape": self.shape, "dtype": self.dtype, "quantizer": self._quantizer}
        return about | parts | {"transposed": self._transposed}

    def weight_scheme(self, *, is_transposed: bool) -> Scheme | None:
        if is_transposed != self._transposed or not self.numel():
            return None
        return replace(self.scheme, rounding="nearest")

    def weight_parts(
        self, scheme: Scheme, *, is_transposed: bool, layout: str = "compact", multiples: tuple[int, int] = (1, 1)
    ) -> tuple[torch.Tensor, ...] | None:
        own = self.weight_scheme(is_transposed=is_transposed)
        if own is None or not own.is_readable_as(scheme) or layout == "gemm":
            return None
        if layout == "packed":
            return ((self._packed_data if self.is_packed else self._pack()).reshape(-1),)
        parts = self.unpacked()
        # Kernels require the amax of a per-tensor copy, but do not read it to decode: any value will do.
        amax = parts._scales if own.family == "tensor" else parts._amax
        return tuple(part.reshape(-1) for part in (parts._codes, parts._scales, amax) if part is not None)

    def expert(self, index: int) -> QuantizedTensor:
        """The quantized matrix at an index. It shares the memory of the stack, unless that is packed."""
        number = range(len(self))[index]
        tensor = self._quantizer.of_matrix(number).assemble((self._copy_of(number), None), self._matrix, self.dtype)
        return tensor.t() if self._transposed else tensor

    def to_dtype(self, dtype: torch.dtype) -> "QuantizedStack":
        check_tensor_dtype(dtype)
        return self._changed(lambda part: part, self._layout(), dtype)

    def _copy_of(self, index: int) -> QuantizedCopy:
        """The rowwise copy of a matrix."""
        scheme, matrix = self.scheme, self._matrix
        if self.is_packed:
            data = self._packed_data[index, : packed_size(scheme, *matrix)]
            return cpu.unpack(cpu.PackedWeight(data, scheme, matrix, columnwise=False))
        scales = self._scales[index]
        amax = scales if scheme.family == "tensor" else None if self._amax is None else self._amax[index]
        return QuantizedCopy(self._codes[index], scales, amax, scheme, matrix, False)

    def _pack(self) -> torch.Tensor:
        size = packed_size(self.scheme, *self._matrix)
        packed = torch.zeros(len(self), round_up(size, PACKED_ALIGNMENT), dtype=torch.uint8)
        for index in range(len(self)):
            packed[index, :size] = cpu.pack(self._copy_of(index)).data
        return packed

    def _unpack(self) -> dict[str, torch.Tensor | None]:
        copies = [self._copy_of(index) for index in range(len(self))]
        amaxes = None if copies[0].amax is None else torch.stack([copy.amax for copy in copies])  # pyright: ignore
        codes, scales = (torch.stack([getattr(copy, name) for copy in copies]) for name in ("codes", "scales"))
        return {"_codes": codes, "_scales": scales, "_amax": amaxes}

    def _decode(self, dtype: torch.dtype) -> torch.Tensor:
        check_dtype(dtype)
        kernel_dtype = dtype if dtype in HIGH_PRECISION else torch.float32
        parts, shape = self._parts(), (len(self), *self._matrix)
        if parts[0].is_meta:
            values = torch.empty(shape, dtype=kernel_dtype, device="meta")
        elif not traced.has_memory(parts[0]):
            values = traced.dequantize_stack(parts, self.scheme, shape, kernel_dtype)
        else:
            values = torch.empty(shape, dtype=kernel_dtype, device=self.device)
            for index in range(len(self)):
                values[index] = kernels.dequantize(self._copy_of(index), kernel_dtype)
        return (values.transpose(1, 2).contiguous() if self._transposed else values).to(dtype)

    def _write(self, values: torch.Tensor) -> None:
        """Quantize other values, with the second levels that were given."""
        values = values.float() if values.dtype == torch.float64 else values
        for index in range(len(self)):
            expert: Any = self.expert(index)
            expert.copy_(values[index])
            if self.is_packed:
                copy = (expert.t() if self._transposed else expert)._copy(False)
                data = cpu.pack(copy).data
                self._packed_data[index, : len(data)] = data

    def _changed(
        self, change: Callable[[torch.Tensor], torch.Tensor], layout: torch.Tensor, dtype: torch.dtype | None = None
    ) -> "QuantizedStack":
        """A stack of changed parts."""
        storage = self._as_storage()
        for name in self.PARTS:
            part = getattr(self, name)
            setattr(storage, name, None if part is None else change(part))
        storage._dtype, storage._device = dtype or self.dtype, next(iter(self._parts())).device
        return type(self)._wrap(storage, layout=layout)  # pyright: ignore[reportArgumentType]

    def _shallow_copy(self) -> "QuantizedStack":
        return self._changed(lambda part: part, self._layout())

    def _as_storage(self) -> Any:
        names = ("_shape", "_device", "_quantizer", "_matrix", "_transposed", "_root", *self.PARTS)
        return SimpleNamespace(_dtype=self.dtype, **{name: getattr(self, name) for name in names})

    def _compact(self) -> "QuantizedStack":
        return self.unpacked()

    def _like(self) -> Any:
        """What quantizes other values like these."""

        def quantize(values: torch.Tensor) -> QuantizedStack:
            made: Any = self.detach().clone()
            made._write(values)
            return made

        return SimpleNamespace(quantize=quantize)

    def _stored(self, compact: Any) -> "QuantizedStack | None":
        if not isinstance(compact, QuantizedStack) or compact.scheme != self.scheme:
            return None
        return compact.packed() if self.is_packed else compact

    @FlattenMethod
    def __tensor_flatten__(self):
        names = [name for name in self.PARTS if getattr(self, name) is not None]
        return names, (self.dtype, self._quantizer, self._matrix, self._transposed)

    @classmethod
    def __tensor_unflatten__(cls, inner_tensors, metadata, outer_size, outer_stride):
        dtype, quantizer, matrix, transposed = metadata
        return cls._of(dict(inner_tensors), quantizer, matrix, dtype, transposed)

    @classmethod
    def __metadata_guard__(cls, saved, found) -> bool:
        def described(metadata):
            dtype, quantizer, matrix, transposed = metadata
            return dtype, quantizer.row_scheme, matrix, transposed

        return described(saved) == described(found)

    def __reduce_ex__(self, protocol):
        parts = {name: getattr(self.unpacked(), name) for name in _COMPACT}
        about = self._quantizer, self._matrix, self.dtype, self._transposed
        return rebuild_stack, (parts, *about, self.requires_grad, isinstance(self, torch.nn.Parameter))


def rebuild_stack(parts: dict, quantizer, matrix, dtype, transposed: bool, requires_grad: bool, is_parameter: bool):
    """The stack that was pickled."""
    return as_parameter(
        QuantizedStack._of(parts, quantizer, tuple(matrix), dtype, transposed), requires_grad, is_parameter
    )


def _check_alike(matrices: Any) -> QuantizedTensor:
    """Refuse what is no list of matrices of one format; returns the first."""
    if not isinstance(matrices, list | tuple) or not matrices:
        raise RecipeError(f"a stack must be made of a list of quantized matrices, got {shown(matrices)}")
    for matrix in matrices:
        fits = isinstance(matrix, QuantizedTensor) and matrix.dim() == 2 and matrix.get_usages()["rowwise"]
        if not fits or matrix._with_gemm_swizzled_scales:
            found = type(matrix).__name__
            raise RecipeError(
                f"a stack must be made of quantized matrices with a rowwise copy in the compact layout, got a {found} "
                "that is none; for matrices that are stored transposed, give their transposes and transposed=True"
            )

    def described(matrix):
        return matrix.shape, matrix.dtype, matrix.device, matrix._quantizer.row_scheme

    first = matrices[0]
    for index, matrix in enumerate(matrices):
        if described(matrix) != described(first):
            raise RecipeError(
                f"the matrices of a stack must have one shape, dtype, device and format, got {described(first)} and, "
                f"at {index}, {described(matrix)}"
            )
    return first


def _compact_parts(matrix: QuantizedTensor) -> dict[str, torch.Tensor | None]:
    copy = matrix._copy(False) if isinstance(matrix, PackedStorage) else matrix._raw_copy(False)
    assert copy is not None
    amax = copy.amax if copy.scheme.family == "nvfp4" else None
    return {"_codes": copy.codes, "_scales": copy.scales, "_amax": amax}


def _stacked(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    """The parts of all matrices: as they lie, if they lie one after the other."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    first, size = found[0], found[0].numel()
    places = [(part.untyped_storage().data_ptr(), part.storage_offset()) for part in found]
    memory, offset = places[0]
    is_run = places == [(memory, offset + index * size) for index in range(len(found))]
    if is_run and size and all(part.is_contiguous() for part in found):
        return first.as_strided((len(found), *first.shape), (size, *first.stride()))
    return torch.stack(found)


def _of_rows(quantizer: Any) -> Any:
    """A quantizer that makes the rowwise copies of matrices, and nothing else."""
    new = quantizer.copy()
    new.internal = new.optimize_for_gemm = False
    new.set_usage(rowwise=True, columnwise=False)
    return new


def _run_decoded(func, args, kwargs):
    """Run in high precision, then quantize what the operation wrote."""
    decoded: dict[int, torch.Tensor] = {}

    def decode(value):
        if not isinstance(value, QuantizedTensor):
            return value
        return decoded.setdefault(id(value), value._decode(value.dtype))

    if torch.Tag.inplace_view in func.tags:
        raise RecipeError(f"a quantized stack must keep its shape and memory, got {func}; dequantize() it first")
    result = func(*tree_map(decode, tuple(args)), **tree_map(decode, dict(kwargs)))
    written = {}
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written and isinstance(value, QuantizedStack):
            value._write(decoded[id(value)])
            written[id(decoded[id(value)])] = value
    return tree_map(lambda value: written.get(id(value), value), result) if written else result


def _alias(func, stack, *_, **__):
    return stack._shallow_copy()


def _clone(func, stack, *, memory_format=None):
    return stack._changed(torch.clone, torch.empty(stack.shape, device="meta"))


def _to_copy(func, stack, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, **_):
    if dtype not in (None, stack.dtype, *HIGH_PRECISION):
        return NotImplemented
    if device is not None and torch.device(device).type not in ("cpu", "meta"):
        stack = stack.unpacked()  # GPUs read no layout of the CPU

    def move(part):
        return part.to(device=device, non_blocking=non_blocking, copy=True)

    moved = stack._changed(move, torch.empty(stack.shape, device="meta"), dtype)
    return (
        moved
        if device is None
        else type(stack)._of(
            {name: getattr(moved, name) for name in stack.PARTS},
            moved._quantizer,
            moved._matrix,
            moved.dtype,
            moved._transposed,
        )
    )


def _transpose(func, stack, *dims):
    """The same matrices, presented the other way round."""
    order = list(torch.empty(2, 3, 4, device="meta").permute(dims[0]).shape) if len(dims) == 1 else None
    swaps = order == [2, 4, 3] if order else {dim % 3 for dim in dims} == {1, 2}
    if not swaps:
        return NotImplemented
    storage = stack._as_storage()
    storage._transposed = not stack._transposed
    storage._shape = torch.Size((stack.shape[0], stack.shape[2], stack.shape[1]))
    return type(stack)._wrap(storage, layout=func(stack._layout(), *dims))


def _select(func, stack, dim, index):
    return stack.expert(index) if dim % 3 == 0 and traced.has_memory(stack._any_part()) else NotImplemented


def _unbind(func, stack, dim=0):
    if dim % 3 or not traced.has_memory(stack._any_part()):
        return NotImplemented
    return [stack.expert(index) for index in range(len(stack))]


def _copy_(func, dst, src, non_blocking=False):
    if not isinstance(dst, QuantizedStack):
        return NotImplemented
    taken = dst._stored(src) if isinstance(src, QuantizedStack) else None
    if taken is None or taken.shape != dst.shape or taken._transposed != dst._transposed:
        values = src._decode(dst.dtype) if isinstance(src, QuantizedTensor) else src.to(dst.dtype)
        dst._write(values.expand(dst.shape))
        return dst
    taken = taken if taken.is_packed == dst.is_packed else taken.unpacked()
    for name in dst.PARTS:
        if getattr(dst, name) is not None:
            getattr(dst, name).copy_(getattr(taken, name))
    return dst


_HANDLERS = {
    aten.detach.default: _alias,
    aten.alias.default: _alias,
    aten.clone.default: _clone,
    aten._to_copy.default: _to_copy,
    aten.transpose.int: _transpose,
    aten.permute.default: _transpose,
    aten.select.int: _select,
    aten.unbind.int: _unbind,
    aten.copy_.default: _copy_,
}
