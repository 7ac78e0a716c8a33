"""The state dict of a net: a quantized parameter as plain tensors, which every file format takes.

    0.weight             its codes, as one row of bytes: no plain parameter has this shape, so that none takes them
    0.weight.scale_inv   the scales that decode them
    0.weight.amax        the second level of NVFP4
    0.weight.scale       the scale that quantizes, of delayed scaling
    0.weight.format      JSON, as bytes: format, shape and dtype

Keys that begin with `_steelyard.` are the net's own state.
"""

import dataclasses
import functools
import json
import math
import weakref
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

from steelyard.driver.stored_weights import assemble
from steelyard.errors import StateError, UnsupportedModelError, shown
from steelyard.formats.parts import FLOATS, part_shapes
from steelyard.formats.schemes import Scheme
from steelyard.runtime.state import State, converted
from steelyard.tensor.arguments import check_tensor_dtype
from steelyard.tensor.from_scheme import make_quantizer
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.stack import QuantizedStack
from steelyard.tensor.views import swap_usage

STATE_PREFIX = "_steelyard."
_FORMAT = ".format"
_SUFFIXES = {"codes": "", "scales": ".scale_inv", "amax": ".amax"}


class StateHook:
    """Takes the state of nets out of a state dict that their model loads, so that the plain model loads it strictly."""

    def __init__(self):
        self._states: weakref.WeakSet[State] = weakref.WeakSet()

    def __call__(self, module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, *_) -> None:
        own = f"{prefix}{STATE_PREFIX}"
        loaded = {key: state_dict.pop(key) for key in list(state_dict) if key.startswith(own)}
        for state in self._states:
            state.load({key.removeprefix(own): tensor for key, tensor in loaded.items()})

    def __deepcopy__(self, memo: dict) -> "StateHook":
        return StateHook()

    def __reduce__(self):
        # A pickled model must not need Steelyard: this class of torch takes the arguments of a hook and does nothing.
        return functools.partial, (torch.nn.Identity,)

    @classmethod
    def register(cls, model: torch.nn.Module, state: State) -> None:
        """Let a model load state dicts of its net, whose state this is."""
        hooks = [getattr(wrapped, "hook", None) for wrapped in model._load_state_dict_pre_hooks.values()]
        known = next((hook for hook in hooks if isinstance(hook, cls)), None)
        if known is None:
            known = cls()
            model.register_load_state_dict_pre_hook(known)
        known._states.add(state)


def flatten(state_dict: MutableMapping[str, Any], prefix: str = "") -> None:
    """Put plain tensors in the place of each quantized one, in place; a parameter with two names is copied."""
    seen: set[int] = set()
    for key, value in list(state_dict.items()):
        if not key.startswith(prefix) or not isinstance(value, QuantizedTensor):
            continue
        parts = _split(value)
        if parts is None:
            continue
        # Files hold no memory twice, and libraries drop the second name of each part on its own.
        is_second = parts[""].data_ptr() in seen
        seen.add(parts[""].data_ptr())
        state_dict.update({f"{key}{suffix}": part.clone() if is_second else part for suffix, part in parts.items()})


def join(state_dict: MutableMapping[str, Any], prefix: str = "") -> dict[str, QuantizedTensor]:
    """Put the quantized tensors back, in place; returns them by name."""
    found = {}
    for key in [key for key in state_dict if key.startswith(prefix) and key.endswith(_FORMAT)]:
        name = key.removesuffix(_FORMAT)
        if name not in state_dict:
            continue
        names = [name + suffix for suffix in (*_SUFFIXES.values(), ".scale", _FORMAT)]
        parts = {one.removeprefix(name): state_dict.pop(one) for one in names if one in state_dict}
        state_dict[name] = found[name] = _assemble(name, parts)
    return found


