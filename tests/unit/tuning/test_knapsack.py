"""The best choices within budgets, against trying all of them."""

import itertools
import random

import pytest

from steelyard.tuning.knapsack import Budget, solve


def tried(errors, budgets):
    """The smallest error of all choices that keep the budgets."""
    allowed = []
    for choice in itertools.product(*(range(len(own)) for own in errors)):
        spent = [sum(own[i] for own, i in zip(budget.costs, choice, strict=True)) for budget in budgets]
        if all(cost <= budget.limit for cost, budget in zip(spent, budgets, strict=True)):
            allowed.append(sum(own[i] for own, i in zip(errors, choice, strict=True)))
    return min(allowed, default=None)


def table(draw, groups=6, choices=4):
    return [[draw() for _ in range(choices)] for _ in range(groups)]


@pytest.mark.parametrize("seed", range(20))
def test_whole_costs_are_solved_exactly(seed):
    rng = random.Random(seed)
    errors = table(rng.random)
    budget = Budget(table(lambda: 64 * rng.randint(1, 30)), 64 * rng.randint(20, 120))
    expected = tried(errors, [budget])
    found = solve(errors, [budget])
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert sum(own[i] for own, i in zip(errors, found, strict=True)) == pytest.approx(expected, rel=1e-12)
    assert sum(own[i] for own, i in zip(budget.costs, found, strict=True)) <= budget.limit


@pytest.mark.parametrize("seed", range(10))
def test_two_budgets_of_any_numbers_are_kept_and_nearly_used(seed):
    rng = random.Random(seed)
    errors = table(rng.random)
    costs = [table(rng.random), table(rng.random)]
    budgets = [Budget(each, 3.0 + rng.random()) for each in costs]
    found = solve(errors, budgets)
    assert found is not None
    for budget in budgets:
        assert sum(own[i] for own, i in zip(budget.costs, found, strict=True)) <= budget.limit
    # Costs are rounded up by less than a part in 300 of what there is to choose about, once per group.
    smaller = [Budget(each.costs, each.limit - 6 * each.limit / 300) for each in budgets]
    bound = tried(errors, smaller)
    assert bound is None or sum(own[i] for own, i in zip(errors, found, strict=True)) <= bound + 1e-12


def test_without_a_budget_each_group_has_its_best():
    assert solve([[3.0, 1.0], [0.0, 2.0]], []) == [1, 0]


def test_a_budget_that_nothing_keeps_has_no_choice():
    assert solve([[1.0, 2.0]], [Budget([[5, 6]], 4)]) is None
    assert solve([[1.0, 2.0]], [Budget([[5.5, 6.5]], 4.0)]) is None
    assert solve([[1.0, 2.0]], [Budget([[5.5, 6.5]], 5.5)]) == [0]
