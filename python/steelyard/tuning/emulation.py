"""Layers whose operands are quantized as compiled programs quantize them, in a model that runs eagerly."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from steelyard.formats.schemes import Scheme
from steelyard.recipes import Recipe
from steelyard.tensor import kernels
from steelyard.tuning.grids import input_scheme, searched
from steelyard.tuning.layers import Layer, layers_of
from steelyard.tuning.products import Product, watched


def rounded_input(x: torch.Tensor, scheme: Scheme | None) -> torch.Tensor:
    """An input as the values that its codes decode to."""
    if scheme is None:
        return x
    copy, _ = kernels.quantize(x.detach().reshape(-1, x.shape[-1]).contiguous(), scheme, None)
    assert copy is not None
    return kernels.dequantize(copy, x.dtype).reshape(x.shape)


def rounded_product(product: Product, scheme: Scheme | None) -> torch.Tensor:
    """The input of a product as the values that its codes decode to; the rows of each expert have their own amax."""
    if scheme is None or len(product.ends) == 1:
        return rounded_input(product.x, scheme)
    rounded = product.x.clone()
    for rows in product._replace(x=rounded).rows():
        if len(rows):
            rows.copy_(rounded_input(rows, scheme))
    return rounded


@contextmanager
def quantized_inputs(
    model: nn.Module, recipes: Mapping[str, Recipe | None], watch: Callable[[Product], None] | None = None
) -> Iterator[None]:
    """A model whose layers, by name, are given inputs that are rounded by these recipes.

    `watch` is called with what each layer that has a recipe is given, before that is rounded.
    """
    schemes = {name: input_scheme(recipe) for name, recipe in recipes.items() if recipe is not None}

    def enter(product: Product) -> torch.Tensor | None:
        if watch is not None:
            watch(product)
        scheme = schemes[product.layer]
        return None if scheme is None else rounded_product(product, scheme)

    with watched(layers_of(model, schemes), enter):
        yield


@contextmanager
@torch.no_grad()
def rounded_weights(model: nn.Module, recipes: Mapping[str, Recipe | None]) -> Iterator[None]:
    """A model whose layers have weights that are rounded by these recipes, without compensation."""
    layers = layers_of(model, recipes)
    kept = {}
    try:
        for name, recipe in recipes.items():
            if recipe is not None:
                kept[name] = layers[name].parameter.data
                layers[name].put(searched_matrices(layers[name], recipe))
        yield
    finally:
        for name, data in kept.items():
            layers[name].parameter.data = data


def searched_matrices(layer: Layer, recipe: Recipe) -> torch.Tensor:
    """The weight of a layer rounded to a format with searched scales, `[experts, rows, columns]`."""
    return torch.stack([searched(matrix, recipe) for matrix in layer.matrices()]).to(layer.parameter.dtype)
