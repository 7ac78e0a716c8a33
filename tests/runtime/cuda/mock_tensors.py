"""What CPU tensors say of themselves while they are on mock GPUs, to host code and to torch's own Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from mock_heap import Heap

PLAIN = (torch.Tensor, torch.nn.Parameter)
_device, _is_cpu = torch._C.TensorBase.device.__get__, torch._C.TensorBase.is_cpu.__get__
_numpy, _tolist = torch._C.TensorBase.numpy, torch._C.TensorBase.tolist
_deepcopy, _reduce = torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__


@contextmanager
def tensors_on(heap: "Heap") -> Iterator[None]:
    """Within this context, tensors are where the heap says, and the host waits before it reads their values."""
    before = {name: vars(torch.Tensor).get(name) for name in _members(heap)}
    for name, member in _members(heap).items():
        setattr(torch.Tensor, name, member)
    try:
        yield
    finally:
        for name, member in before.items():
            delattr(torch.Tensor, name) if member is None else setattr(torch.Tensor, name, member)


def _members(heap: "Heap") -> dict[str, Any]:
    def is_on_gpu(tensor: torch.Tensor) -> bool:
        return type(tensor) in PLAIN and _is_cpu(tensor) and heap.device_of(tensor) is not None

    def device(tensor: torch.Tensor) -> torch.device:
        is_numbered = heap.has_host and is_on_gpu(tensor)
        return torch.device("cpu", heap.device_of(tensor)) if is_numbered else _device(tensor)

    def wait(tensor: torch.Tensor) -> None:
        if is_on_gpu(tensor) and not heap.is_working:
            heap.stream_of(tensor).synchronize()

    def numpy(tensor: torch.Tensor, **options):
        wait(tensor)
        return _numpy(tensor, **options)

    def tolist(tensor: torch.Tensor):
        wait(tensor)
        return _tolist(tensor)

    def reduce(tensor: torch.Tensor, protocol: int):
        wait(tensor)  # torch.save reads memory, not values
        return _reduce(tensor, protocol)

    def deepcopy(tensor: torch.Tensor, memo: dict) -> torch.Tensor:
        # torch copies the memory of a CPU tensor without an op.
        if not is_on_gpu(tensor) or not tensor.is_leaf:
            return _deepcopy(tensor, memo)
        return memo.setdefault(id(tensor), tensor.detach().clone().requires_grad_(tensor.requires_grad))

    return {
        "device": property(device),
        "is_cpu": property(lambda tensor: _is_cpu(tensor) and not is_on_gpu(tensor)),
        "numpy": numpy,
        "tolist": tolist,
        "record_stream": lambda tensor, stream: heap.record_stream(tensor, stream),
        "__reduce_ex__": reduce,
        "__deepcopy__": deepcopy,
    }
