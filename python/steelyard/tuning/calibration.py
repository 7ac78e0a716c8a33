"""Weights of a model as codes that compensate, a block of layers at a time.

The model is quantized as far as the walk has come, so that each layer is calibrated by inputs as it will be given them.
Only those of the present block are kept.
"""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steelyard.driver import progress
from steelyard.recipes import Recipe
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tuning.batches import Batch, call, copied, for_inference
from steelyard.tuning.emulation import quantized_inputs, rounded_product
from steelyard.tuning.finished_work import read_codes, write_codes
from steelyard.tuning.folding import Fold, best_factors, find_folds
from steelyard.tuning.gptq import Options, Statistics, compensate
from steelyard.tuning.grids import grid_class, input_scheme
from steelyard.tuning.layers import Group, Layer, all_layers
from steelyard.tuning.products import Product

_SAMPLED = 512
"""About how many rows of inputs factors are searched by."""
_FEWEST = 2
"""How many blocks a container must hold for its blocks to be walked one after another."""

Call = tuple[tuple, dict[str, Any]]
"""The arguments of a call."""


class _ReachedError(Exception):
    """The rest of a call is not needed."""


@dataclass
class Stage:
    """What is calibrated at a time: a block, or what is left of the model around them."""

    name: str
    groups: list[Group]


def stages_of(model: nn.Module, groups: Sequence[Group], *batches: Batch) -> list[Stage]:
    """The blocks of a model in the order of their calls, and then the rest."""
    blocks = _chain(model, batches)
    stages = [Stage(name, [each for each in groups if _is_within(each, name)]) for name in blocks]
    rest = [each for each in groups if not any(_is_within(each, name) for name in blocks)]
    return [*stages, Stage("", rest)] if rest else stages


def _is_within(group: Group, block: str) -> bool:
    return all(_is_inside(layer, block) for layer in group.layers)


def _is_inside(name: str, block: str) -> bool:
    return name == block or name.startswith(f"{block}.")


def _stage_of(name: str, stages: Sequence[Stage]) -> Stage | None:
    """The stage that has a module; the rest comes last."""
    return next((stage for stage in stages if not stage.name or _is_inside(name, stage.name)), None)


def _chain(model: nn.Module, batches: Sequence[Batch]) -> list[str]:
    """The names of the blocks of a list of modules, if each batch is given to them one after another."""
    lists = [
        [f"{name}.{key}".removeprefix(".") for key in module._modules]
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) >= _FEWEST
    ]
    for names in sorted(lists, key=len, reverse=True):
        if all(_are_in_turn(model, names, batch) for batch in batches):
            return names
    return []


def _are_in_turn(model: nn.Module, names: Sequence[str], batch: Batch) -> bool:
    """Whether each of these modules is given what the one before it returned."""
    passed = _passed_on(model, names, batch)
    return [name for name, _, _ in passed] == names and all(
        later[1] is earlier[2] for earlier, later in itertools.pairwise(passed)
    )


def _passed_on(model: nn.Module, names: Sequence[str], batch: Batch) -> list[tuple[str, Any, Any]]:
    """The first argument and the first result of modules, in the order of their calls."""
    passed: list[tuple[str, Any, Any]] = []

    def note(name: str) -> Callable:
        return lambda _, given, made: passed.append((name, _first(given), _first(made)))

    handles = [model.get_submodule(name).register_forward_hook(note(name)) for name in names]
    try:
        with torch.no_grad(), for_inference(model):
            call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return passed


def _first(made: Any) -> Any:
    """The first of several values."""
    return made[0] if isinstance(made, tuple) and made else made


@torch.no_grad()
def compensated(
    model: nn.Module,
    batches: Sequence[Batch],
    groups: Sequence[Group],
    recipes: Mapping[str, Recipe | None],
    options: Options,
    folder: Path | None = None,
) -> nn.Module:
    """A copy of a model whose layers are quantized tensors by their recipes, and compensate for what they lose.

    With a folder, each finished block is written to it, and read from it when the same call is made again.
    """
    tuned = copy.deepcopy(model).eval()
    stages = stages_of(model, groups, *batches)
    folds = find_folds(model, groups, batches[0]) if options.fold else {}
    codes: dict[str, torch.Tensor] = {}
    with for_inference(tuned), progress.doing(lambda: "compensating weights"):
        walk = _Walk(tuned, batches, stages, recipes, folds)
        for count, stage in enumerate(stages, 1):
            progress.step(f"{stage.name or 'the rest'}, {count} of {len(stages)}")
            file = None if folder is None else folder / f"{stage.name or 'rest'}.pt"
            kept = read_codes(file)
            codes.update(walk.compensate(stage, options, file) if kept is None else walk.restore(stage, kept))
    for name, tensor in codes.items():
        if isinstance(tensor, QuantizedTensor):
            walk.layers[name].store(tensor)
    for module, original in zip(tuned.modules(), model.modules(), strict=True):
        module.training = original.training
    return tuned


