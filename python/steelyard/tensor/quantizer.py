"""The base class of quantizers, which turn tensors into quantized tensors."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from steelyard.errors import RecipeError, shown
from steelyard.formats.gemms import KINDS
from steelyard.formats.schemes import Scheme
from steelyard.tensor.arguments import as_device, as_shape, check_flag, check_presented, check_strided
from steelyard.tensor.elements import HIGH_PRECISION, matrix_shape
from steelyard.tensor.storage import QuantizedTensorStorage
from steelyard.tensor.traced import is_freed


@dataclass(eq=False)
class Quantizer:
    """Makes quantized tensors of one format.

    A format of your own implements `quantize_impl`, or `quantize` itself, and `qgemm` if it does not multiply decoded
    operands.
    """

    ALSO_REQUIRED: ClassVar[str] = " with at least one dim"
    """What `is_quantizable` requires besides the dtype, as errors say it."""

    rowwise: bool = field(default=True, kw_only=True)
    """Make the copy that is quantized along the last dim."""
    columnwise: bool = field(default=True, kw_only=True)
    """Make the copy that is quantized along the first dim."""
    internal: bool = field(default=False, kw_only=True)
    """Make storages instead of `torch.Tensor` subclasses: less work per call, no autograd."""
    optimize_for_gemm: bool = field(default=False, kw_only=True)
    """Store block scales in the order that GPU GEMMs read."""

    def __new__(cls, *arguments, **options):
        if not overrides(cls, Quantizer, "quantize", "quantize_impl"):
            raise TypeError(f"{cls.__name__} must implement quantize_impl, or quantize itself, got neither")
        return super().__new__(cls)

    def quantize_impl(self, tensor: torch.Tensor) -> QuantizedTensorStorage:
        """Quantize a tensor that `is_quantizable` accepts, without autograd."""
        raise NotImplementedError(f"{type(self).__name__} has no quantize_impl; call quantize")

    @property
    def row_scheme(self) -> Scheme:
        """How the rowwise copy is quantized."""
        return Scheme("none", "tensor", "f32", custom=type(self).__name__)

    @property
    def col_scheme(self) -> Scheme:
        """How the columnwise copy is quantized."""
        return self.row_scheme

    def schemes(self) -> tuple[Scheme | None, Scheme | None]:
        """The rowwise and the columnwise scheme, None for a copy that is not made. Recipes use these."""
        return self.row_scheme if self.rowwise else None, self.col_scheme if self.columnwise else None

    def scheme(self, usage: str) -> Scheme | None:
        """The scheme of `rowwise` or `columnwise`, None if that copy is not made."""
        if not isinstance(usage, str) or usage not in ("rowwise", "columnwise"):
            raise RecipeError(f"usage must be rowwise or columnwise, got {shown(usage)}")
        return self.schemes()[usage == "columnwise"]

    def quantize(self, tensor: torch.Tensor, *, out=None, dtype: torch.dtype | None = None):
        """A quantized tensor with the dtype `dtype` (by default the tensor's own), or `out`, overwritten."""
        check_presented(dtype, out)
        if out is not None:
            return self.update_quantized(tensor, out)
        source = self._source_of(tensor).detach()
        return self.quantize_impl(source if dtype is None else source.to(dtype))

    def __call__(self, tensor: torch.Tensor, **options):
        return self.quantize(tensor, **options)

    def update_quantized(self, src: torch.Tensor, dst: QuantizedTensorStorage, *, noop_flag=None):
        """Quantize `src` into `dst`, unless the tensor `noop_flag` is not zero; returns `dst`."""
        if is_noop(noop_flag):
            return dst
        made = self.quantize(self._source_of(src).detach())
        if type(dst) is not type(made):
            raise RecipeError(
                f"dst must be a {type(made).__name__}, as {type(self).__name__} makes it, got {type(dst).__name__}"
            )
        vars(dst).update(vars(made))
        return dst

    def make_empty(self, shape, *, dtype: torch.dtype = torch.float32, device=None, requires_grad: bool = False):
        """A quantized tensor of a shape, to be filled by `update_quantized`."""
        check_presented(dtype)
        check_flag(requires_grad, "requires_grad")
        return self.quantize(torch.zeros(as_shape(shape), dtype=dtype, device=as_device(device)))

    def qgemm(
        self,
        a: QuantizedTensorStorage,
        b: QuantizedTensorStorage,
        *,
        kind: str = "fprop",
        bias: torch.Tensor | None = None,
        accumulate: torch.Tensor | None = None,
        out_dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """The product of two quantized matrices; by default that of their decoded values.

        `fprop` is x w^T of (x, w), `dgrad` is dy w of (dy, w), `wgrad` is dy^T x of (dy, x). The bias and `accumulate`,
        of any dtype, are added in float32, and the sum is rounded to `out_dtype` once: rounding the product before the
        addition would lose bits that the sum may keep.
        """
        check_kind(kind)
        check_quantized(a, b)
        left, right = (_matrix(operand.dequantize(dtype=torch.float32)) for operand in (a, b))
        return multiply(
            left.T if kind == "wgrad" else left, right if kind == "fprop" else right.T, bias, accumulate, out_dtype
        )

    def is_quantizable(self, tensor: torch.Tensor) -> bool:
        """Whether `quantize` accepts this tensor."""
        return is_high_precision(tensor) and tensor.dim() > 0

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Choose which copies are made from now on; None leaves a choice as it is."""
        check_flag(rowwise, "rowwise", or_none=True)
        check_flag(columnwise, "columnwise", or_none=True)
        if rowwise is not None:
            self.rowwise = rowwise
        if columnwise is not None:
            self.columnwise = columnwise

    @property
    def rowwise_usage(self) -> bool:
        """Another name of `rowwise`."""
        return self.rowwise

    @rowwise_usage.setter
    def rowwise_usage(self, wanted: bool) -> None:
        self.set_usage(rowwise=wanted)

    @property
    def columnwise_usage(self) -> bool:
        """Another name of `columnwise`."""
        return self.columnwise

    @columnwise_usage.setter
    def columnwise_usage(self, wanted: bool) -> None:
        self.set_usage(columnwise=wanted)

    def calibrate(self, tensor: torch.Tensor) -> None:
        """Update the state of this quantizer as quantizing the tensor would, and quantize nothing."""

    def get_usages(self) -> dict[str, bool]:
        """Which copies are made."""
        return {"rowwise": self.rowwise, "columnwise": self.columnwise}

    def copy(self) -> Self:
        """A quantizer whose options can change without changing this one. They share the tensors of their state."""
        new = object.__new__(type(self))
        vars(new).update(vars(self))
        return new

    def _options(self) -> dict[str, Any]:
        """The options that are compared and serialized."""
        return dict(vars(self))

    def __eq__(self, other) -> bool:
        return type(self) is type(other) and self._options() == other._options()

    def __hash__(self) -> int:
        return hash(type(self))

    def __reduce__(self):
        return rebuild_quantizer, (type(self), self._options())

    def _source_of(self, tensor: Any) -> torch.Tensor:
        """What to quantize, checked: a tensor as it is, a quantized storage decoded."""
        name = type(self).__name__
        if not (self.rowwise or self.columnwise):
            raise RecipeError(f"{name} must make a copy, got no usage; call set_usage first")
        if isinstance(tensor, QuantizedTensorStorage) and not isinstance(tensor, torch.Tensor):
            tensor = tensor.dequantize()
        check_strided(tensor, f"what {name} quantizes")
        if is_functorch_wrapped_tensor(tensor):
            raise RecipeError(
                f"{name} takes a tensor with values, got one of a torch.func transform (vmap, grad, jvp, "
                "functionalize); quantize outside of the transform"
            )
        if is_freed(tensor):
            raise RecipeError(f"{name} takes a tensor in memory, got a freed one of shape {tuple(tensor.shape)}")
        if not self.is_quantizable(tensor):
            raise RecipeError(
                f"{name} takes float32, bfloat16 or float16 tensors{self.ALSO_REQUIRED}, "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
        return tensor


def overrides(cls: type, base: type, *methods: str) -> bool:
    """Whether a class implements one of these methods of a base class anew."""
    return any(getattr(cls, name) is not getattr(base, name) for name in methods)


def is_high_precision(tensor: Any) -> bool:
    """Whether this is a tensor of a dtype that is quantized."""
    is_tensor = isinstance(tensor, torch.Tensor | QuantizedTensorStorage)
    return is_tensor and getattr(tensor, "dtype", None) in HIGH_PRECISION


def multiply(left: torch.Tensor, right: torch.Tensor, bias: Any, accumulate: Any, out_dtype: Any) -> torch.Tensor:
    """`left right^T + bias + accumulate`, added in float32 and rounded once."""
    if left.shape[1] != right.shape[1]:
        raise RecipeError(f"operands must reduce over the same length, got {left.shape[1]} and {right.shape[1]}")
    return add(left @ right.T, bias, accumulate, out_dtype)


def add(product: torch.Tensor, bias: Any, accumulate: Any, out_dtype: Any) -> torch.Tensor:
    """A product and its addends, which must fit, in another dtype."""
    if not isinstance(out_dtype, torch.dtype) or not out_dtype.is_floating_point:
        raise RecipeError(f"out_dtype must be a floating-point dtype, got {shown(out_dtype)}")
    for name, addend, shape in (("bias", bias, product.shape[1:]), ("accumulate", accumulate, product.shape)):
        if addend is None:
            continue
        check_strided(addend, name)
        if addend.shape != shape or addend.is_complex() or addend.device != product.device:
            expected = f"real numbers of shape {tuple(shape)} on {product.device}"
            found = f"{addend.dtype} of shape {tuple(addend.shape)} on {addend.device}"
            raise RecipeError(f"{name} must hold {expected}, got {found}")
        product = product + addend.float()
    return product.to(out_dtype)


def check_quantized(*operands, storage_class: type = QuantizedTensorStorage) -> None:
    """Refuse GEMM operands that are not quantized, or not of `storage_class`."""
    for operand in operands:
        if not isinstance(operand, storage_class):
            raise RecipeError(
                f"a GEMM operand must be a {storage_class.__name__}, got {type(operand).__name__}; quantize it first"
            )


def check_kind(kind: str) -> None:
    """Refuse a kind that is not one of the three GEMMs of a linear layer."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise RecipeError(f"kind must be one of {', '.join(KINDS)}, got {shown(kind)}")


def rebuild_quantizer(quantizer_class: type[Quantizer], options: dict[str, Any]) -> Quantizer:
    """The quantizer that was pickled."""
    if not (isinstance(quantizer_class, type) and issubclass(quantizer_class, Quantizer)):
        raise RecipeError(f"a pickled quantizer must be of a Quantizer class, got {quantizer_class!r}")
    new = object.__new__(quantizer_class)
    vars(new).update(options)
    return new


def is_noop(noop_flag: torch.Tensor | None) -> bool:
    """Whether to skip an update."""
    if noop_flag is None:
        return False
    is_one = isinstance(noop_flag, torch.Tensor) and not noop_flag.is_nested and noop_flag.numel() == 1
    if not is_one or noop_flag.is_meta:
        raise RecipeError(f"noop_flag must be a tensor of one value, got {shown(noop_flag)}")
    return bool(noop_flag.item() != 0)


def _matrix(dense: torch.Tensor) -> torch.Tensor:
    return dense.reshape(matrix_shape(dense.shape))
