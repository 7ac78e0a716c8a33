"""What each format of each layer costs the model: by gradients, or by the KL divergence of each choice alone."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional

from steelyard.driver import progress
from steelyard.recipes import Recipe
from steelyard.tuning.batches import Batch, divergence, for_inference, output_of
from steelyard.tuning.emulation import quantized_inputs, rounded_product, rounded_weights, searched_matrices
from steelyard.tuning.grids import input_scheme
from steelyard.tuning.layers import Group, Layer, layers_of
from steelyard.tuning.products import After, Product, watched

Formats = Mapping[str, Recipe | None]
Scores = dict[str, dict[str, float]]
"""By groups, and by formats: the divergence of the output that a format is expected to cause."""


def by_gradient(
    model: nn.Module, groups: Sequence[Group], batches: Sequence[Batch], formats: Formats, seed: int
) -> Scores:
    """Half the squared gradient times squared error, summed over the outputs of layers, per row of the model's output.

    The gradient is that of the likelihood of labels that are drawn from the model's own softmax. In expectation this is
    the KL divergence to second order, if errors of different outputs are independent. Outputs that are not logits are
    multiplied by random numbers instead, which gives the squared error.
    """
    scores: Scores = {group.name: dict.fromkeys(formats, 0.0) for group in groups}
    own = {layer: scores[group.name] for group in groups for layer in group.layers}
    layers = layers_of(model, own)
    weights = _weights(layers, formats)
    score = _scorer(own, layers, weights, formats)
    generator = torch.Generator().manual_seed(seed)
    total = 0.0
    with for_inference(model), _frozen(model), progress.doing(lambda: "measuring layers by gradients"):
        for count, batch in enumerate(batches, 1):
            progress.step(f"batch {count} of {len(batches)}")
            with torch.enable_grad(), watched(layers, after=score):
                output, is_logits = output_of(model, batch)
                loss, size = _loss(output, is_logits, generator)
                # A batch may reach none of the layers.
                if loss.requires_grad:
                    loss.backward()
            total += size
    return {name: {each: score / total for each, score in own.items()} for name, own in scores.items()}


def _loss(output: torch.Tensor, is_logits: bool, generator: torch.Generator) -> tuple[torch.Tensor, float]:
    """What is differentiated, and what scores are divided by."""
    if not is_logits:
        random = torch.randn(output.shape, generator=generator).to(output.dtype)
        return (output * random).sum(), float(output.detach().double().square().sum())
    rows = output.flatten(0, -2)
    labels = torch.multinomial(rows.detach().float().softmax(-1), 1, generator=generator)[:, 0]
    return functional.cross_entropy(rows.float(), labels, reduction="sum"), 2.0 * rows.shape[0]


def _weights(layers: Mapping[str, Layer], formats: Formats) -> dict[tuple[str, str], torch.Tensor]:
    """Rounded weights, by layers and formats; formats with the same weights share them."""
    made: dict[tuple[str, str], torch.Tensor] = {}
    for each, layer in layers.items():
        for name, recipe in formats.items():
            if recipe is not None:
                key = each, recipe.name
                if key not in made:
                    made[key] = searched_matrices(layer, recipe)
                made[each, name] = made[key]
    return made


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """A model whose parameters get no gradients, which would fill memory, and may be the user's."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad = False
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad = True


def _scorer(
    scores: Mapping[str, dict[str, float]], layers: Mapping[str, Layer], weights: Mapping, formats: Formats
) -> After:
    """Adds the squared gradient times squared error of each product to the scores of its layer."""

    def after(product: Product, output: torch.Tensor) -> torch.Tensor:
        x, name = product.x.detach(), product.layer
        if not output.requires_grad:
            # The gradient of a first layer ends here. A copy, because what follows may write to it.
            output = output.detach().requires_grad_().clone()

        def score(gradient: torch.Tensor) -> None:
            rows = gradient.flatten(0, -2)
            rounded: dict = {None: x}
            exact = product.times(layers[name].matrices(), x)
            for format, recipe in formats.items():
                if recipe is None:
                    continue
                scheme = input_scheme(recipe)
                if scheme not in rounded:
                    rounded[scheme] = rounded_product(product._replace(x=x), scheme)
                error = product.times(weights[name, format], rounded[scheme]) - exact
                scores[name][format] += float((rows * error).double().square().sum())

        output.register_hook(score)
        return output

    return after


@torch.no_grad()
def by_divergence(model: nn.Module, groups: Sequence[Group], batches: Sequence[Batch], formats: Formats) -> Scores:
    """The divergence of the output when one group alone has a format: one forward for each of them."""
    scores: Scores = {}
    with for_inference(model), progress.doing(lambda: "measuring layers one by one"):
        exact = [output_of(model, batch) for batch in batches]
        for count, group in enumerate(groups, 1):
            progress.step(f"{group.name}, {count} of {len(groups)}")
            scores[group.name] = {
                name: 0.0 if recipe is None else _alone(model, group, recipe, batches, exact)
                for name, recipe in formats.items()
            }
    return scores


def _alone(model: nn.Module, group: Group, recipe: Recipe, batches: Sequence[Batch], exact: Sequence) -> float:
    own = dict.fromkeys(group.layers, recipe)
    with rounded_weights(model, own), quantized_inputs(model, own):
        return mean_divergence(model, batches, exact)


def mean_divergence(model: nn.Module, batches: Sequence[Batch], exact: Sequence[tuple[torch.Tensor, bool]]) -> float:
    """How far the outputs of a model are from given ones, which have a mark for logits."""
    found = [
        divergence(output_of(model, batch)[0], output, is_logits=is_logits)
        for batch, (output, is_logits) in zip(batches, exact, strict=True)
    ]
    return sum(found) / len(found)