def _quantized(
    layers: Mapping[str, Layer],
    experts: torch.Tensor,
    statistics: Sequence[Statistics],
    recipe: Recipe,
    options: Options,
) -> dict[str, QuantizedTensor]:
    """Quantize layers that are the rows of one matrix per expert; they are given the values of their codes."""
    made = [
        compensate(weight, own, grid_class(recipe), options) for weight, own in zip(experts, statistics, strict=True)
    ]
    codes, start = {}, 0
    for name, layer in layers.items():
        rows = slice(start, start + layer.matrices().shape[1])
        codes[name] = layer.assemble([each.tensor(rows, layer.parameter.dtype) for each in made])
        layer.put(torch.stack([each.values[rows] for each in made]))
        start = rows.stop
    return codes


@torch.no_grad()
def rounded(model: nn.Module, groups: Sequence[Group], recipes: Mapping[str, Recipe | None]) -> nn.Module:
    """A copy of a model whose layers are quantized tensors by their recipes, and compensate for nothing."""
    tuned = copy.deepcopy(model)
    known = all_layers(tuned)
    for group in groups:
        recipe = recipes[group.layers[0]]
        if recipe is not None:
            layers = {name: known[name] for name in group.layers}
            experts = torch.cat([layer.matrices() for layer in layers.values()], dim=1)
            # Inputs that are not known are taken to be independent.
            statistics = [Statistics(experts.shape[2]) for _ in experts]
            for name, tensor in _quantized(layers, experts, statistics, recipe, Options()).items():
                known[name].store(tensor)
    return tuned


