"""FP4 in the layout that the CPU's GEMMs read, in which a compiled net keeps its weights."""

from typing import Any, ClassVar

import torch

from steelyard.errors import RecipeError, shown
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import packed_size, stored_shape
from steelyard.runtime import cpu
from steelyard.runtime.cpu.packing import check_packed
from steelyard.tensor import traced
from steelyard.tensor.arguments import as_shape, check_strided, check_tensor_dtype
from steelyard.tensor.elements import matrix_shape
from steelyard.tensor.mxfp4 import MXFP4Quantizer, MXFP4Tensor, MXFP4TensorStorage
from steelyard.tensor.nvfp4 import NVFP4Quantizer, NVFP4Tensor, NVFP4TensorStorage
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.scheme_quantizer import SchemeQuantizer
from steelyard.tensor.scheme_storage import SchemeStorage


class PackedStorage(SchemeStorage):
    """One packed copy of a matrix; its quantizer tells which usage it is.

    The compact parts are made on demand. They are what is saved.
    """

    PARTS = ("_packed_data",)
    QUANTIZER: ClassVar[type[SchemeQuantizer]]
    """The class of the quantizers that make it."""

    _packed_data: Any
    """The only part; None once it is cleared."""
    _rowwise_data = _rowwise_scale_inv = _columnwise_data = _columnwise_scale_inv = None

    def __init__(self, *, packed_data: torch.Tensor, shape, quantizer: Any, dtype=torch.float32):
        if not isinstance(quantizer, self.QUANTIZER):
            wanted = self.QUANTIZER.__name__
            raise RecipeError(f"the quantizer of a packed tensor must be an {wanted}, got {shown(quantizer)}")
        if quantizer.rowwise == quantizer.columnwise:
            raise RecipeError(f"the quantizer of a packed tensor must make one copy, got {quantizer.get_usages()}")
        check_tensor_dtype(dtype)
        check_strided(packed_data, "packed_data")
        self._shape, self._dtype, self._quantizer = as_shape(shape), dtype, quantizer
        self._matrix = matrix_shape(self._shape)
        size = packed_size(self._packed_scheme(), *self._stored_shape())
        if packed_data.dtype != torch.uint8 or tuple(packed_data.shape) != (size,):
            found = f"{packed_data.dtype} of shape {tuple(packed_data.shape)}"
            raise RecipeError(f"packed_data of shape {tuple(shape)} must be {size} bytes of uint8, got {found}")
        self._packed_data, self._device = packed_data.detach(), packed_data.device

    def unpacked(self) -> SchemeStorage:
        """The same values in the compact layout."""
        copies = [self._raw_copy(columnwise) for columnwise in (False, True)]
        return self.QUANTIZER.STORAGE._from_copies(copies, self._shape, self._dtype, self._quantizer.copy())

    def get_metadata(self) -> dict[str, Any]:
        return self.unpacked().get_metadata()

    def get_data_tensors(self, rowwise_data: bool = True, columnwise_data: bool = True) -> Any:
        return self.unpacked().get_data_tensors(rowwise_data, columnwise_data)

    def view(self, *shape: Any) -> Any:
        return self.unpacked().view(*shape)

    def weight_parts(
        self, scheme, *, is_transposed: bool, layout: str = "compact", multiples: tuple[int, int] = (1, 1)
    ) -> tuple[torch.Tensor, ...] | None:
        own = self.weight_scheme(is_transposed=is_transposed)
        if layout == "packed" and own is not None and own.is_readable_as(scheme):
            check_packed(cpu.PackedWeight(self._packed_data, scheme, self._matrix, is_transposed), type(self).__name__)
            return (self._packed_data,)
        return super().weight_parts(scheme, is_transposed=is_transposed, layout=layout, multiples=multiples)

    def _packed_scheme(self):
        return self._scheme(self._quantizer.columnwise)

    def _stored_shape(self) -> tuple[int, int]:
        return stored_shape(self._packed_scheme(), self._matrix, self._quantizer.columnwise)

    def _has(self, columnwise: bool) -> bool:
        return self._packed_data is not None and columnwise == self._quantizer.columnwise

    def _raw_copy(self, columnwise: bool) -> QuantizedCopy | None:
        if not self._has(columnwise):
            return None
        weight = cpu.PackedWeight(self._packed_data, self._scheme(columnwise), self._matrix, columnwise)
        if traced.is_freed(weight.data):
            return QuantizedCopy(weight.data, weight.data, weight.data, weight.scheme, weight.shape, columnwise)
        return cpu.unpack(weight) if traced.has_memory(weight.data) else traced.unpack(weight)

    def _set_copy(self, copy: QuantizedCopy) -> None:
        raise RecipeError("a packed tensor keeps the one copy it has; make another of its unpacked() parts")

    def _write_copies(self, copies) -> None:
        for copy in copies:
            if copy is not None:
                self._packed_data.copy_(traced.pack(copy))

    def _drop(self, columnwise: bool) -> None:
        if self._has(columnwise):
            self._packed_data = None


class PackedTensor(QuantizedTensor, PackedStorage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """A quantized tensor whose one copy is packed; it is saved in the compact layout."""

    def __reduce_ex__(self, protocol):
        tensor = self.QUANTIZER.TENSOR._wrap(self.unpacked(), requires_grad=self.requires_grad)
        saved = torch.nn.Parameter(tensor, self.requires_grad) if isinstance(self, torch.nn.Parameter) else tensor
        return saved.__reduce_ex__(protocol)

    def _compact(self) -> QuantizedTensor:
        return self.QUANTIZER.TENSOR._wrap(self.unpacked())

    def _stored(self, compact: Any) -> "PackedTensor | None":
        columnwise = self._quantizer.columnwise
        copy = compact._copy(columnwise) if isinstance(compact, self.QUANTIZER.TENSOR) else None
        if copy is None or copy.scheme != self._scheme(columnwise) or copy.shape != matrix_shape(compact.shape):
            return None
        quantizer = self._quantizer.copy()
        return type(self)(packed_data=traced.pack(copy), shape=compact.shape, quantizer=quantizer, dtype=compact.dtype)


class PackedNVFP4Storage(PackedStorage, NVFP4TensorStorage):
    """A packed copy of NVFP4."""

    QUANTIZER = NVFP4Quantizer
    _amax_rowwise = _amax_columnwise = None


class PackedNVFP4Tensor(PackedTensor, NVFP4Tensor, PackedNVFP4Storage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """An NVFP4 tensor whose one copy is packed."""

    STORAGE = PackedNVFP4Storage


class PackedMXFP4Storage(PackedStorage, MXFP4TensorStorage):
    """A packed copy of MXFP4."""

    QUANTIZER = MXFP4Quantizer


class PackedMXFP4Tensor(PackedTensor, MXFP4Tensor, PackedMXFP4Storage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """An MXFP4 tensor whose one copy is packed."""

    STORAGE = PackedMXFP4Storage


def packed_tensor(data: torch.Tensor, shape, quantizer: Any, dtype: torch.dtype) -> PackedTensor:
    """The packed tensor of what a quantizer of FP4 makes."""
    kind = PackedMXFP4Tensor if isinstance(quantizer, MXFP4Quantizer) else PackedNVFP4Tensor
    return kind(packed_data=data, shape=shape, quantizer=quantizer, dtype=dtype)
