"""The layers of a model that are tuned, and the groups of those that must agree.

Layers that are given the very same tensor, such as q, k and v of an attention, or gate and up of an MLP, are one group:
their input is quantized once, other programs multiply them as one, and they share the statistics of their input.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from steelyard.errors import UnsupportedModelError
from steelyard.tuning.batches import Batch, call, for_inference


@dataclass(frozen=True)
class Group:
    """Layers that read one input, in the order of their calls."""

    layers: tuple[str, ...]
    rows: int
    """Of the input, in the batch that was looked at."""
    calls: int = 1
    """How often a batch reaches the layers."""

    @property
    def name(self) -> str:
        """The names of the layers with what they share written once."""
        head, _, last = self.layers[0].rpartition(".")
        tails = [layer.removeprefix(f"{head}.") for layer in self.layers[1:]]
        return f"{head}.{'|'.join([last, *tails])}".removeprefix(".") if self.layers[1:] else self.layers[0]


def find_layers(model: nn.Module, ignore: Iterable[str]) -> dict[str, nn.Linear]:
    """The linear layers of a model by name, but for those whose names match a pattern or whose weight others read."""
    patterns = list(ignore)
    readers = readers_of(model)
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and type(module.weight) is nn.Parameter
        and readers[id(module.weight)] == 1
        and not any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not found:
        raise UnsupportedModelError(
            "a model that is tuned must have linear layers with plain weights of their own, and "
            f"{type(model).__name__} has none beside {patterns}; give other patterns by ignore="
        )
    return found


def readers_of(model: nn.Module) -> dict[int, int]:
    """How many modules hold each parameter, by its id."""
    readers: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                readers[id(parameter)] = readers.get(id(parameter), 0) + 1
    return readers


def layer_of(model: nn.Module, name: str) -> nn.Linear:
    """A layer by its name."""
    found = model.get_submodule(name)
    assert isinstance(found, nn.Linear), "only linear layers are tuned"
    return found


def find_groups(model: nn.Module, layers: Mapping[str, nn.Linear], batch: Batch) -> list[Group]:
    """The groups of layers in the order of their calls; layers that a batch does not reach are in none."""
    calls: list[tuple[str, torch.Tensor]] = []

    def note(name: str):
        return lambda module, arguments: calls.append((name, arguments[0]))

    handles = [module.register_forward_pre_hook(note(name)) for name, module in layers.items()]
    try:
        with torch.no_grad(), for_inference(model):
            call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return _grouped(calls, layers)


def _grouped(calls: Sequence[tuple[str, torch.Tensor]], layers: Mapping[str, nn.Linear]) -> list[Group]:
    """Layers that are called several times are groups of their own."""
    counts: dict[str, int] = {}
    inputs: dict[int, list[str]] = {}
    rows: dict[str, int] = {}
    for name, given in calls:
        counts[name] = counts.get(name, 0) + 1
        rows[name] = rows.get(name, 0) + given.shape[:-1].numel()
        # `calls` holds the tensors, so that no two have one id.
        inputs.setdefault(id(given), []).append(name)
    groups = []
    for names in inputs.values():
        once = [name for name in names if counts[name] == 1]
        alike = {layers[name].weight.dtype for name in once}
        if once and len(alike) == 1:
            groups.append(Group(tuple(once), rows[once[0]]))
        else:
            groups += [Group((name,), rows[name]) for name in once]
    several = [name for name, count in counts.items() if count > 1]
    return groups + [Group((name,), rows[name], counts[name]) for name in several]


def other_layers(model: nn.Module, tuned: Iterable[str], batch: Batch) -> list[str]:
    """The modules beside those that are tuned that a batch reaches, and that may multiply a matrix of their own."""
    known, reached = set(tuned), []
    candidates = [
        (name, module)
        for name, module in model.named_modules()
        if name not in known
        and not isinstance(module, nn.Embedding | nn.EmbeddingBag | nn.modules.conv._ConvNd)
        and any(parameter.dim() in (2, 3) for parameter in module.parameters(recurse=False))
    ]
    handles = [
        module.register_forward_pre_hook(lambda _, __, name=name: reached.append(name)) for name, module in candidates
    ]
    try:
        with torch.no_grad(), for_inference(model):
            call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(reached))