def plain_state_dict(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The state dict of the plain model: what is quantized is decoded, and the net's own state is left out.

    Takes `net.state_dict()`, also from a file. Any model of the same class, compiled or not, loads the result strictly.
    """
    if not isinstance(state_dict, Mapping) or not all(isinstance(key, str) for key in state_dict):
        raise StateError(f"plain_state_dict takes a state dict, from names to tensors, got {shown(state_dict)}")
    plain = {key: value for key, value in state_dict.items() if f".{STATE_PREFIX}" not in f".{key}"}
    join(plain)
    return {key: value.dequantize() if isinstance(value, QuantizedTensor) else value for key, value in plain.items()}


def _split(tensor: QuantizedTensor) -> dict[str, torch.Tensor] | None:
    """The parts of a tensor with one copy, by suffix; None for any other, which stays as it is."""
    usages = tensor.get_usages()
    is_stack = isinstance(tensor, QuantizedStack)
    if (tensor.dim() != 2 and not is_stack) or usages["rowwise"] == usages["columnwise"]:
        return None
    is_transposed = usages["columnwise"]
    scheme, codes, scales, amax = _stack_parts(tensor) if is_stack else _matrix_parts(tensor, is_transposed)
    scale = tensor._quantizer.scale if scheme.source == "delayed" else None
    if make_quantizer(scheme, _level(amax) if scheme.is_static else scale) is None:
        return None
    about = {
        "scheme": dataclasses.asdict(scheme),
        "shape": list(tensor.shape),
        "transposed": is_transposed,
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
    text = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    parts = {"": codes.reshape(-1), ".scale_inv": scales, ".amax": amax, ".scale": scale, _FORMAT: text}
    return {suffix: part.contiguous() for suffix, part in parts.items() if part is not None}


Parts = tuple[Scheme, torch.Tensor, torch.Tensor, torch.Tensor | None]
"""How a tensor is quantized, its codes, its scales, and the second level of NVFP4."""


def _matrix_parts(tensor: QuantizedTensor, is_transposed: bool) -> Parts:
    copy = tensor._copy(is_transposed)
    assert copy is not None
    copy = swap_usage(copy) if is_transposed else copy
    return copy.scheme, copy.codes, copy.scales, copy.amax if copy.scheme.family == "nvfp4" else None


def _stack_parts(stack: QuantizedStack) -> Parts:
    compact = stack.unpacked()
    return compact.scheme, compact._codes, compact._scales, compact._amax


def _level(amax: torch.Tensor | None) -> torch.Tensor | None:
    """One of the second levels that were given: a quantizer has one, and its tensors keep their own."""
    return None if amax is None else amax.reshape(-1)[0]


def _assemble(name: str, parts: Mapping[str, torch.Tensor]) -> QuantizedTensor:
    try:
        about = json.loads(bytes(converted(f"{name}{_FORMAT}", parts[_FORMAT], torch.uint8).tolist()))
        scheme, dtype = Scheme(**about["scheme"]), getattr(torch, about["dtype"])
        check_tensor_dtype(dtype)
        shape, is_transposed = tuple(about["shape"]), about["transposed"]
        count, matrix = shape[:-2], shape[-2:]
        checked = _checked(name, parts, scheme, count, matrix[::-1] if is_transposed else matrix)
        scale = None if ".scale" not in parts else converted(f"{name}.scale", parts[".scale"], torch.float32)
        # The second level of a static scheme is among the parts.
        quantizer = make_quantizer(scheme, _level(checked[-1]) if scheme.is_static else scale)
        assert quantizer is not None
        if count:
            return QuantizedStack.from_parts(checked, quantizer, shape, dtype, transposed=is_transposed)
        return assemble(checked, quantizer, shape, dtype, is_transposed=is_transposed)
    except StateError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        found = f"{type(error).__name__}: {error}"
        raise UnsupportedModelError(
            f"{name} in the state dict must be a quantized parameter as net.state_dict() writes it, got {found}; save "
            "the net again"
        ) from error


def _checked(
    name: str, parts: Mapping[str, torch.Tensor], scheme: Scheme, count: tuple[int, ...], shape: tuple[int, int]
) -> list[torch.Tensor]:
    """The codes, the scales and the amax as kernels read them, if they have the shapes and the values of the format."""
    found = []
    for part, (own, element) in part_shapes(scheme, shape, False).items():
        if part == "amax" and scheme.family != "nvfp4":
            continue
        sizes = (*count, *own)
        suffix = _SUFFIXES[part]
        tensor = converted(f"{name}{suffix}", parts[suffix], torch.float32 if element == FLOATS else torch.uint8)
        is_flat = part == "codes" and tensor.dim() == 1 and tensor.numel() == math.prod(size or 0 for size in sizes)
        if tensor.shape != sizes and not is_flat:
            raise ValueError(f"{part} of shape {tuple(tensor.shape)}, not {sizes}")
        found.append(tensor)
    return found
