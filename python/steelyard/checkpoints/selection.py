"""Which tensors of a checkpoint are the weights of layers that a recipe quantizes."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from steelyard.formats.schemes import Scheme
from steelyard.recipes import Overrides, Recipe

_ROUTERS = ("gate", "router", "shared_expert_gate")
"""Layers whose result is ranked: a small error could send a token to another expert."""
_FEWEST_IN_FEATURES = 16
_STAND_INS = 4


class Selection:
    """Chooses by the model, whose parameters may have no memory, and by recipes of its layers."""

    def __init__(self, model: Any, recipe: Recipe, overrides: Overrides):
        self._model, self._recipe, self._overrides = model, recipe, overrides
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding))
        self._shared = {id(module.weight) for module in embeddings}
        self._tied = {*tied, *tied.values()}

    def recipe_of(self, parameter: str) -> Recipe | None:
        """The recipe of the layer whose weight a parameter is; None if it stays as it is."""
        layer, is_stack = self._layer(parameter)
        if layer is None:
            return None
        names = [layer, layer.rpartition(".")[0]] if is_stack else [layer]
        matched = next((name for name in names if self._overrides.pattern_of(name) is not None), layer)
        if self._overrides.pattern_of(matched) is None and layer.rpartition(".")[2] in _ROUTERS:
            return None
        return self._overrides.recipe_of(matched, self._recipe)

    def _layer(self, parameter: str) -> tuple[str | None, bool]:
        """The layer of a weight, and whether it is a stack of experts; None for what no GEMM reads as a weight."""
        path, _, attribute = parameter.rpartition(".")
        module = self._model.get_submodule(path)
        tensor = module._parameters.get(attribute)
        if tensor is None or parameter in self._tied or id(tensor) in self._shared:
            return None, False
        if tensor.dim() == 3 and hasattr(module, "num_experts"):
            return parameter, True
        is_linear = isinstance(module, nn.Linear) and attribute == "weight"
        return (path, False) if is_linear and tensor.shape[-1] >= _FEWEST_IN_FEATURES else (None, False)

    def ignored(self, quantized: Iterable[str]) -> list[str]:
        """The linear layers that are not among these."""
        known = set(quantized)
        names = [name for name, module in self._model.named_modules() if isinstance(module, nn.Linear)]
        return [name for name in names if name not in known]


def fits(scheme: Scheme, shape: Iterable[int]) -> bool:
    """Whether other programs read a matrix of this shape: most have no blocks that are not full along the rows."""
    *_, columns = shape
    return scheme.block_shape is None or scheme.family == "block" or columns % scheme.block_sizes[1] == 0


def pieces_of(model: Any, stacks: dict[str, torch.Tensor]) -> dict[str, tuple[str, int, slice]]:
    """For each tensor that transformers writes of these stacks of experts: the stack, the expert, and its rows."""
    from transformers.core_model_loading import revert_weight_conversion

    found: dict[str, tuple[str, int, slice]] = {}
    for name, stack in stacks.items():
        # A few numbered rows per expert show which rows of which expert become which tensor. Halves of them have two
        # rows and two columns: transformers drops dims of one element.
        experts, rows = stack.shape[:2]
        stand_in = torch.arange(experts * _STAND_INS).reshape(experts, _STAND_INS, 1).expand(-1, -1, 2)
        for written, numbers in revert_weight_conversion(model, {name: stand_in.clone()}).items():
            if numbers.dim() != 2:
                break  # not split: the format of the model keeps the stack
            expert, first = divmod(int(numbers[0, 0]), _STAND_INS)
            start = first * rows // _STAND_INS
            found[written] = name, expert, slice(start, start + rows * len(numbers) // _STAND_INS)
    return found
