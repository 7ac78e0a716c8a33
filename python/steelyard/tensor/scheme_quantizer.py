"""The base class of the built-in quantizers: schemes describe the format, kernels do the work."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import torch
import torch.distributed

from steelyard.errors import RecipeError, shown
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.gemms import reads_columnwise
from steelyard.formats.schemes import Scheme
from steelyard.tensor import kernels, traced
from steelyard.tensor.arguments import (
    as_device,
    as_shape,
    check_flag,
    check_presented,
    check_strided,
    check_with_values,
)
from steelyard.tensor.autograd import QuantizeFunction
from steelyard.tensor.elements import ELEMENT_DTYPES, fp8_element, matrix_shape
from steelyard.tensor.quantizer import Quantizer, check_kind, check_quantized, is_high_precision, is_noop, overrides
from steelyard.tensor.scheme_storage import SchemeStorage
from steelyard.tensor.storage import QuantizedTensorStorage

Copies = tuple[QuantizedCopy | None, QuantizedCopy | None]


@dataclass(eq=False)
class SchemeQuantizer(Quantizer):
    """A quantizer of built-in schemes. Subclasses choose the schemes, and what kernels need besides the data."""

    STORAGE: ClassVar[type[SchemeStorage]]
    TENSOR: ClassVar[Any]
    ALSO_REQUIRED = ""

    transposed: bool = field(default=False, kw_only=True)
    """Whether this quantizes a transposed tensor: the copies are swapped, and the columnwise one holds the values."""
    amax_reduction_group: Any = field(default=None, kw_only=True)
    """Process group over which tensor amaxes are max-reduced, so that shards of one tensor share a scale."""

    def _make_scheme(self, columnwise: bool) -> Scheme:
        """The scheme of one usage of a tensor that is not transposed."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the codes."""
        return ELEMENT_DTYPES[self.row_scheme.element]

    @dtype.setter
    def dtype(self, value: torch.dtype) -> None:
        if "fp8_dtype" in vars(self):
            fp8_element(value)
            self.fp8_dtype = value
        elif value != self.dtype:
            raise RecipeError(f"{type(self).__name__}.dtype must be {self.dtype}, got {shown(value)}")

    def _check_flags(self) -> None:
        """Refuse flags that are neither True nor False."""
        for each in fields(self):
            if each.type is bool:
                check_flag(getattr(self, each.name), f"{type(self).__name__}.{each.name}")

    @property
    def row_scheme(self) -> Scheme:
        return self._make_scheme(columnwise=self.transposed)

    @property
    def col_scheme(self) -> Scheme:
        return self._make_scheme(columnwise=not self.transposed)

    def is_quantizable(self, tensor: torch.Tensor) -> bool:
        return is_high_precision(tensor)

    def of_transpose(self) -> Self:
        """The quantizer of the transpose of a tensor."""
        new = self.copy()
        new.transposed = not self.transposed
        return new

    def quantize(self, tensor: torch.Tensor, *, out=None, dtype: torch.dtype | None = None):
        check_presented(dtype, out)
        if out is not None:
            return self.update_quantized(tensor, out)
        tensor = self._source_of(tensor)
        if tensor.requires_grad and torch.is_grad_enabled() and not self.internal:
            return QuantizeFunction.apply(tensor, self, dtype)
        made = self.quantize_impl(tensor.detach())
        return made if dtype is None else made.to_dtype(dtype)

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        copies = self.encode(tensor, matrix_shape(tensor.shape), *self._wanted_schemes(self.get_usages()))
        self.observe(copies)
        return self.assemble(copies, tensor.shape, tensor.dtype)

    def schemes(self) -> tuple[Scheme | None, Scheme | None]:
        if not self._is_overridden():
            return self._wanted_schemes(self.get_usages())
        # Built-in kernels would pass a user's own arithmetic by, so recipes must call this quantizer.
        own = Scheme("none", "tensor", "f32", custom=type(self).__name__)
        return own if self.rowwise else None, own if self.columnwise else None

    def _wanted_schemes(self, usages: dict[str, bool]) -> tuple[Scheme | None, Scheme | None]:
        """The schemes of the copies that are wanted."""
        return self.row_scheme if usages["rowwise"] else None, self.col_scheme if usages["columnwise"] else None

    def _is_overridden(self) -> bool:
        """Whether a user's subclass quantizes or multiplies in its own way."""
        return overrides(type(self), SchemeQuantizer, "quantize", "quantize_impl", "qgemm")

    def update_quantized(self, src: torch.Tensor, dst: Any, *, noop_flag: torch.Tensor | None = None):
        """Quantize `src` into the copies that `dst` has, unless the tensor `noop_flag` is not zero."""
        if is_noop(noop_flag):
            return dst
        if not isinstance(dst, self.STORAGE):
            raise RecipeError(
                f"dst must be a {self.STORAGE.__name__}, as {type(self).__name__} makes it, got {type(dst).__name__}"
            )
        theirs = dst._quantizer
        if (self.row_scheme, self.col_scheme) != (theirs.row_scheme, theirs.col_scheme):
            raise RecipeError(f"dst must have been made by a quantizer like {self}, got one made by {theirs}")
        if dst._root is not None:
            # A scale may span more than a view, so the viewed tensor is written to, by its own quantizer.
            return dst.quantize_(src)
        self.write(src, dst)
        if isinstance(dst, torch.Tensor) and not dst.is_inference():
            torch.autograd.graph.increment_version(dst)
        return dst

    def write(self, src: torch.Tensor, dst: SchemeStorage) -> None:
        """Quantize `src` into the memory of the copies that `dst` has."""
        src = self._source_of(src)
        if src.shape != dst.shape:
            raise RecipeError(f"src must have the shape of dst, {tuple(dst.shape)}, got {tuple(src.shape)}")
        check_with_values(src, dst._any_part(), "src")
        copies = self._copies_for(dst, src.detach())
        if dst._with_gemm_swizzled_scales:
            _swizzle(copies)
        with torch.no_grad():
            dst._write_copies(copies)

    def _copies_for(self, dst: SchemeStorage, src: torch.Tensor) -> Copies:
        """The copies that `dst` has, of other values."""
        if not self._is_overridden():
            copies = self.encode(src, dst._matrix, *self._wanted_schemes(dst.get_usages()))
            self.observe(copies)
            return copies
        alone = self.copy()
        alone.set_usage(**dst.get_usages())
        made = alone.quantize(src.reshape(dst._matrix))
        return made._copy(False), made._copy(True)

    def make_empty(self, shape, *, dtype: torch.dtype = torch.float32, device=None, requires_grad: bool = False):
        # Encoding zeros gives every part its shape, and values that decode to zero, without communication.
        shape = as_shape(shape)
        if dtype is None:
            raise RecipeError("dtype must be float32, bfloat16 or float16, got None; leave it out")
        check_presented(dtype)
        check_flag(requires_grad, "requires_grad")
        if requires_grad and self.internal:
            raise RecipeError("requires_grad must be False where internal=True makes storages, which have no gradient")
        alone = self.copy()
        alone.amax_reduction_group = None
        zeros = torch.zeros(shape, dtype=dtype, device=as_device(device))
        copies = alone.encode(zeros, matrix_shape(shape), *self._wanted_schemes(self.get_usages()))
        made = self.assemble(copies, shape, dtype)
        return made.requires_grad_() if requires_grad else made

    def assemble(self, copies: Copies, shape, dtype: torch.dtype) -> Any:
        """A storage or a tensor made of copies."""
        swizzled = self.optimize_for_gemm and self.row_scheme.has_blocks
        if swizzled:
            _swizzle(copies)
        storage = self.STORAGE._from_copies(copies, shape, dtype, self.copy(), swizzled=swizzled)
        return storage if self.internal else self.TENSOR._wrap(storage)

    def qgemm(
        self, a: Any, b: Any, *, kind: str = "fprop", bias=None, accumulate=None, out_dtype=torch.float32
    ) -> torch.Tensor:
        """As `Quantizer.qgemm`. The operands may be of different formats, and `a` of fprop and dgrad a plain tensor."""
        check_kind(kind)
        left_usage, right_usage = reads_columnwise(kind)
        is_plain = kind != "wgrad" and _is_plain(a)
        check_quantized(*([b] if is_plain else [a, b]), storage_class=SchemeStorage)
        if is_plain:
            check_strided(a, "an operand of a product")
        left = a.detach().reshape(matrix_shape(a.shape)) if is_plain else _operand(a, kind, columnwise=left_usage)
        right = _operand(b, kind, columnwise=right_usage)
        return kernels.qgemm(left, right, bias=bias, accumulate=accumulate, out_dtype=out_dtype)

    def encode(self, tensor: torch.Tensor, shape: tuple[int, int], row: Scheme | None, col: Scheme | None) -> Copies:
        """The copies of a tensor as a matrix of this shape, by these schemes; no state is updated."""
        dense = tensor._decode(tensor.dtype) if isinstance(tensor, SchemeStorage) else tensor
        if traced.is_freed(dense):
            raise RecipeError(f"a tensor to quantize must be in memory, got a freed one of shape {tuple(tensor.shape)}")
        matrix = dense.reshape(shape)
        return kernels.quantize(matrix, row, col, **self._operands(matrix, row, col))

    def of_matrix(self, index: int) -> Self:
        """The quantizer of one matrix of a stack."""
        return self

    def observe(self, copies: Copies) -> None:
        """Record what delayed scaling needs from a quantize."""

    def _operands(self, matrix: torch.Tensor, row: Scheme | None, col: Scheme | None) -> dict[str, Any]:
        """What the schemes need besides the data."""
        return {}

    def _reduced_amaxes(self, matrix: torch.Tensor, row: Scheme | None, col: Scheme | None) -> dict[str, Any]:
        """The amaxes of the copies, reduced over the group, if there is one."""
        if self.amax_reduction_group is None:
            return {}
        amaxes = []
        for scheme in (row, col):
            if scheme is None or scheme.second_level == "row":
                amaxes.append(None)
                continue
            amax = kernels.amax(matrix.T if scheme is row and scheme.rht else matrix, rht=scheme.rht)
            # The bits of non-negative numbers sort like the numbers, with NaN above all.
            bits = amax.view(torch.int32)
            torch.distributed.all_reduce(bits, torch.distributed.ReduceOp.MAX, group=self.amax_reduction_group)
            amaxes.append(amax)
        return {"amax": tuple(amaxes)}

    def _options(self) -> dict[str, Any]:
        # A process group is meaningful only in its own process.
        return {**vars(self), "amax_reduction_group": None}


def _is_plain(operand: Any) -> bool:
    """Whether this is a tensor in high precision that is not quantized."""
    return is_high_precision(operand) and not isinstance(operand, QuantizedTensorStorage)


def _operand(tensor: SchemeStorage, kind: str, *, columnwise: bool) -> QuantizedCopy:
    """The copy of a tensor that a GEMM reads."""
    copy = tensor._copy(columnwise)
    if copy is None:
        usage = "columnwise" if columnwise else "rowwise"
        raise RecipeError(f"{kind} needs the {usage} copy of an operand, got {tensor.get_usages()}")
    if tensor._matrix != matrix_shape(tensor.shape):
        raise RecipeError(
            f"an operand of shape {tuple(tensor.shape)} must be quantized along its last dim, got codes of a "
            f"{tensor._matrix[0]}x{tensor._matrix[1]} matrix; dequantize and quantize it in its new shape"
        )
    return copy


def _swizzle(copies: Copies) -> None:
    for copy in copies:
        if copy is not None:
            copy.scales = kernels.swizzle(copy)
