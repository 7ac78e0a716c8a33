"""Whether the model of a config is in proportion to the tensors of its checkpoint.

A config may come from anybody. One that asks for millions of layers must neither hang nor exhaust memory.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from steelyard.checkpoints.catalog import Catalog
from steelyard.errors import CheckpointError, shown

_COUNTED = ("layer", "expert", "label", "depth", "block", "head", "stage")
"""Parts of the names of what a config makes lists of."""
_LARGEST_COUNT = 100_000
_TARGETS_PER_TENSOR, _SPARE = 4, 64
"""At most so many parameters are made from one tensor, and so many more share another's values."""
_SPARE_BYTES = 2**28
"""Buffers, which files need not have, may always take so much."""

Registered = Callable[[nn.Module, str, nn.Parameter], nn.Parameter | None]


def refuse_absurd_counts(config: Mapping[str, Any]) -> None:
    """Refuse numbers of layers and the like that no model has: transformers would make lists of them."""
    rest: list[tuple[str, Any]] = list(config.items())
    while rest:
        key, value = rest.pop()
        if isinstance(value, dict):
            rest += value.items()
        elif isinstance(value, list):
            rest += ((key, each) for each in value)
        elif isinstance(value, int | float) and abs(value) > _LARGEST_COUNT and _is_count(key):
            raise CheckpointError(
                f"{key} in config.json must be at most {_LARGEST_COUNT}, got {shown(value)}; fetch it again"
            )


def _is_count(key: str) -> bool:
    return any(part in key for part in _COUNTED)


class Limits:
    """The most parameters, and the most elements of one, that the tensors of a checkpoint can be made into."""

    def __init__(self, catalog: Catalog):
        self._count = _TARGETS_PER_TENSOR * len(catalog) + _SPARE
        # Two FP4 codes are a byte.
        self._elements = 2 * sum(entry.size for entry in catalog.values())
        self._tensors = len(catalog)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Refuse a model that exceeds them while it is being made."""
        count = 0

        def check(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
            nonlocal count
            count += 1
            kind = type(module).__name__
            if count > self._count:
                raise CheckpointError(
                    f"config.json asks for more than {self._count} parameters, and the files have {self._tensors} "
                    "tensors; fetch the folder again"
                )
            if parameter.numel() > self._elements:
                raise CheckpointError(
                    f"{name} of a {kind} must fit into the files, which hold at most {self._elements} numbers, got "
                    f"{list(parameter.shape)} by config.json; fetch the folder again"
                )

        with at_registration(check):
            yield


def refuse_large_buffers(model: nn.Module, catalog: Catalog) -> None:
    """Refuse a model on the meta device whose buffers would take more memory than its weights."""
    largest = max(_SPARE_BYTES, sum(entry.size for entry in catalog.values()))
    total = sum(buffer.nbytes for buffer in model.buffers())
    if total > largest:
        raise CheckpointError(
            f"the buffers of {type(model).__name__} by config.json must have at most {largest} bytes, got {total}; "
            "fetch it again"
        )


@contextmanager
def at_registration(registered: Registered) -> Iterator[None]:
    """Call a function for each parameter that a module of this thread registers, which it may replace."""
    own = threading.get_ident()

    def hook(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or threading.get_ident() != own:
            return None
        return registered(module, name, parameter)

    handle = register_module_parameter_registration_hook(hook)  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        handle.remove()
