"""torch's own ops on the streams of mock GPUs: the host goes on at once, and the op runs when its stream gets there.

An op that gives the host a value waits for its stream; so do ops that draw random numbers, and the few whose results
torch's meta device does not know.
"""

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from mock_heap import Heap
    from mock_streams import Stream

_aten = torch.ops.aten
_ALLOCATIONS = (
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
)
_META = torch.device("meta")
_COPIES = (_aten._to_copy.default, _aten.copy_.default)
# These change what a tensor is, and none of its memory.
_METADATA = ("set_", "resize_", "detach_", "_unsafe_view", "lift_fresh", "alias")
_WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}


def dispatch(heap: "Heap", func, args: tuple, kwargs: dict[str, Any]):
    """Run an op of torch on the device that its tensors are on, or that it names."""
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if kwargs.get("device") == _META:
        return func(*args, **kwargs)
    device, kwargs = _place(heap, func, given, kwargs)
    if device is None:
        return func(*args, **kwargs)
    stream = heap.streams.current_on(device)
    if _moves_between(heap, func, given, device):
        return _copy_between(heap, func, args, kwargs, device)
    if func in _ALLOCATIONS or _is_metadata(func):
        result = func(*args, **kwargs)
        heap.add(_tensors(result), device, fresh=func in _ALLOCATIONS)
        return result
    if not given:
        return _make(heap, func(*args, **kwargs), device)
    written = _written(func, args, kwargs)
    if written is None or _waits(func):
        return _run_now(heap, func, args, kwargs, stream)
    if written:
        _enqueue(heap, func, args, kwargs, [], stream)
        return None if not func._schema.returns else written[0] if len(written) == 1 else tuple(written)
    outputs = _outputs(func, args, kwargs)
    if outputs is None:
        return _run_now(heap, func, args, kwargs, stream)
    heap.add(_tensors(outputs), device, fresh=True)
    _enqueue(heap, func, args, kwargs, _tensors(outputs), stream)
    return outputs


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the memory of another, which does not keep that memory."""
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if not size:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    raw = torch.frombuffer((ctypes.c_char * size).from_address(storage.data_ptr()), dtype=torch.uint8)
    alias = torch.empty(0, dtype=tensor.dtype)
    alias.set_(raw.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return torch._neg_view(alias) if tensor.is_neg() else alias


def _place(heap: "Heap", func, given: list[torch.Tensor], kwargs: dict) -> tuple[int | None, dict]:
    """The device that an op runs on, None for the host, and its arguments without mention of it."""
    named = kwargs.get("device")
    if named is not None and named.type == "cpu" and named.index is not None:
        return named.index, kwargs | {"device": torch.device("cpu")}
    if not heap.has_host:
        return 0, kwargs
    found = {heap.device_of(tensor) for tensor in given}
    on_devices = sorted(device for device in found if device is not None)
    is_mixed = None in found and any(heap.device_of(t) is None and t.dim() for t in given)
    if func not in _COPIES and on_devices and (len(on_devices) > 1 or is_mixed):
        places = ", ".join(sorted(str(tensor.device) for tensor in given))
        raise RuntimeError(f"{func} must have all tensors on one device, got {places}")
    return (on_devices[0] if on_devices else None), kwargs


def _moves_between(heap: "Heap", func, given: list[torch.Tensor], device: int) -> bool:
    return heap.has_host and func in _COPIES and any(heap.device_of(tensor) != device for tensor in given)


def _copy_between(heap: "Heap", func, args: tuple, kwargs: dict, device: int):
    """A copy from or to another device: both of their streams wait for it, and the host if it takes part."""
    target = args[0] if func is _aten.copy_.default else torch.empty_like(args[0], **_without_device(kwargs))
    source = args[1] if func is _aten.copy_.default else args[0]
    if func is not _aten.copy_.default:
        heap.add([target], device, fresh=True)
    places = [heap.device_of(source), heap.device_of(target)]
    streams = [heap.streams.current_on(place) for place in places if place is not None]
    streams[0].wait_stream(streams[-1])
    heap.enqueue(lambda into, other: into.copy_(other), (target, source), streams[0])
    streams[-1].wait_stream(streams[0])
    if None in places:
        streams[0].synchronize()
    return target


def _without_device(kwargs: dict) -> dict:
    return {name: value for name, value in kwargs.items() if name in ("dtype", "memory_format")}


def _is_metadata(func) -> bool:
    return func.is_view or torch.Tag.inplace_view in func.tags or func._schema.name.removeprefix("aten::") in _METADATA


def _waits(func) -> bool:
    """Whether the host needs to know what an op computes."""
    returns = func._schema.returns
    return bool(_WAITING.intersection(func.tags)) or any("Tensor" not in str(one.type) for one in returns)


def _written(func, args: tuple, kwargs: dict) -> list | None:
    """The arguments that an op writes; None if it returns other tensors as well."""
    schema = func._schema
    named = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
    written = [named[a.name] for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if written and any(one.alias_info is None for one in schema.returns):
        return None
    return written


def _run_now(heap: "Heap", func, args: tuple, kwargs: dict, stream: "Stream"):
    stream.synchronize()
    result = func(*args, **kwargs)
    heap.add(_tensors(result), stream.device)
    return result


def _make(heap: "Heap", result, device: int):
    """What an op made of numbers that the host knew; a stream writes it."""
    tensors = _tensors(result)
    values = [tensor.clone() for tensor in tensors]
    heap.add(tensors, device, fresh=True)
    for tensor, value in zip(tensors, values, strict=True):
        heap.enqueue(lambda out, known=value: out.copy_(known), [tensor], heap.streams.current_on(device))
    return result


def _outputs(func, args: tuple, kwargs: dict) -> Any:
    """Memory for the results of an op, without its values; None where torch does not know without computing them."""
    on_meta = {"device": _META} if kwargs.get("device") is not None else {}
    try:
        made = func(*tree_map(_to_meta, args), **(tree_map(_to_meta, kwargs) | on_meta))
    except (NotImplementedError, RuntimeError):
        return None
    return tree_map(_from_meta, made)


def _to_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)


def _from_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def _enqueue(heap: "Heap", func, args: tuple, kwargs: dict, outputs: list[torch.Tensor], stream: "Stream") -> None:
    def alias(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return alias_of(value) if heap.device_of(value) is not None else value.clone()

    given, named = tree_map(alias, args), tree_map(alias, kwargs)

    def run(*outs: torch.Tensor) -> None:
        made = func(*given, **named)
        for out, result in zip(outs, _tensors(made), strict=bool(outs)):
            out.copy_(result)

    heap.enqueue(run, outputs, stream)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
