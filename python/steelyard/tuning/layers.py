"""The layers of a model that are tuned, and the groups of those that must agree.

Layers that are given the very same tensor, such as q, k and v of an attention, or gate and up of an MLP, are one group:
their input is quantized once, other programs multiply them as one, and they share the statistics of their input.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from steelyard.errors import UnsupportedModelError
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.stack import QuantizedStack
from steelyard.tuning.batches import Batch, call, for_inference


@dataclass(frozen=True)
class Group:
    """Layers that read one input, in the order of their calls."""

    layers: tuple[str, ...]
    rows: int
    """Of the input, in the first batch that reaches them."""
    calls: int = 1
    """The most often that a batch reaches them; 0 if that is not known."""
    first: int = 0
    """The number of the first batch that reaches them."""

    @property
    def name(self) -> str:
        """The names of the layers with what they share written once."""
        head, _, last = self.layers[0].rpartition(".")
        tails = [layer.removeprefix(f"{head}.") for layer in self.layers[1:]]
        return f"{head}.{'|'.join([last, *tails])}".removeprefix(".") if self.layers[1:] else self.layers[0]


@dataclass(frozen=True)
class Layer:
    """A weight that is tuned, seen as matrices `[rows, columns]`: one, or one per expert."""

    holders: tuple[tuple[str, nn.Module], ...]
    """The modules that hold it, by name: one, or all that share it."""
    attribute: str
    is_transposed: bool
    """Whether it is stored as `[columns, rows]`."""

    @property
    def names(self) -> list[str]:
        """Its name in each of these modules."""
        return [_name(owner, module, self.attribute) for owner, module in self.holders]

    @property
    def parameter(self) -> Any:
        """The weight as the model has it."""
        return getattr(self.holders[0][1], self.attribute)

    @property
    def is_stack(self) -> bool:
        """Whether it has one matrix per expert."""
        return self.parameter.dim() == 3

    def matrices(self) -> torch.Tensor:
        """The values, `[experts, rows, columns]`."""
        found = self.parameter.detach()
        found = found if self.is_stack else found[None]
        return found.transpose(1, 2) if self.is_transposed else found

    def put(self, values: torch.Tensor) -> None:
        """Give the weight other values, `[experts, rows, columns]`."""
        parameter = self.parameter
        made = values.to(parameter.dtype)
        made = made.transpose(1, 2) if self.is_transposed else made
        parameter.data = made.contiguous() if self.is_stack else made[0].contiguous()

    def store(self, tensor: QuantizedTensor) -> None:
        """Put a quantized tensor in the place of the weight."""
        parameter = nn.Parameter(tensor, requires_grad=False)
        for _, module in self.holders:
            setattr(module, self.attribute, parameter)

    def assemble(self, matrices: Sequence[QuantizedTensor]) -> QuantizedTensor:
        """The quantized tensor of the matrices, as the model stores them."""
        if self.is_stack:
            return QuantizedStack(list(matrices), transposed=self.is_transposed)
        return matrices[0].t() if self.is_transposed else matrices[0]  # pyright: ignore[reportReturnType]


def find_layers(model: nn.Module, ignore: Iterable[str]) -> dict[str, Layer]:
    """What may be tuned, by name: weights of linear layers and of experts, but for names that match a pattern.

    A weight that several linear layers share has the name of the first. One that anything else reads is left out.
    """
    patterns = list(ignore)
    readers = readers_of(model)
    found: dict[str, Layer] = {}
    for held in _holders(model).values():
        (first, module), attribute = held[0][:2], held[0][2]
        name = _name(first, module, attribute)
        parameter = module._parameters[attribute]
        if type(parameter) is not nn.Parameter or readers[id(parameter)] != len(held):
            continue
        if not any(fnmatchcase(each, pattern) for each in (name, first) for pattern in patterns):
            holders = tuple((path, each) for path, each, _ in held)
            found[name] = Layer(holders, attribute, _is_transposed(module))
    if not found:
        raise UnsupportedModelError(
            "a model that is tuned must have linear layers with plain weights of their own, and "
            f"{type(model).__name__} has none beside {patterns}; give other patterns by ignore="
        )
    return found


def _holders(model: nn.Module) -> dict[int, list[tuple[str, nn.Module, str]]]:
    """By the ids of parameters, the modules and attributes of linear layers and experts that hold them."""
    found: dict[int, list[tuple[str, nn.Module, str]]] = {}
    for name, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            is_weight = attribute == "weight" and _is_linear(module)
            is_stack = (
                parameter is not None and parameter.dim() == 3 and not isinstance(module, nn.modules.conv._ConvNd)
            )
            if parameter is not None and (is_weight or is_stack):
                found.setdefault(id(parameter), []).append((name, module, attribute))
    return found


def _name(owner: str, module: nn.Module, attribute: str) -> str:
    """The name of a weight in recipes: that of a linear layer, or that of the parameter of experts."""
    return owner if _is_linear(module) else f"{owner}.{attribute}".removeprefix(".")


def _is_linear(module: nn.Module) -> bool:
    # transformers' Conv1D is a linear layer with a transposed weight.
    is_conv1d = type(module).__name__ == "Conv1D" and hasattr(module, "nf")
    # A router may be a linear layer whose forward does more, and is left alone.
    return is_conv1d or (isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward)


def _is_transposed(module: nn.Module) -> bool:
    """Whether the weights of a module are `[columns, rows]`."""
    if isinstance(module, nn.Linear):
        return False
    # Experts of transformers say so; others are multiplied as they are.
    return bool(getattr(module, "is_transposed", True))


def readers_of(model: nn.Module) -> dict[int, int]:
    """How many modules hold each parameter, by its id."""
    readers: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                readers[id(parameter)] = readers.get(id(parameter), 0) + 1
    return readers


def all_layers(model: nn.Module) -> dict[str, Layer]:
    """Each weight of linear layers and of experts, by each of its names."""
    found = {}
    for held in _holders(model).values():
        holders = tuple((owner, module) for owner, module, _ in held)
        for owner, module, attribute in held:
            found[_name(owner, module, attribute)] = Layer(holders, attribute, _is_transposed(module))
    return found


def layers_of(model: nn.Module, names: Iterable[str]) -> dict[str, Layer]:
    """Layers by the names that `find_layers` gives them, of a model or of a copy of it."""
    known = all_layers(model)
    return {name: known[name] for name in names}


def other_layers(model: nn.Module, tuned: Iterable[str], batches: Iterable[Batch]) -> list[str]:
    """The modules beside those that are tuned that batches reach, and that may multiply a matrix of their own."""
    reached: list[str] = []
    known = {name for layer in layers_of(model, tuned).values() for name in layer.names}
    candidates = [
        (name, module)
        for owner, module in model.named_modules()
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag | nn.modules.conv._ConvNd)
        for attribute, parameter in module.named_parameters(recurse=False)
        for name in [_name(owner, module, attribute) if parameter.dim() == 3 else owner]
        if parameter.dim() in (2, 3) and name not in known
    ]
    handles = [
        module.register_forward_pre_hook(lambda _, __, name=name: reached.append(name)) for name, module in candidates
    ]
    try:
        with torch.no_grad(), for_inference(model):
            for batch in batches:
                call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(reached))


def grouped(calls: Sequence[tuple[str, torch.Tensor, int]], layers: Mapping[str, Layer]) -> list[Group]:
    """The groups of layers in the order of their calls, each a name, the tensor that was given, and its version.

    Layers that are called several times, and experts, are groups of their own.
    """
    counts: dict[str, int] = {}
    inputs: dict[tuple[int, int], list[str]] = {}
    rows: dict[str, int] = {}
    for name, given, version in calls:
        counts[name] = counts.get(name, 0) + 1
        rows[name] = rows.get(name, 0) + given.shape[:-1].numel()
        # `calls` holds the tensors, so that no two have one id.
        inputs.setdefault((id(given), version), []).append(name)
    groups = []
    for names in inputs.values():
        once = [name for name in names if counts[name] == 1]
        alike = {(layers[name].parameter.dtype, layers[name].is_stack) for name in once}
        if once and len(alike) == 1:
            groups.append(Group(tuple(once), rows[once[0]]))
        else:
            groups += [Group((name,), rows[name]) for name in once]
    several = [name for name, count in counts.items() if count > 1]
    return groups + [Group((name,), rows[name], counts[name]) for name in several]


def merged(found: Sequence[Sequence[Group]]) -> list[Group]:
    """The groups of layers that are one in each batch that reaches any of them, by the groups of each batch."""
    places: dict[str, list[tuple[int, int]]] = {}
    for batch, groups in enumerate(found):
        for place, group in enumerate(groups):
            for layer in group.layers:
                places.setdefault(layer, []).append((batch, place))
    together: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for layer, own in places.items():
        together.setdefault(tuple(own), []).append(layer)
    made = []
    for own, names in together.items():
        each = [found[batch][place] for batch, place in own]
        # Experts may be called with no rows.
        rows = next((group.rows for group in each if group.rows), 0)
        made.append(Group(tuple(names), rows, max(group.calls for group in each), own[0][0]))
    return made
