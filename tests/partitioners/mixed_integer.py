"""The choice between saving and recomputing by mixed-integer programming, with HiGHS: slow, and made by others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from aotkit.partitioners.rematerialization.problem import Problem

OPTIMAL = 0


@dataclass
class Solution:
    """What HiGHS found.

    Attributes:
        finished: whether the best choice is known, rather than the time over.
        bound: no choice costs less.
        cost: of the best choice found; infinite if there is none.
    """

    finished: bool
    bound: float
    cost: float


def by_mixed_integer_programming(
    problem: Problem, kept: Sequence[int] = (), limit: int = 0, *, seconds: float = 60.0
) -> Solution:
    """The least cost of a problem; with `kept`, of the choices that keep at most `limit` bytes.

    There are two variables for each value: whether it is there in the backward pass, and whether it is recomputed. It
    is saved if it is there and not recomputed.
    """
    size = len(problem.inputs)
    costs, least, largest = np.zeros(2 * size), np.zeros(2 * size), np.ones(2 * size)
    least[list(problem.needed)] = 1
    orders: list[tuple[int, int]] = []  # (lesser, greater)
    for v, (inputs, save, recompute) in enumerate(zip(problem.inputs, problem.save, problem.recompute, strict=True)):
        there, again = v, size + v
        orders += [(again, there), *((again, i) for i in inputs)]
        if save is None:
            orders.append((there, again))
        if recompute is None:
            largest[again] = 0
        costs[there] = save or 0
        costs[again] = (recompute or 0) - (save or 0)
    rows, columns = np.repeat(np.arange(len(orders)), 2), np.array(orders).ravel()
    signs = np.tile([1.0, -1.0], len(orders))
    constraints = [LinearConstraint(csr_array((signs, (rows, columns)), shape=(len(orders), 2 * size)), ub=0)]
    if kept:
        unit = max(kept)  # HiGHS wants moderate numbers
        share = np.array(kept) / unit
        constraints.append(LinearConstraint(np.concatenate([share, -share])[None, :], ub=limit / unit))
    unit = max(1.0, np.abs(costs).max() / 1e6)
    options = {"time_limit": seconds, "mip_rel_gap": 1e-9}
    found = milp(costs / unit, constraints=constraints, integrality=1, bounds=Bounds(least, largest), options=options)
    cost = np.inf if found.x is None else found.fun * unit
    bound = found.mip_dual_bound
    return Solution(found.status == OPTIMAL, cost if bound is None else bound * unit, cost)
