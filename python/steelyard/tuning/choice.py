"""Which format each group of layers has: what it loses, what it costs, and the best choice within budgets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from steelyard.errors import RecipeError
from steelyard.recipes import Recipe
from steelyard.tuning.costs import key
from steelyard.tuning.grids import weight_bits
from steelyard.tuning.knapsack import Budget, solve
from steelyard.tuning.layers import Group, layers_of
from steelyard.tuning.sensitivity import Scores


@dataclass(frozen=True)
class Goal:
    """What a choice must keep; None is no limit."""

    bits: float | None = None
    speed: float | None = None
    error: float | None = None
    share: Mapping[str, float] | None = None
    """By formats, the least part of the multiplications."""

    def given(self) -> dict[str, Any]:
        """What was asked for, as plain data."""
        values = {"bits": self.bits, "speed": self.speed, "error": self.error, "share": self.share}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        return " and ".join(f"{name}={value}" for name, value in self.given().items() if name != "error")


Choice = dict[str, str]
"""The format of each group, by their names."""


@dataclass(frozen=True)
class Space:
    """All that can be chosen."""

    groups: Sequence[Group]
    formats: Mapping[str, Recipe | None]
    shapes: Mapping[str, tuple[int, int, int]]
    """Experts, rows and columns of the weights of layers."""
    dtype: torch.dtype
    scores: Scores
    costs: Mapping[str, Any] | None
    """As `costs.measure` makes it."""

    @property
    def weights(self) -> int:
        """How many numbers the weights have in all."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def bits(self, choice: Choice) -> float:
        """The mean bits per weight, scales included."""
        return sum(self._bits(group, choice[group.name]) for group in self.groups) / self.weights

    def speed(self, choice: Choice) -> float | None:
        """The speed of the model against itself in high precision, by the table of costs."""
        if self.costs is None:
            return None
        return self.costs["model"] / (self._rest() + sum(self._time(g, choice[g.name]) for g in self.groups))

    def error(self, choice: Choice) -> float:
        """The divergence that the scores of all groups add up to."""
        return sum(self.scores[name][format] for name, format in choice.items())

    def recipes(self, choice: Choice) -> dict[str, Recipe | None]:
        """The recipes of layers."""
        return {layer: self.formats[choice[group.name]] for group in self.groups for layer in group.layers}

    def uniform(self, format: str) -> Choice:
        """One format for all."""
        return {group.name: format for group in self.groups}

    def share(self, choice: Choice, format: str) -> float:
        """The part of the multiplications that have a format."""
        work = {group.name: self._multiplications(group) for group in self.groups}
        return sum(work[name] for name, each in choice.items() if each == format) / sum(work.values())

    def best(self, goal: Goal) -> Choice:
        """The choice with the least error; raises `RecipeError` if nothing has so few bits, or is so fast."""
        names = list(self.formats)
        budgets = [self._others(format, part) for format, part in (goal.share or {}).items()]
        bits, speed = goal.bits, goal.speed
        if bits is not None:
            costs = [[self._bits(group, name) for name in names] for group in self.groups]
            budgets.append(Budget(costs, bits * self.weights))
            least = sum(min(own) for own in costs) / self.weights
            _require(bits >= least - 1e-9, "bits", bits, f"at least {least:.3f}")
        if speed is not None:
            assert self.costs is not None
            costs = [[self._time(group, name) for name in names] for group in self.groups]
            budgets.append(Budget(costs, self.costs["model"] / speed - self._rest()))
            most = self.costs["model"] / (self._rest() + sum(min(own) for own in costs))
            _require(speed <= most, "speed", speed, f"at most {most:.3f} of the speed in high precision")
        errors = [[self.scores[group.name][name] for name in names] for group in self.groups]
        found = solve(errors, budgets)
        if found is None:
            raise RecipeError(
                f"a choice of formats must exist with {goal}, and none was found, though each alone can be had; ask "
                "for more bits or for less of the others"
            )
        return {group.name: names[index] for group, index in zip(self.groups, found, strict=True)}

    def _others(self, format: str, part: float) -> Budget:
        """What multiplications in other formats may come to, if one has at least a part of them all."""
        costs = [
            [0 if name == format else self._multiplications(group) for name in self.formats] for group in self.groups
        ]
        return Budget(costs, (1 - part) * sum(map(self._multiplications, self.groups)))

    def _multiplications(self, group: Group) -> int:
        return group.rows * sum(math.prod(self.shapes[layer][1:]) for layer in group.layers)

    def _bits(self, group: Group, format: str) -> int:
        recipe, shapes = self.formats[format], [self.shapes[layer] for layer in group.layers]
        return sum(weight_bits(recipe, (experts * rows, columns), self.dtype) for experts, rows, columns in shapes)

    def _time(self, group: Group, format: str) -> float:
        assert self.costs is not None
        table = self.costs["layers"]
        # Each row is multiplied by one expert.
        return sum(table[key((group.rows, *self.shapes[layer][1:]))][format] for layer in group.layers)

    def _rest(self) -> float:
        """What the model takes beside these layers."""
        assert self.costs is not None
        return max(0.0, self.costs["model"] - sum(self._time(group, "none") for group in self.groups))


def _require(holds: bool, name: str, got: float, wanted: str) -> None:
    if not holds:
        raise RecipeError(
            f"{name} must be {wanted}, which is the best that these formats can do for this model, got {got}; ask for "
            "that, or give other formats"
        )


def shapes_of(model: nn.Module, groups: Sequence[Group]) -> dict[str, tuple[int, int, int]]:
    """Experts, rows and columns of the weights of layers."""
    layers = layers_of(model, [name for group in groups for name in group.layers])
    return {name: tuple(layer.matrices().shape) for name, layer in layers.items()}  # pyright: ignore[reportReturnType]
