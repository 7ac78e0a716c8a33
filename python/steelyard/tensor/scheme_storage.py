"""The storage of every built-in format: one or two quantized copies, under the field names that users know."""

import copy as copy_module
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch

from steelyard.errors import RecipeError, shown
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import codes_shape, stored_shape
from steelyard.formats.schemes import Scheme
from steelyard.tensor import given_parts, kernels, swizzles, traced
from steelyard.tensor.arguments import (
    as_shape,
    check_dtype,
    check_flag,
    check_strided,
    check_tensor_dtype,
    view_shape,
)
from steelyard.tensor.elements import HIGH_PRECISION, matrix_shape
from steelyard.tensor.gemm_layout import for_gemm, needs_padding
from steelyard.tensor.quantizer import Quantizer, is_noop
from steelyard.tensor.storage import QuantizedTensorStorage, size_of
from steelyard.tensor.views import swap_usage, swapped_scheme

# What only making codes depends on, not decoding them.
_OF_QUANTIZING = {"power_of_two": False, "rounding": "nearest", "rule": "rceil", "epsilon": 0.0}


class CopyFields(NamedTuple):
    """The attributes that hold one copy."""

    codes: str
    scales: str
    amax: str | None = None


class SchemeStorage(QuantizedTensorStorage):
    """Codes, scales and amaxes of one or two copies of a matrix, as the schemes of the quantizer describe them.

    The matrix has the last dim of the tensor that was quantized, even after a reshape. Rowwise codes have the shape of
    the tensor (FP4: half of the last dim), and so do columnwise MXFP8 codes. Other columnwise codes are the transpose
    of the matrix. Scales have the compact shapes of the matrix.
    """

    ROWWISE: ClassVar[CopyFields]
    COLUMNWISE: ClassVar[CopyFields]
    ARGUMENTS: ClassVar[dict[str, str]]
    """Constructor keyword -> attribute, for each tensor."""

    _with_gemm_swizzled_scales = False
    _root = None
    """The tensor whose memory this one is a view of; writes go through it."""

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "ARGUMENTS" in vars(cls):
            cls.PARTS = tuple(cls.ARGUMENTS.values())

    def _initialize(self, shape, dtype, quantizer, parts: dict[str, torch.Tensor | None], swizzled: bool = False):
        """Adopt the tensors a user gave, after checking that they belong together."""
        given = {self.ARGUMENTS[name]: tensor for name, tensor in parts.items() if tensor is not None}
        check_tensor_dtype(dtype)
        check_flag(swizzled, "with_gemm_swizzled_scales")
        shape = as_shape(shape)
        for name, tensor in parts.items():
            if tensor is not None:
                check_strided(tensor, name)
        devices = {tensor.device for tensor in given.values()}
        if len(devices) > 1:
            raise RecipeError(f"the parts of a quantized tensor must be on one device, got {devices}")
        for name in self.PARTS:
            setattr(self, name, given[name].detach() if name in given else None)
        self._shape, self._dtype, self._quantizer = shape, dtype, quantizer
        self._matrix = matrix_shape(shape)
        self._with_gemm_swizzled_scales = swizzled
        copies = [self._raw_copy(columnwise) for columnwise in (False, True)]
        if not any(copies):
            raise RecipeError(f"{type(self).__name__} needs the codes and scales of at least one copy, got none")
        for copy in copies:
            if copy is not None:
                given_parts.fit(copy, *self._fields(copy.columnwise), swizzled=swizzled)
                self._set_copy(copy)
        self._device = self._any_part().device

    def _check_quantizer(self, quantizer: Any) -> None:
        """Refuse what is not a quantizer of such tensors."""
        if quantizer is not None and not self._is_made_by(quantizer):
            found = shown(quantizer)
            raise RecipeError(f"the quantizer of a {type(self).__name__} must make such tensors, got {found}")

    def _any_part(self) -> torch.Tensor:
        """One of the tensors that this one consists of."""
        for name in self.PARTS:
            if getattr(self, name) is not None:
                return getattr(self, name)
        raise RecipeError(f"{type(self).__name__} must have a copy, got none; it was cleared")

    def _is_made_by(self, quantizer: Any) -> bool:
        return isinstance(quantizer, Quantizer) and isinstance(self, getattr(quantizer, "STORAGE", ()))

    @classmethod
    def _from_copies(cls, copies, shape, dtype, quantizer, *, swizzled: bool = False) -> "SchemeStorage":
        """A storage of copies that need no check."""
        storage = cls.__new__(cls)
        storage.clear()
        storage._shape, storage._dtype, storage._quantizer = torch.Size(shape), dtype, quantizer
        storage._matrix = next((copy.shape for copy in copies if copy is not None), None) or matrix_shape(shape)
        storage._with_gemm_swizzled_scales = swizzled
        for copy in copies:
            if copy is not None:
                storage._set_copy(copy)
                storage._device = copy.codes.device
        return storage

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._device

    def size(self, dim: int | None = None):
        return size_of(self._shape, dim)

    def dim(self) -> int:
        return len(self._shape)

    def numel(self) -> int:
        return self._shape.numel()

    def __repr__(self) -> str:
        usages = " and ".join(name for name, exists in self.get_usages().items() if exists) or "no"
        return f"{type(self).__name__}({self._shown_values() if usages != 'no' else '...'}, {usages} copies)"

    def _shown_values(self) -> str:
        if any(traced.is_freed(getattr(self, name)) for name in self.PARTS):
            return f"freed, size={tuple(self._shape)}"
        return repr(self._decode(self._dtype))

    def get_usages(self) -> dict[str, bool]:
        return {"rowwise": self._has(False), "columnwise": self._has(True)}

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        check_flag(rowwise_usage, "rowwise_usage", or_none=True)
        check_flag(columnwise_usage, "columnwise_usage", or_none=True)
        wanted = {False: rowwise_usage, True: columnwise_usage}
        for columnwise in (False, True):
            if wanted[columnwise] and not self._has(columnwise):
                self._set_copy(self._derive(columnwise))
        for columnwise in (False, True):
            if wanted[columnwise] is False:
                self._drop(columnwise)

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The values in `dtype`, by default that of the tensor; from the rowwise copy if there is one."""
        return self._decode(self._dtype if dtype is None else dtype)

    def quantize_(self, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None) -> "SchemeStorage":
        """Overwrite the values with those of `tensor`."""
        if not is_noop(noop_flag):
            self._quantizer.write(tensor, self)
        return self

    def update_quantizer(self, quantizer: Any) -> None:
        """Let another quantizer make the codes of later writes. It must make codes of the same format."""
        new = quantizer.copy() if self._is_made_by(quantizer) else None
        if new is not None:
            new.transposed = self._quantizer.transposed
        if new is None or _formats(new) != _formats(self._quantizer):
            raise RecipeError(f"the quantizer must make codes like those of {self._quantizer}, got {shown(quantizer)}")
        self._quantizer = new

    def get_data_tensors(self, rowwise_data: bool = True, columnwise_data: bool = True) -> Any:
        """The codes of both copies, or of the one that is asked for; None for a copy that does not exist."""
        check_flag(rowwise_data, "rowwise_data")
        check_flag(columnwise_data, "columnwise_data")
        if not (rowwise_data or columnwise_data):
            raise RecipeError("rowwise_data or columnwise_data must be True, got False for both; ask for one of them")
        codes = getattr(self, self.ROWWISE.codes), getattr(self, self.COLUMNWISE.codes)
        return codes if rowwise_data and columnwise_data else codes[columnwise_data]

    def view(self, *shape: Any) -> Any:
        """The same codes as a tensor of another shape."""
        viewed = self._quantizer.TENSOR._wrap(self).view(view_shape(shape, self.numel()))._as_storage()
        viewed._root = None
        return viewed

    def to_dtype(self, dtype: torch.dtype) -> "SchemeStorage":
        """The same codes in the same memory, presented as another dtype."""
        check_tensor_dtype(dtype)
        new = copy_module.copy(self)
        new._dtype = dtype
        return new

    def get_metadata(self) -> dict[str, Any]:
        tensors = {argument: getattr(self, name) for argument, name in self.ARGUMENTS.items()}
        return {"shape": self._shape, "dtype": self._dtype, "quantizer": self._quantizer, **tensors, **self._traits()}

    def weight_scheme(self, *, is_transposed: bool) -> Scheme | None:
        """How compiled programs can take the rows of this matrix, or of its transpose; None if it holds none."""
        if not self._has(is_transposed) or self._shape != self._matrix or not self.numel():
            return None
        scheme = self._scheme(is_transposed)
        scheme = swapped_scheme(scheme) if is_transposed and scheme.family == "mx" else scheme
        return None if scheme.rht else replace(scheme, rounding="nearest")

    def weight_parts(
        self, scheme: Scheme, *, is_transposed: bool, layout: str = "compact", multiples: tuple[int, int] = (1, 1)
    ) -> tuple[torch.Tensor, ...] | None:
        """The parts of a rowwise copy of the matrix, or of its transpose, as compiled programs take them.

        `layout` and `multiples` are those of a `WeightForm`. None if this tensor has no such copy.
        """
        is_as_read = layout == "gemm" and self._with_gemm_swizzled_scales and not is_transposed
        own = self.weight_scheme(is_transposed=is_transposed)
        if own is None or not own.is_readable_as(scheme):
            return None
        if is_as_read and not needs_padding(self._matrix, multiples):
            copy = self._raw_copy(columnwise=False)
            assert copy is not None
            return _parts(copy)
        # As it lies: making it contiguous before its usages are swapped would copy it twice.
        copy = (self._copy if self._with_gemm_swizzled_scales else self._raw_copy)(is_transposed)
        assert copy is not None
        copy = swap_usage(copy) if is_transposed else copy
        copy.codes, copy.scales = copy.codes.contiguous(), copy.scales.contiguous()
        # Programs trust the parts of weights.
        kernels.check(copy, type(self).__name__)
        if layout == "packed":
            return (traced.pack(copy),)
        return _parts(copy if layout == "compact" else for_gemm(copy, multiples))

    def _traits(self) -> dict[str, Any]:
        """Constructor keywords beyond the tensors, shape, dtype and quantizer."""
        return {}

    def _fields(self, columnwise: bool) -> CopyFields:
        return self.COLUMNWISE if columnwise else self.ROWWISE

    def _scheme(self, columnwise: bool) -> Scheme:
        return self._quantizer.col_scheme if columnwise else self._quantizer.row_scheme

    def _has(self, columnwise: bool) -> bool:
        return getattr(self, self._fields(columnwise).codes) is not None

    def _raw_copy(self, columnwise: bool) -> QuantizedCopy | None:
        """A copy whose parts alias the fields, with any strides and order of scales."""
        codes, scales, amax = self._fields(columnwise)
        if getattr(self, codes) is None:
            return None
        scheme = self._scheme(columnwise)
        stored = codes_shape(scheme, stored_shape(scheme, self._matrix, columnwise))
        field = getattr(self, codes)
        if field.numel() != stored[0] * stored[1]:
            raise RecipeError(
                f"{codes} of a tensor of shape {tuple(self._shape)} must hold {stored[0]}x{stored[1]} codes, "
                f"got shape {tuple(field.shape)}"
            )
        # Kernels require the amax of a per-tensor copy, but do not read it to decode: any value will do.
        amax = scales if scheme.family == "tensor" else amax
        parts = field.reshape(stored), getattr(self, scales), None if amax is None else getattr(self, amax)
        return QuantizedCopy(*parts, scheme, self._matrix, columnwise)

    def _copy(self, columnwise: bool) -> QuantizedCopy | None:
        """A copy as kernels read it: contiguous, scales compact."""
        copy = self._raw_copy(columnwise)
        if copy is None:
            return None
        if any(map(traced.is_freed, (copy.codes, copy.scales, copy.amax))):
            raise RecipeError(
                f"the codes and scales of a {type(self).__name__} must be in memory, got freed ones; gather it first"
            )
        if self._with_gemm_swizzled_scales:
            copy.scales = swizzles.unswizzle(copy)
        copy.codes, copy.scales = copy.codes.contiguous(), copy.scales.contiguous()
        copy.amax = None if copy.amax is None else copy.amax.contiguous()
        return copy

    def _set_copy(self, copy: QuantizedCopy) -> None:
        """Keep a copy's parts in their fields; the codes get the rank that users see."""
        codes, scales, amax = self._fields(copy.columnwise)
        shape = copy.codes.shape
        if not copy.is_stored_transposed and copy.scheme.family == "tensor":
            shape = self._shape
        elif not copy.is_stored_transposed and self._shape[-1:] == self._matrix[1:]:
            shape = *self._shape[:-1], shape[-1]
        setattr(self, codes, copy.codes.reshape(shape))
        setattr(self, scales, copy.scales)
        if amax is not None:
            setattr(self, amax, copy.amax)

    def _write_copies(self, copies) -> None:
        """Overwrite the memory of copies that exist, so that every alias of them sees the new values."""
        values = {}
        for copy in copies:
            if copy is not None:
                values.update(zip(self._fields(copy.columnwise), (copy.codes, copy.scales, copy.amax), strict=True))
        for name, value in values.items():
            if name is not None:
                field = getattr(self, name)
                field.copy_(value.reshape(field.shape))

    def _drop(self, columnwise: bool) -> None:
        kept = self._fields(not columnwise) if self._has(not columnwise) else ()
        for name in self._fields(columnwise):
            if name is not None and name not in kept:
                setattr(self, name, None)

    def _derive(self, columnwise: bool) -> QuantizedCopy:
        """The copy of one usage from the codes of the other."""
        source = self._copy(not columnwise)
        usage = "columnwise" if columnwise else "rowwise"
        if source is None or not source.scheme.is_transposable or self._scheme(columnwise) != source.scheme:
            found = "no copy at all" if source is None else f"block {source.scheme.block}"
            raise RecipeError(
                f"the {usage} copy must follow from the codes of the other one: one scale per tensor or square tiles, "
                f"got {found}; quantize it from the source with {usage}=True"
            )
        derived = kernels.transpose(source)
        if self._with_gemm_swizzled_scales:
            derived.scales = kernels.swizzle(derived)
        return derived

    def _decode_order(self) -> list[bool]:
        """The usages that exist; the copy of the first one holds the values."""
        first = self._quantizer.transposed
        return [columnwise for columnwise in (first, not first) if self._has(columnwise)]

    def _decode(self, dtype: torch.dtype) -> torch.Tensor:
        copy = next((self._copy(columnwise) for columnwise in self._decode_order()), None)
        if copy is None:
            raise RecipeError(f"{type(self).__name__} must have a copy to decode, got none; it was cleared")
        check_dtype(dtype)
        kernel_dtype = dtype if dtype in HIGH_PRECISION else torch.float32
        return kernels.dequantize(copy, kernel_dtype).reshape(self._shape).to(dtype)


def _parts(copy: QuantizedCopy) -> tuple[torch.Tensor, ...]:
    return tuple(part for part in (copy.codes, copy.scales, copy.amax) if part is not None)


def _formats(quantizer: Any) -> list[Scheme]:
    """What must be known to decode the codes of a quantizer."""
    schemes = quantizer.row_scheme, quantizer.col_scheme
    six = {True: "none", False: "mae"}
    return [
        replace(
            each,
            **_OF_QUANTIZING,
            # Of FP4, a second level that is given decodes otherwise than one that is measured.
            source=each.source if each.family == "nvfp4" else "current",
            four_over_six=six[each.four_over_six == "none"],
        )
        for each in schemes
    ]
