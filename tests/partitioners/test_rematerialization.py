"""The choice between saving and recomputing: exact, against every choice of small problems."""

import random

import pytest

from aotkit.partitioners.rematerialization.blocks import solve
from aotkit.partitioners.rematerialization.problem import Impossible, Problem


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
