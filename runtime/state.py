"""The state of a net: delayed scales, histories of amaxes and random bits, as plain tensors by name."""

from collections.abc import Mapping

import torch
from torch_mlir import ir

from steelyard.ir.attributes import RNG
from steelyard.runtime.dtypes import shape_of


class State:
    """Tensors by name, made when a program first asks for them. Programs of a net share one."""

    def __init__(self):
        self.tensors: dict[str, torch.Tensor] = {}
        self.calls = 0
        """Forwards that ran so far."""

    @staticmethod
    def shape_of(type_: ir.Type) -> tuple[int, ...]:
        """The shape of a state of this type."""
        return tuple(size or 0 for size in shape_of(type_))

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A state by name, as recipes say it begins."""
        # Made at the first call and not when compiling, where torch would make a fake tensor of it.
        found = self.tensors.get(name)
        return self.tensors.setdefault(name, _initial(name, shape)) if found is None else found

    def get_on(self, device: torch.device, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A state by name on a device, where it stays from then on."""
        # Written in place later, which torch forbids for tensors that are made in inference mode.
        with torch.inference_mode(False):
            found = self.get(name, shape)
        if found.device != device:
            found = self.tensors[name] = found.to(device)
        return found

    def put(self, moved: Mapping[str, torch.Tensor]) -> None:
        """Move states on."""
        self.tensors.update(moved)

    def write(self, moved: Mapping[str, torch.Tensor]) -> None:
        """Move states on where they lie: a CUDA graph that is replayed finds them there."""
        torch._foreach_copy_([self.tensors[name] for name in moved], list(moved.values()))  # pyright: ignore[reportPrivateImportUsage]


def _initial(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if name == RNG:
        # Follows torch.manual_seed, and takes nothing from the generator that others draw from.
        seed = torch.initial_seed()
        return torch.tensor([seed - 2**64 if seed >= 2**63 else seed, 0])
    if name.endswith(".amax_history") or name == "amax_history":
        return torch.zeros(shape)
    return torch.ones(shape)
