"""`memory()`: the bytes that a net holds."""

from collections.abc import Iterable, Mapping

import torch

from steelyard.tensor.quantized_tensor import QuantizedTensor


class Memory(dict[str, int]):
    """A dict of bytes by purpose, which prints as a table."""

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name.ljust(width)}  {size:>15,}" for name, size in self.items())


def parameter_bytes(parameters: Iterable[torch.Tensor]) -> Mapping[str, int]:
    """Bytes of all parameters, each counted once, and of the quantized ones among them."""
    distinct = {id(parameter): parameter for parameter in parameters}
    sizes = {key: _size(parameter) for key, parameter in distinct.items()}
    quantized = sum(sizes[key] for key, parameter in distinct.items() if isinstance(parameter, QuantizedTensor))
    return {"parameters": sum(sizes.values()), "quantized_parameters": quantized}


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of plain tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _size(parameter: torch.Tensor) -> int:
    return tensor_bytes(parameter._parts() if isinstance(parameter, QuantizedTensor) else [parameter])
