"""The choice between saving and recomputing: exact, against every choice of small problems."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from aotkit.partitioners.rematerialization.blocks import solve
from aotkit.partitioners.rematerialization.filling import Draft
from aotkit.partitioners.rematerialization.problem import Impossible, Problem
from aotkit.partitioners.rematerialization.tradeoff import Choice, OverBudget, Tradeoff, fastest_within
from tests.partitioners.mixed_integer import by_mixed_integer_programming


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


@pytest.mark.thinned
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


@pytest.mark.parametrize("seed", range(10))
def test_large_choices_are_as_good_as_by_mixed_integer_programming(seed):
    draw = random.Random(seed)
    problem = random_problem(draw, 120)
    problem = replace(problem, save=[s or draw.randint(1, 9) for s in problem.save], needed=range(100, 120))
    assert problem.cost(solve(problem)) == round(by_mixed_integer_programming(problem).cost)


@pytest.mark.parametrize("seed", range(4))
def test_a_budget_is_kept_and_its_gap_is_certified(seed):
    draw = random.Random(seed)
    for _ in range(60):
        tradeoff = random_tradeoff(draw, 9)
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


@pytest.mark.parametrize("seed", range(4))
def test_the_choice_at_a_price_is_the_best(seed):
    draw = random.Random(seed)
    for _ in range(60):
        tradeoff = random_tradeoff(draw, 9)
        choices = all_choices(tradeoff)
        for price in (0, Fraction(1, 1000), Fraction(1, draw.randint(1, 20)), draw.randint(1, 1000)):
            assert_best(tradeoff, choices, Fraction(price), draw.randint(0, len(tradeoff.kept)))


def assert_best(tradeoff, choices, price, split):
    if not choices:
        with pytest.raises(Impossible):
            tradeoff.best(price, split)
        return
    found = tradeoff.best(price, split)
    assert found.time + price * found.kept == min(c.time + price * c.kept for c in choices)
    again = tradeoff.choice(found.saved)
    assert (again.time, again.kept) == (found.time, found.kept)


def random_tradeoff(draw, most):
    """Half of them have values of few sizes, of which several fit into a budget with little to spare."""
    problem = random_problem(draw, draw.randint(4, most))
    sizes = draw.choice([range(1, 31), [1, 2, 20, 21]])
    return Tradeoff(problem, [draw.choice(sizes) if save else 0 for save in problem.save])


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


def test_small_values_that_together_take_the_place_of_a_large_one_are_certified():
    """Of ten large values four fit into the budget with three small ones, or three with all twenty, which is faster."""
    large, small = 10, 20
    again = [50] * large + [10] * small
    problem = Problem([[] for _ in again], save=[1] * len(again), recompute=again, needed=range(len(again)))
    choice = fastest_within(Tradeoff(problem, [100] * large + [1] * small), 403)
    assert (choice.kept, choice.gap) == (320, 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_draft_takes_at_each_step_what_its_choice_takes(seed):
    draw = random.Random(seed)
    for _ in range(20):
        tradeoff = random_tradeoff(draw, 30)
        problem = tradeoff.time
        possible = [v for v, save in enumerate(problem.save) if save]
        draft = Draft(problem, tradeoff.kept, [])
        for value in draw.choices(possible, k=20):
            draft.toggle(value)
            if cost(problem, draft.saved) is None:
                assert draft.stuck
            else:
                choice = tradeoff.choice(draft.saved)
                assert (draft.time, draft.kept, draft.stuck) == (choice.time, choice.kept, 0)


def test_a_value_that_does_not_fit_replaces_others_and_what_leaves_a_budget_unused_is_named():
    """Four values that are needed, of 5, 3, 3 and 1 bytes; the first is worth most."""
    problem = Problem(inputs=[[]] * 4, save=[1] * 4, recompute=[90, 50, 50, 10], needed=range(4))
    tradeoff = Tradeoff(problem, [5, 3, 3, 1])
    assert fastest_within(tradeoff, 7).saved == {1, 2, 3}
    found = fastest_within(tradeoff, 5)
    assert (found.saved, found.indivisible) == ({0}, 3)
    found = fastest_within(replace(tradeoff, kept=[5, 3, 3, 3]), 7)
    assert (found.kept, found.indivisible) == (6, 3)
    assert fastest_within(tradeoff, 12).indivisible is None
