"""Layers whose inputs are quantized as compiled programs quantize them, in a model that runs eagerly."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from steelyard.formats.schemes import Scheme
from steelyard.recipes import Recipe
from steelyard.tensor import kernels
from steelyard.tuning.grids import input_scheme, searched
from steelyard.tuning.layers import layer_of


def rounded_input(x: torch.Tensor, scheme: Scheme | None) -> torch.Tensor:
    """An input as the values that its codes decode to."""
    if scheme is None:
        return x
    copy, _ = kernels.quantize(x.detach().reshape(-1, x.shape[-1]).contiguous(), scheme, None)
    assert copy is not None
    return kernels.dequantize(copy, x.dtype).reshape(x.shape)


@contextmanager
def quantized_inputs(model: nn.Module, recipes: Mapping[str, Recipe | None]) -> Iterator[None]:
    """A model whose layers, by name, are given inputs that are rounded by these recipes."""

    def hook(scheme: Scheme):
        return lambda module, arguments: (rounded_input(arguments[0], scheme), *arguments[1:])

    handles = []
    for name, recipe in recipes.items():
        scheme = None if recipe is None else input_scheme(recipe)
        if scheme is not None:
            handles.append(model.get_submodule(name).register_forward_pre_hook(hook(scheme)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
@torch.no_grad()
def rounded_weights(model: nn.Module, recipes: Mapping[str, Recipe | None]) -> Iterator[None]:
    """A model whose layers have weights that are rounded by these recipes, without compensation."""
    kept = {}
    try:
        for name, recipe in recipes.items():
            if recipe is not None:
                weight = layer_of(model, name).weight
                kept[name] = weight.data
                weight.data = searched(weight, recipe).to(weight.dtype)
        yield
    finally:
        for name, data in kept.items():
            layer_of(model, name).weight.data = data
