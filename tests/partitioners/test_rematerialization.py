"""The choice between saving and recomputing: exact, against every choice of small problems."""

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from aotkit.partitioners.rematerialization.blocks import solve
from aotkit.partitioners.rematerialization.problem import Impossible, Problem
from aotkit.partitioners.rematerialization.tradeoff import Choice, OverBudget, Tradeoff, fastest_within


def random_problem(draw: random.Random, size: int) -> Problem:
    """With impossible and free choices among the costs, and values that all paths go through."""
    near = draw.choice([2, 3, size])
    inputs = [
        draw.sample(range(max(0, v - near), v), min(v, near, draw.choice([0, 1, 1, 2, 2, 3]))) for v in range(size)
    ]
    save = [draw.choice([None, 0, *range(1, 20), *range(1, 20)]) for _ in range(size)]
    recompute = [draw.choice([None, 0, 0, 1, 2, 3, 5, 8, 15]) for _ in range(size)]
    return Problem(inputs, save, recompute, draw.sample(range(size), draw.randint(1, 3)))


def cost(problem: Problem, chosen: set[int]) -> int | None:
    try:
        return problem.cost(chosen)
    except Impossible:
        return None


def least_cost(problem: Problem) -> int | None:
    """Of all sets of saved values."""
    size = len(problem.inputs)
    sets = ({v for v in range(size) if bits >> v & 1} for bits in range(1 << size))
    return min((c for s in sets if (c := cost(problem, s)) is not None), default=None)


@pytest.mark.parametrize("seed", range(4))
def test_the_choice_is_the_best(seed):
    draw = random.Random(seed)
    for _ in range(250):
        problem = random_problem(draw, draw.randint(3, 10))
        best = least_cost(problem)
        if best is None:
            with pytest.raises(Impossible):
                solve(problem)
        else:
            assert problem.cost(solve(problem)) == best, problem


def by_milp(problem: Problem) -> int:
    """The least cost by mixed-integer programming, with HiGHS."""
    size = len(problem.inputs)
    there, again = range(size), range(size, 2 * size)
    costs, largest = np.zeros(2 * size), np.ones(2 * size)
    rows: list[np.ndarray] = []

    def at_most(lesser: int, greater: int) -> None:
        row = np.zeros(2 * size)
        row[lesser], row[greater] = 1, -1
        rows.append(row)

    for v in range(size):
        save, recompute = problem.save[v], problem.recompute[v]
        at_most(again[v], there[v])
        if save is None:
            at_most(there[v], again[v])
        if recompute is None:
            largest[again[v]] = 0
        costs[there[v]] += save or 0
        costs[again[v]] += (recompute or 0) - (save or 0)
        for i in problem.inputs[v]:
            at_most(again[v], there[i])
    least = np.zeros(2 * size)
    least[list(problem.needed)] = 1
    found = milp(
        costs, constraints=LinearConstraint(np.array(rows), ub=0), integrality=1, bounds=Bounds(least, largest)
    )
    assert found.success
    return round(found.fun)


@pytest.mark.parametrize("seed", range(10))
def test_large_choices_are_as_good_as_by_mixed_integer_programming(seed):
    draw = random.Random(seed)
    problem = random_problem(draw, 120)
    problem = replace(problem, save=[s or draw.randint(1, 9) for s in problem.save], needed=range(100, 120))
    assert problem.cost(solve(problem)) == by_milp(problem)


@pytest.mark.parametrize("seed", range(4))
def test_a_budget_is_kept_and_its_gap_is_certified(seed):
    draw = random.Random(seed)
    for _ in range(60):
        problem = random_problem(draw, draw.randint(4, 9))
        tradeoff = Tradeoff(problem, [draw.randint(1, 30) if save else 0 for save in problem.save])
        choices = all_choices(tradeoff)
        if not choices:
            continue
        limit = draw.randint(0, max(c.kept for c in choices))
        times = [c.time for c in choices if c.kept <= limit]
        if not times:
            with pytest.raises(OverBudget) as e:
                fastest_within(tradeoff, limit)
            assert e.value.least == min(c.kept for c in choices)
            continue
        found = fastest_within(tradeoff, limit)
        assert found.kept <= limit
        assert found.time * (1 - found.gap) - 1e-6 <= min(times) <= found.time


def all_choices(tradeoff: Tradeoff) -> list[Choice]:
    size, found = len(tradeoff.kept), []
    for bits in range(1 << size):
        chosen = {v for v in range(size) if bits >> v & 1}
        if cost(tradeoff.time, chosen) is not None and all(tradeoff.time.save[v] is not None for v in chosen):
            found.append(tradeoff.choice(chosen))
    return found


def test_equal_layers_are_told_apart():
    """Of layers that are equally good to recompute, as many are recomputed as the budget asks for."""
    layers = 20
    problem = Problem(
        inputs=[[v - 1] if v else [] for v in range(2 * layers)],
        save=[0 if v == 0 else 1 for v in range(2 * layers)],
        recompute=[None if v % 2 == 0 else 10 for v in range(2 * layers)],
        needed=range(2 * layers),
    )
    tradeoff = Tradeoff(problem, [0, *[100] * (2 * layers - 1)])
    for recomputed in range(layers):
        choice = fastest_within(tradeoff, 100 * (2 * layers - 1 - recomputed))
        assert choice.kept == 100 * (2 * layers - 1 - recomputed)
        assert choice.gap == 0
