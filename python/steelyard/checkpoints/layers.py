"""How the layers of a loaded model run: the recipe of each, and what happens to its input first."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from steelyard.checkpoints.catalog import Entry
from steelyard.checkpoints.models import Target
from steelyard.checkpoints.patterns import folded
from steelyard.checkpoints.plan import LayerInput, Plan, layer_of, require_dtype
from steelyard.errors import CheckpointError
from steelyard.recipes import MXFP8BlockScaling, Recipe

WEIGHTS_ONLY: Recipe = MXFP8BlockScaling(activations=None)
"""Inputs stay in high precision. Stored weights are as they are, whatever a recipe says about weights."""

_BOUNDABLE_EXPERTS = ("Llama4TextExperts", "BoundedExperts")
"""Classes of experts whose inputs a checkpoint may bound; the second is what their first weight makes of the first."""


class AdjustedLinear(nn.Linear):
    """A linear layer whose input is bounded, or multiplied by a factor per column, before anything else."""

    input_factor: torch.Tensor | None
    input_bound: float | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.input_bound is not None:
            input = input.clamp(-self.input_bound, self.input_bound)
        if self.input_factor is not None:
            # A file may have factors in float32 for a model in bf16.
            input = (input * self.input_factor).to(input.dtype)
        return super().forward(input)


class BoundedExperts(nn.Module):
    """The experts of Llama 4, whose inputs are bounded before anything else."""

    num_experts: int
    act_fn: Any
    gate_up_proj: torch.Tensor
    down_proj: torch.Tensor
    input_bound: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        rows = hidden_states.reshape(self.num_experts, -1, hidden_states.shape[-1])
        gate, up = torch.bmm(self._bounded(rows), self.gate_up_proj).chunk(2, dim=-1)
        return torch.bmm(self._bounded(up * self.act_fn(gate)), self.down_proj).reshape(hidden_states.shape)

    def _bounded(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.clamp(-self.input_bound, self.input_bound)


def adjust_inputs(model: nn.Module, inputs: Mapping[str, LayerInput]) -> None:
    """Let layers do to their inputs what a checkpoint says happens before they are quantized."""
    for layer, each in inputs.items():
        parent = model.get_submodule(layer.rpartition(".")[0])
        if type(parent).__name__ in _BOUNDABLE_EXPERTS and each.bound is not None:
            parent.__class__ = BoundedExperts
            setattr(parent, "input_bound", each.bound)  # noqa: B010
        elif each.factor is not None or each.bound is not None:
            _adjust(model, layer, each)


def _adjust(model: nn.Module, layer: str, each: LayerInput) -> None:
    parent, _, name = layer.rpartition(".")
    module = getattr(model.get_submodule(parent), name)
    if type(module) is not nn.Linear:
        raise CheckpointError(
            f"{layer} must be a linear layer to adjust its input, got {type(module).__name__}; take a checkpoint "
            "whose inputs are quantized as they are"
        )
    factor = None if each.factor is None else read_factor(each.factor, module)
    module.__class__ = AdjustedLinear
    setattr(module, "input_bound", each.bound)  # noqa: B010
    module.register_buffer("input_factor", factor, persistent=False)


def refuse_adjusted(model: nn.Module) -> None:
    """Refuse to write a model in a format that cannot say what its layers do to their inputs."""
    adjusted = [name for name, module in model.named_modules() if isinstance(module, AdjustedLinear | BoundedExperts)]
    if adjusted:
        raise CheckpointError(
            f"the input of {adjusted[0]} is multiplied or bounded before it is quantized, which only the format that "
            "it was loaded from can hold; use steelyard.save without a format"
        )


def read_factor(entry: Entry, module: nn.Linear) -> torch.Tensor:
    """What each column of an input is multiplied by."""
    require_dtype(entry, "F32", "BF16", "F16")
    factor = entry.read()
    if factor.numel() != module.in_features or not factor.isfinite().all():
        wanted = f"{module.in_features} finite numbers, one per column"
        raise CheckpointError(f"{entry.place} must have {wanted}, got {entry.dtype} {list(entry.shape)}")
    return factor.reshape(-1)


def inputs_of_model(targets: Mapping[str, Target], plan: Plan) -> dict[str, list[LayerInput]]:
    """What a checkpoint says about the input of each layer of a model; experts of one layer have one input."""
    found: dict[str, list[LayerInput]] = {}
    for name, target in targets.items():
        each = [plan.inputs[layer_of(weight.name)] for weight in target.weights]
        if each:
            found[layer_of(name)] = each
    return found


def make_overrides(inputs: Mapping[str, list[LayerInput]], recipe: Recipe | None) -> dict[str, Recipe | None]:
    """Recipes by layers of a model, everything else in high precision; `recipe`: that of all quantized layers."""
    scales: dict[Recipe, dict[str, float]] = {}
    chosen: dict[str, Recipe] = {}
    for layer, each in inputs.items():
        own = recipe or each[0].recipe or WEIGHTS_ONLY
        if len({other.recipe for other in each}) > 1:
            raise CheckpointError(f"the inputs of all experts of {layer} must be quantized alike, and are not")
        chosen[layer] = own
        static = None if recipe is not None else _static_scale(each)
        if static is not None:
            scales.setdefault(own, {})[layer] = static
    complete: dict[Recipe, Recipe] = {own: own.with_input_scales(given) for own, given in scales.items()}
    layers = {layer: complete.get(own, own) for layer, own in chosen.items()}
    return {**_shortened(layers), "*": None}


def _static_scale(inputs: Iterable[LayerInput]) -> float | None:
    """What the codes of an input are multiplied by; experts share an input, and so the largest of their scales."""
    found = [read_number(each.scale, is_divisor=each.is_divisor) for each in inputs if each.scale is not None]
    return max(found, default=None)


def read_number(entry: Entry, *, is_divisor: bool) -> float:
    """What codes are multiplied by: a static scale, or one divided by it."""
    values = require_dtype(entry, "F32", "BF16", "F16").read().float().reshape(-1)
    if values.numel() != 1 or not (values[0] > 0 and torch.isfinite(values[0])):
        raise CheckpointError(f"{entry.place} must be one positive, finite number, got {values.tolist()[:3]}")
    return float(1 / values[0] if is_divisor else values[0])


def _shortened(layers: Mapping[str, Recipe]) -> dict[str, Recipe | None]:
    """The same with a pattern for layers that differ only in numbers and have one recipe."""
    patterns: dict[str, set[Recipe]] = {}
    for layer, recipe in layers.items():
        patterns.setdefault(folded(layer), set()).add(recipe)
    shortened: dict[str, Recipe | None] = {}
    for layer, recipe in layers.items():
        is_alike = len(patterns[folded(layer)]) == 1
        shortened[folded(layer) if is_alike else layer] = recipe
    return shortened
