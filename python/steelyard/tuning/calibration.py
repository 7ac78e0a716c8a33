"""Weights of a model as codes that compensate, a block of layers at a time.

Two copies of a model run side by side: one in high precision, and one that is quantized as far as the walk has come.
Only the inputs of the present block are kept, of both.
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
from steelyard.tuning.batches import Batch, call, for_inference
from steelyard.tuning.emulation import quantized_inputs, rounded_input
from steelyard.tuning.gptq import Options, Statistics, compensate
from steelyard.tuning.grids import grid_class, input_scheme
from steelyard.tuning.layers import Group

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


def stages_of(model: nn.Module, groups: Sequence[Group], batch: Batch) -> list[Stage]:
    """The blocks of a model in the order of their calls, and then the rest."""
    blocks = _chain(model, batch)
    stages = [Stage(name, [each for each in groups if _is_within(each, name)]) for name in blocks]
    rest = [each for each in groups if not any(_is_within(each, name) for name in blocks)]
    return [*stages, Stage("", rest)] if rest else stages


def _is_within(group: Group, block: str) -> bool:
    return all(layer == block or layer.startswith(f"{block}.") for layer in group.layers)


def _chain(model: nn.Module, batch: Batch) -> list[str]:
    """The names of the blocks of a list of modules, if each is given what the one before it returned."""
    lists = [
        [f"{name}.{key}".removeprefix(".") for key in module._modules]
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) >= _FEWEST
    ]
    for names in sorted(lists, key=len, reverse=True):
        passed = _passed_on(model, names, batch)
        in_turn = [name for name, _, _ in passed] == names
        if in_turn and all(later[1] is earlier[2] for earlier, later in itertools.pairwise(passed)):
            return names
    return []


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
    stages = stages_of(model, groups, batches[0])
    codes: dict[str, torch.Tensor] = {}
    with for_inference(model), for_inference(tuned), progress.doing(lambda: "compensating weights"):
        walk = _Walk(model, tuned, batches, stages, recipes)
        for count, stage in enumerate(stages, 1):
            progress.step(f"{stage.name or 'the rest'}, {count} of {len(stages)}")
            file = None if folder is None else folder / f"{stage.name or 'rest'}.pt"
            codes.update(walk.read(stage, file) if file and file.exists() else walk.compensate(stage, options, file))
    for name, tensor in codes.items():
        tuned.get_submodule(name).weight = nn.Parameter(tensor, requires_grad=False)
    return tuned.train(model.training)


class _Walk:
    """The way through a model, from block to block."""

    def __init__(
        self,
        model: nn.Module,
        tuned: nn.Module,
        batches: Sequence[Batch],
        stages: Sequence[Stage],
        recipes: Mapping[str, Recipe | None],
    ):
        self._model, self._tuned, self._batches, self._recipes = model, tuned, batches, recipes
        blocks = [stage.name for stage in stages if stage.name]
        self._calls = [_arguments_of(model, blocks, batch) for batch in batches] if blocks else []
        """The arguments of each block, of each batch. Of the first argument, only that of the first block is kept."""
        self._hidden = [(calls[blocks[0]][0][0],) * 2 for calls in self._calls]
        """The first argument of the present block, in high precision and quantized, of each batch."""

    def read(self, stage: Stage, file: Path) -> dict[str, torch.Tensor]:
        """What an earlier walk made of a stage."""
        codes = torch.load(file, weights_only=True)
        for name, tensor in codes.items():
            self._put(name, tensor.dequantize())
        self._finish(stage, [self._run(self._model, stage, index) for index in range(len(self._batches))])
        return codes

    def compensate(self, stage: Stage, options: Options, file: Path | None) -> dict[str, torch.Tensor]:
        """Quantize the layers of a stage; returns them as quantized tensors."""
        groups = [group for group in stage.groups if self._recipes[group.layers[0]] is not None]
        exact: dict[str, list[list[torch.Tensor]]] = {group.name: [] for group in groups}
        outputs = []
        for index in range(len(self._batches)):
            caught = {group.name: _Caught(self._model, group, stops=False) for group in groups}
            outputs.append(self._run(self._model, stage, index))
            for name, each in caught.items():
                exact[name].append(each.end())
        codes = {}
        for group in groups:
            codes.update(self._compensate_group(stage, group, exact.pop(group.name), options))
        if file is not None:
            unfinished = file.with_suffix(".unfinished")
            torch.save(codes, unfinished)
            unfinished.replace(file)
        self._finish(stage, outputs)
        return codes

    def _compensate_group(
        self, stage: Stage, group: Group, exact: list[list[torch.Tensor]], options: Options
    ) -> dict[str, torch.Tensor]:
        """Quantize the layers of a group, which share their input, as the rows of one matrix."""
        recipe = self._recipes[group.layers[0]]
        assert recipe is not None, "groups in high precision have no codes"
        modules = [self._tuned.get_submodule(name) for name in group.layers]
        statistics = Statistics(modules[0].weight.shape[1])
        for index, inputs in enumerate(exact):
            caught = _Caught(self._tuned, group, stops=group.calls == 1)
            self._run(self._tuned, stage, index)
            for given, one in zip(caught.end(), inputs, strict=True):
                statistics.add(rounded_input(given, input_scheme(recipe)), one)
        together = torch.cat([module.weight.detach() for module in modules])
        made = compensate(together, statistics, grid_class(recipe), options)
        codes, start = {}, 0
        for name, module in zip(group.layers, modules, strict=True):
            rows = slice(start, start + module.weight.shape[0])
            codes[name] = made.tensor(rows, module.weight.dtype)
            self._put(name, made.values[rows])
            start = rows.stop
        return codes

    def _put(self, name: str, values: torch.Tensor) -> None:
        weight = self._tuned.get_submodule(name).weight
        weight.data = values.to(weight.dtype)

    def _run(self, model: nn.Module, stage: Stage, index: int) -> Any:
        """The output of a stage for a batch; None where the call was not needed any further."""
        is_tuned = model is self._tuned
        within = {name: each for name, each in self._recipes.items() if is_tuned and name.startswith(stage.name)}
        try:
            with quantized_inputs(model, within):
                if not stage.name:
                    return call(model, self._batches[index])
                arguments, keywords = self._calls[index][stage.name]
                hidden = self._hidden[index][is_tuned]
                return _first(model.get_submodule(stage.name)(hidden, *arguments[1:], **keywords))
        except _ReachedError:
            return None

    def _finish(self, stage: Stage, outputs: list[Any]) -> None:
        """From the inputs of a block to those of the next."""
        if stage.name:
            self._hidden = [(output, self._run(self._tuned, stage, index)) for index, output in enumerate(outputs)]


class _Caught:
    """Keeps the inputs of a group's layers, as they are before anything quantizes them."""

    def __init__(self, model: nn.Module, group: Group, *, stops: bool):
        self._found: list[torch.Tensor] = []
        self._stops = stops
        first = model.get_submodule(group.layers[0])
        self._handle = first.register_forward_pre_hook(self._catch, prepend=True)

    def _catch(self, _, arguments: tuple) -> None:
        self._found.append(arguments[0])
        if self._stops:
            raise _ReachedError

    def end(self) -> list[torch.Tensor]:
        """What was found."""
        self._handle.remove()
        return self._found


def _arguments_of(model: nn.Module, blocks: Sequence[str], batch: Batch) -> dict[str, Call]:
    """What each block is called with; of their first arguments, only that of the first block."""
    calls: dict[str, Call] = {}

    def note(name: str) -> Callable:
        def hook(_, arguments: tuple, keywords: dict[str, Any]) -> None:
            calls[name] = (arguments if not calls else (None, *arguments[1:])), dict(keywords)

        return hook

    handles = [model.get_submodule(name).register_forward_pre_hook(note(name), with_kwargs=True) for name in blocks]
    try:
        call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return calls