class _Walk:
    """The way through a model, from block to block."""

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Batch],
        stages: Sequence[Stage],
        recipes: Mapping[str, Recipe | None],
        folds: Mapping[str, Fold],
    ):
        self._model, self._batches, self._recipes = model, batches, recipes
        self.layers = all_layers(model)
        self._folds = {
            group.name: folds[group.name]
            for stage in stages
            for group in stage.groups
            if group.name in folds and stage is _stage_of(folds[group.name].source, stages)
        }
        """Of groups whose input is computed in their own stage: earlier ones are finished."""
        blocks = [stage.name for stage in stages if stage.name]
        self._calls = [_calls_of_blocks(model, blocks, batch) for batch in batches] if blocks else []
        """The arguments of each block, of each batch. Of the first argument, only that of the first block is kept."""
        self._hidden = [calls[blocks[0]][0][0] for calls in self._calls]
        """The first argument of the present block, of each batch."""

    def restore(self, stage: Stage, codes: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Take over what an earlier walk made of a stage."""
        for name, tensor in codes.items():
            if isinstance(tensor, QuantizedTensor):
                self.layers[name].parameter.data = tensor.dequantize()
            else:
                self._model.get_parameter(name).data = tensor
        self._finish(stage)
        return codes

    def compensate(self, stage: Stage, options: Options, file: Path | None) -> dict[str, torch.Tensor]:
        """Quantize the layers of a stage; returns them as quantized tensors, and other parameters that changed."""
        codes = self._fold(stage)
        for group in stage.groups:
            recipe = self._recipe(group)
            if recipe is not None:
                codes.update(self._compensate_group(stage, group, recipe, options))
        if file is not None:
            write_codes(file, codes)
        self._finish(stage)
        return codes

    def _fold(self, stage: Stage) -> dict[str, torch.Tensor]:
        """Fold factors into what computes the inputs of layers; returns the parameters that changed."""
        folded = [group for group in stage.groups if group.name in self._folds and self._recipe(group) is not None]
        samples = self._samples(stage, folded) if folded else {}
        changed = []
        for group in folded:
            if group.name not in samples:
                continue
            fold, recipe = self._folds[group.name], self._recipe(group)
            assert recipe is not None
            weights = [self.layers[name].matrices()[0] for name in group.layers]
            factors = best_factors(fold, samples[group.name], weights, recipe)
            if factors is not None:
                fold.apply(self._model, group, factors)
                changed += fold.parameters(self._model)
        return {name: self._model.get_parameter(name).data.clone() for name in changed}

    def _samples(self, stage: Stage, groups: Sequence[Group]) -> dict[str, torch.Tensor]:
        """Some rows of the inputs of groups, evenly spaced."""
        found: dict[str, list[torch.Tensor]] = {group.name: [] for group in groups}
        for index in range(len(self._batches)):
            caught = _Caught(groups)
            self._run(stage, index, caught)
            for group in groups:
                for product in caught.products[group.layers[0]]:
                    rows = product.x.flatten(0, -2)
                    found[group.name].append(rows[:: max(1, -(-len(rows) * len(self._batches) // _SAMPLED))])
        # Quantized inputs may be routed elsewhere than those that groups were found by.
        sampled = {name: torch.cat(rows) for name, rows in found.items() if rows}
        return {name: rows for name, rows in sampled.items() if len(rows)}

    def _recipe(self, group: Group) -> Recipe | None:
        return self._recipes[group.layers[0]]

    def _compensate_group(
        self, stage: Stage, group: Group, recipe: Recipe, options: Options
    ) -> dict[str, QuantizedTensor]:
        """Quantize the layers of a group, which share their input, as the rows of one matrix per expert."""
        layers = {name: self.layers[name] for name in group.layers}
        experts = torch.cat([layer.matrices() for layer in layers.values()], dim=1)
        statistics = [Statistics(experts.shape[2]) for _ in experts]
        for index in range(len(self._batches)):
            caught = _Caught([group], is_enough=True)
            self._run(stage, index, caught)
            for product in caught.products[group.layers[0]]:
                rounded = product._replace(x=rounded_product(product, input_scheme(recipe)))
                for own, rows in zip(statistics, rounded.rows(), strict=True):
                    own.add(rows)
        return _quantized(layers, experts, statistics, recipe, options)

    def _run(self, stage: Stage, index: int, watch: Callable[[Product], None] | None = None) -> Any:
        """The output of a stage for a batch; None where the call was not needed any further."""
        within = {name: each for name, each in self._recipes.items() if not stage.name or _is_inside(name, stage.name)}
        try:
            with quantized_inputs(self._model, within, watch):
                if not stage.name:
                    return call(self._model, self._batches[index])
                arguments, keywords = self._calls[index][stage.name]
                block = self._model.get_submodule(stage.name)
                return _first(block(copied(self._hidden[index]), *arguments[1:], **keywords))
        except _ReachedError:
            return None

    def _finish(self, stage: Stage) -> None:
        """From the inputs of a block to those of the next."""
        if stage.name:
            self._hidden = [self._run(stage, index) for index in range(len(self._batches))]


class _Caught:
    """Keeps the inputs of groups, as they are before anything quantizes them."""

    def __init__(self, groups: Sequence[Group], *, is_enough: bool = False):
        self.products: dict[str, list[Product]] = {group.layers[0]: [] for group in groups}
        self._calls = groups[-1].calls if is_enough else 0
        """After how many inputs the rest of a call is not needed."""

    def __call__(self, product: Product) -> None:
        if product.layer in self.products:
            # What follows may write to it.
            self.products[product.layer].append(product._replace(x=product.x.clone()))
            if len(self.products[product.layer]) == self._calls:
                raise _ReachedError


def _calls_of_blocks(model: nn.Module, blocks: Sequence[str], batch: Batch) -> dict[str, Call]:
    """What each block is called with; of their first arguments, only that of the first block."""
    calls: dict[str, Call] = {}

    def note(name: str) -> Callable:
        def hook(_, arguments: tuple, keywords: dict[str, Any]) -> None:
            calls[name] = (None if calls else copied(arguments[0]), *arguments[1:]), dict(keywords)

        return hook

    handles = [model.get_submodule(name).register_forward_pre_hook(note(name), with_kwargs=True) for name in blocks]
    try:
        call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return calls
