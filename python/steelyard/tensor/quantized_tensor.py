"""A quantized tensor that is a `torch.Tensor`: it presents a high-precision dtype and keeps its codes."""

import copy as copy_module
from typing import Any, ClassVar

import torch

from steelyard.errors import RecipeError, shown
from steelyard.tensor import dispatch, fsdp, traced
from steelyard.tensor.arguments import check_dtype, check_flag, check_strided, check_with_values, view_shape
from steelyard.tensor.autograd import DequantizeFunction
from steelyard.tensor.data import FlattenMethod, set_data
from steelyard.tensor.elements import matrix_shape
from steelyard.tensor.quantizer import is_noop
from steelyard.tensor.scheme_storage import SchemeStorage


class QuantizedTensor(torch.Tensor, SchemeStorage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """A storage that is also a `torch.Tensor`, with the constructor of its storage.

    Views keep codes where the scheme allows. A view that cuts through blocks is a decoded copy, and writing to it does
    not write to the tensor. In-place operations decode, compute and quantize again. All other operations decode and run
    in high precision.
    """

    STORAGE: ClassVar[type[SchemeStorage]]

    def __new__(cls, *, requires_grad: bool = False, device: Any = None, **arguments):
        check_flag(requires_grad, "requires_grad")
        storage = cls.STORAGE(**arguments)
        if device is not None and not _is_type_of(device, storage.device):
            found = shown(device)
            raise RecipeError(f"device must be that of the parts, {storage.device}, got {found}; move them first")
        return cls._wrap(storage, requires_grad=requires_grad)

    def __init__(self, **arguments):
        """Everything is done by `__new__`."""

    @classmethod
    def _wrap(cls, storage: SchemeStorage, *, layout: torch.Tensor | None = None, requires_grad: bool = False):
        """The tensor of a storage; `layout` gives the strides and the offset of a view."""
        if torch.compiler.is_dynamo_compiling():
            torch._dynamo.skip_frame("a quantized tensor is assembled outside of graphs")
        strided = {} if layout is None else {"strides": layout.stride(), "storage_offset": layout.storage_offset()}
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            storage._shape,
            **strided,
            dtype=storage._dtype,
            device=storage._device,
            requires_grad=requires_grad,
        )
        vars(tensor).update(vars(storage))
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch.dispatch(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The values in `dtype`, by default that of the tensor; from the rowwise copy if there is one."""
        dtype = self.dtype if dtype is None else dtype
        check_dtype(dtype)
        if self.requires_grad and torch.is_grad_enabled():
            return DequantizeFunction.apply(self, dtype)
        return self._decode(dtype)

    def quantize_(self, tensor: torch.Tensor, *, noop_flag: torch.Tensor | None = None) -> "QuantizedTensor":
        """Overwrite the values with those of `tensor`, unless the tensor `noop_flag` is not zero."""
        if not is_noop(noop_flag):
            source = self._source_of(tensor)
            with torch.no_grad():
                self.copy_(source)
        return self

    def _source_of(self, tensor: Any) -> torch.Tensor:
        """What can overwrite this tensor: others are refused."""
        what = "what overwrites a quantized tensor"
        is_storage = isinstance(tensor, SchemeStorage) and not isinstance(tensor, torch.Tensor)
        source: Any = tensor.dequantize() if is_storage else tensor
        check_strided(source, what)
        if source.shape != self.shape or source.is_complex() or source.is_quantized:
            expected = f"real numbers of its shape {tuple(self.shape)}"
            raise RecipeError(f"{what} must be {expected}, got {source.dtype} of shape {tuple(source.shape)}")
        if traced.is_freed(source):
            raise RecipeError(f"{what} must be in memory, got a freed tensor")
        check_with_values(source, self._any_part(), what)
        return source

    def __setitem__(self, index, value) -> None:
        # Written through the whole tensor, because the indexed view may be a decoded copy.
        if self.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a quantized tensor that requires grad must be written to under torch.no_grad()")
        dense = self._decode(self.dtype)
        dense[index] = value
        self.quantize_(dense)

    def float(self) -> torch.Tensor:
        return self.dequantize(dtype=torch.float32)

    def bfloat16(self) -> torch.Tensor:
        return self.dequantize(dtype=torch.bfloat16)

    def half(self) -> torch.Tensor:
        return self.dequantize(dtype=torch.float16)

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        set_data(self, value)

    def share_memory_(self) -> "QuantizedTensor":
        """Move the parts to shared memory, in place."""
        for part in self._parts():
            part.share_memory_()
        return self

    def is_shared(self) -> bool:
        return all(part.is_shared() for part in self._parts())

    def _parts(self) -> list[torch.Tensor]:
        return [part for name in self.PARTS if (part := getattr(self, name)) is not None]

    def __repr__(self, *, tensor_contents=None) -> str:
        usages = " and ".join(name for name, exists in self.get_usages().items() if exists)
        if not usages:
            return f"{type(self).__name__}(shape={tuple(self.shape)}, cleared)"
        values = self._shown_values()
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"{type(self).__name__}({values}, {usages}{grad})"

    @FlattenMethod
    def __tensor_flatten__(self):
        names = [name for name in self.PARTS if getattr(self, name) is not None]
        return names, (self.dtype, self._quantizer, self._matrix, self._with_gemm_swizzled_scales)

    @classmethod
    def __tensor_unflatten__(cls, inner_tensors, metadata, outer_size, outer_stride):
        dtype, quantizer, matrix, swizzled = metadata
        storage = cls.STORAGE._from_copies((), outer_size, dtype, quantizer, swizzled=swizzled)
        storage._matrix = matrix
        for name, tensor in inner_tensors.items():
            setattr(storage, name, tensor)
            storage._device = tensor.device
        layout = torch.empty_strided(outer_size, outer_stride, dtype=dtype, device="meta")
        return cls._wrap(storage, layout=layout)

    @classmethod
    def __metadata_guard__(cls, saved, found) -> bool:
        """Whether a compiled graph can take another tensor. The values in a delayed quantizer do not matter."""

        def described(metadata):
            dtype, quantizer, matrix, swizzled = metadata
            return dtype, quantizer.row_scheme, quantizer.col_scheme, quantizer.transposed, matrix, swizzled

        return described(saved) == described(found)

    def __reduce_ex__(self, protocol):
        arguments = self.get_metadata()
        if self._matrix != matrix_shape(self.shape):
            arguments["shape"] = torch.Size(self._matrix)
        is_parameter = isinstance(self, torch.nn.Parameter)
        return rebuild_tensor, (type(self), arguments, self.shape, self.requires_grad, is_parameter)

    def __deepcopy__(self, memo):
        if not self.is_leaf:
            raise RuntimeError("only leaves of the autograd graph can be deep-copied; detach the tensor first")
        detached = self.detach().clone(memory_format=torch.contiguous_format)
        vars(detached)["_quantizer"] = copy_module.deepcopy(self._quantizer, memo)
        new = as_parameter(detached, self.requires_grad, isinstance(self, torch.nn.Parameter))
        new.grad = copy_module.deepcopy(self.grad, memo)
        memo[id(self)] = new
        return new

    def fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy):
        """What `torch.distributed.fsdp.fully_shard` gathers of a parameter sharded along its first dim."""
        return fsdp.pre_all_gather(self, mesh, outer_size)

    def fsdp_post_all_gather(self, all_gather_outputs, metadata, param_dtype, *, out=None):
        """The parameter that `fully_shard` makes from the gathered shards."""
        return fsdp.post_all_gather(self, all_gather_outputs, metadata, param_dtype, out)

    @classmethod
    def make_like(
        cls, tensor: "QuantizedTensor", *, shape=None, dtype: torch.dtype | None = None, requires_grad: bool = False
    ) -> "QuantizedTensor":
        """A tensor of the same codes in the same memory, by default with the same shape and dtype."""
        if not isinstance(tensor, cls):
            raise RecipeError(f"the tensor must be a {cls.__name__}, got {type(tensor).__name__}; quantize it first")
        check_flag(requires_grad, "requires_grad")
        like: Any = tensor.detach() if shape is None else tensor.detach().view(view_shape((shape,), tensor.numel()))
        return like.to_dtype(tensor.dtype if dtype is None else dtype).requires_grad_(requires_grad)

    def to_dtype(self, dtype: torch.dtype) -> "QuantizedTensor":
        """The same codes in the same memory, presented as another dtype, without gradient."""
        return type(self)._wrap(self._as_storage().to_dtype(dtype), layout=self._layout())

    def _like(self) -> Any:
        """A quantizer that makes tensors with the copies and the order of scales that this one has."""
        quantizer = self._quantizer.copy()
        quantizer.internal, quantizer.optimize_for_gemm = False, self._with_gemm_swizzled_scales
        if any(self.get_usages().values()):
            quantizer.set_usage(**self.get_usages())
        return quantizer

    def _compact(self) -> "QuantizedTensor":
        """This tensor in the layout in which quantizers make tensors."""
        return self

    def _stored(self, compact: "QuantizedTensor") -> "QuantizedTensor | None":
        """A compact tensor in the layout of this one; None if it has another format."""
        return compact if compact.STORAGE is self.STORAGE else None

    def _shallow_copy(self) -> "QuantizedTensor":
        return type(self)._wrap(self._as_storage(), layout=self._layout())

    def _as_storage(self) -> SchemeStorage:
        """The storage of the same parts, without attributes that users set on the tensor."""
        storage = self.STORAGE._from_copies(
            (), self._shape, self.dtype, self._quantizer, swizzled=self._with_gemm_swizzled_scales
        )
        storage._device, storage._root, storage._matrix = self._device, self._root, self._matrix
        for name in self.PARTS:
            setattr(storage, name, getattr(self, name))
        return storage

    def _layout(self) -> torch.Tensor:
        """A tensor without memory that has the sizes, strides and offset of this one."""
        offset = self.storage_offset()
        extent = 1 + offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride(), strict=True))
        memory = torch.empty(max(extent, 0), dtype=self.dtype, device="meta")
        return memory.as_strided(self.shape, self.stride(), offset)


def rebuild_tensor(tensor_class: type, arguments: dict, shape, requires_grad: bool, is_parameter: bool):
    """The tensor that was pickled."""
    if not (isinstance(tensor_class, type) and issubclass(tensor_class, QuantizedTensor)):
        raise TypeError(f"a pickled quantized tensor must be of a QuantizedTensor class, got {tensor_class!r}")
    return as_parameter(tensor_class(**arguments).view(shape), requires_grad, is_parameter)


def _is_type_of(device: Any, found: torch.device) -> bool:
    try:
        return torch.device(device).type == found.type
    except (RuntimeError, TypeError, ValueError):
        return False


def as_parameter(tensor: torch.Tensor, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    """A tensor as the leaf that it was, a parameter perhaps."""
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
