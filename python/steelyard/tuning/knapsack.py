"""One choice per group, with the least error that a budget allows: a multiple-choice knapsack, solved exactly.

Dynamic programming over what is spent. Costs are whole numbers, or are rounded up to parts of the budget: what is found
always keeps the budget, and is the best of all choices whose rounded costs do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_FINEST = {1: 20_000, 2: 300, 3: 60}
"""By the number of budgets: into how many parts each is divided at most."""
_FEWEST = 20


@dataclass(frozen=True)
class Budget:
    """What may be spent in all."""

    costs: Sequence[Sequence[float]]
    """Of each choice of each group."""
    limit: float


def solve(errors: Sequence[Sequence[float]], budgets: Sequence[Budget]) -> list[int] | None:
    """The choice of each group with the smallest sum of errors within every budget; None if there is none."""
    if not budgets:
        return [int(np.argmin(each)) for each in errors]
    scaled = [_in_parts(budget, _FINEST.get(len(budgets), _FEWEST)) for budget in budgets]
    sizes = tuple(limit + 1 for _, limit in scaled)
    if any(limit < 0 for _, limit in scaled):
        return None
    best = np.full(sizes, np.inf)
    best[(0,) * len(sizes)] = 0.0
    chosen: list[np.ndarray] = []
    for group, own in enumerate(errors):
        found, choice = np.full(sizes, np.inf), np.full(sizes, -1, dtype=np.int8)
        for index, error in enumerate(own):
            steps = tuple(parts[group][index] for parts, _ in scaled)
            if any(step >= size for step, size in zip(steps, sizes, strict=True)):
                continue
            after = tuple(slice(step, None) for step in steps)
            before = tuple(slice(0, size - step) for step, size in zip(steps, sizes, strict=True))
            reached = best[before] + error
            is_better = reached < found[after]
            found[after] = np.where(is_better, reached, found[after])
            choice[after][is_better] = index
        best = found
        chosen.append(choice)
    return _traced(best, chosen, scaled)


def _traced(best: np.ndarray, chosen: list[np.ndarray], scaled: list[tuple[list[list[int]], int]]) -> list[int] | None:
    """The choices that lead to the smallest error; of equal ones, those that spend least."""
    place = tuple(int(each) for each in np.unravel_index(int(np.argmin(best)), best.shape))
    if not np.isfinite(best[place]):
        return None
    picked = []
    for group in reversed(range(len(chosen))):
        index = int(chosen[group][place])
        picked.append(index)
        place = tuple(at - parts[group][index] for at, (parts, _) in zip(place, scaled, strict=True))
    return picked[::-1]


def _in_parts(budget: Budget, finest: int) -> tuple[list[list[int]], int]:
    """Costs and limit as whole numbers: exactly, if their common divisor allows, else with costs rounded up."""
    every = [cost for own in budget.costs for cost in own]
    if all(float(cost).is_integer() for cost in every):
        unit = math.gcd(*(int(cost) for cost in every)) or 1
        if budget.limit / unit <= finest:
            return [[int(cost) // unit for cost in own] for own in budget.costs], math.floor(budget.limit / unit)
    # What every choice costs at least is not rounded: the parts divide what there is to choose about.
    least = [min(own) for own in budget.costs]
    spare = budget.limit - math.fsum(least)
    if spare < 0:
        return [[0] * len(own) for own in budget.costs], -1
    unit = spare / finest if spare > 0 else 1.0
    parts = [
        [math.ceil((cost - smallest) / unit - 1e-9) for cost in own]
        for own, smallest in zip(budget.costs, least, strict=True)
    ]
    return parts, finest if spare > 0 else 0
