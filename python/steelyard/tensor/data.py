"""`tensor.data = value`: as with a plain tensor, shape, dtype and memory become those of the value."""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._python_dispatch

from steelyard.errors import RecipeError
from steelyard.tensor.elements import PRESENTED, PRESENTED_NAMES
from steelyard.tensor.scheme_storage import SchemeStorage


def set_data(tensor, value: torch.Tensor) -> None:
    """Give a quantized tensor other data. A value in high precision is quantized as the tensor was."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"data must be a tensor, got {type(value).__name__}")
    # Parameters outlive the inference mode in which a module may convert them.
    with torch.inference_mode(False), torch.no_grad():
        taken = _in_format_of(tensor, value)
    storage = taken._as_storage()
    storage._quantizer = storage._quantizer.copy()
    # torch takes over sizes, strides, dtype and device. It refuses another kind of device before anything changes.
    vars(torch._C.TensorBase)["data"].__set__(tensor, taken)
    vars(tensor).update(vars(storage))


def _in_format_of(tensor, value: torch.Tensor) -> Any:
    """The value as a quantized tensor of the same class. A value of that class shares its memory."""
    adopted = _adopt(tensor, value) if isinstance(value, SchemeStorage) else None
    if adopted is not None:
        return adopted
    if value.dtype not in PRESENTED:
        raise RecipeError(
            f"data of a {type(tensor).__name__} must be {PRESENTED_NAMES}, got {value.dtype}; convert it first"
        )
    if _holds(tensor, value):
        # A change of dtype alone: quantizing again could change codes.
        return tensor.detach().clone().to_dtype(value.dtype)
    source = value.float() if value.dtype == torch.float64 else value
    return tensor._stored(tensor._like().quantize(source).to_dtype(value.dtype))


def _adopt(tensor, value: Any):
    """A quantized value with the layout of the tensor; None if it has another format."""
    value = value.clone() if value.is_inference() and not tensor.is_inference() else value
    adopted = value if value.STORAGE is tensor.STORAGE else tensor._stored(value._compact())
    return None if adopted is None else adopted._shallow_copy()


def _holds(tensor, value: torch.Tensor) -> bool:
    """Whether a value is what the tensor decodes to, to the bit."""
    if value.shape != tensor.shape or value.device != tensor.device or not any(tensor.get_usages().values()):
        return False
    if value.is_meta:
        return True
    bits = [each.reshape(-1).view(torch.uint8) for each in (tensor._decode(value.dtype), value.detach())]
    return torch.equal(*bits)


class FlattenMethod:
    """A tensor's `__tensor_flatten__`, which `Module._apply` does not see.

    A module that converts its parameters swaps those that can be flattened, instead of setting their data. That fails
    while torch.compile or a graph refers to the parameter, after others were converted. `set_data` does not.
    """

    def __init__(self, method: Callable):
        self._method = method

    def __get__(self, tensor, owner) -> Callable:
        if tensor is None:
            return self._method
        if _asking_function() is torch.nn.Module._apply.__code__:
            raise AttributeError("a module sets the data of this tensor, and does not flatten it")
        return self._method.__get__(tensor, owner)


def _asking_function():
    """The code that asked torch whether a tensor can be flattened."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == torch.utils._python_dispatch.__name__:
        frame = frame.f_back
    return None if frame is None else frame.f_code
