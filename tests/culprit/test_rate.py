"""How often the culprit is right: random faults of single nodes in the graphs of the zoo."""

import random

import pytest
import torch

import aotkit
from aotkit.testing import zoo
from tests.culprit import faults

CPU = torch.device("cpu")
# Of single-node faults: named rightly; reproduced by a script of few operations.
LEAST_RATE = 0.95
MOST_OPERATIONS = 5
FAULTS_EACH = 3


def random_faults(seed):
    """Endless: (function, arguments, name of the graph, name of a node, fault)."""
    chosen = random.Random(seed)
    while True:
        case = chosen.choice(zoo.CASES)
        torch.manual_seed(0)
        fn, args = case.build(CPU), case.inputs(zoo.Inputs(CPU, 0))
        graphs = aotkit.compile(fn, backend="nop", check=False).graphs(*args)
        parts = [("forward graph", graphs.forward), ("backward graph", graphs.backward)]
        parts = [(name, gm) for name, gm in parts if gm is not None and faults.operations(gm)]
        for _ in range(FAULTS_EACH):
            part, gm = chosen.choice(parts)
            node, fault = chosen.choice(faults.operations(gm)), chosen.choice(faults.FAULTS)
            yield fn, case.inputs(zoo.Inputs(CPU, 0)), part, node.name, fault


def measure(seed, count):
    """Look for the culprits of `count` faults that fail the check; return the descriptions of those missed."""
    missed, found = [], 0
    for fn, args, part, name, fault in random_faults(seed):
        if (culprit := faults.planted(fn, args, part, name, fault)) is None:
            continue
        found += 1
        right = not isinstance(culprit, str) and (culprit.part, culprit.node) == (part, name)
        if not right or culprit.script is None or len(faults.operations(culprit.graph)) > MOST_OPERATIONS:
            missed.append(f"{fault.__name__} of {name} in the {part}: {culprit}")
        if found == count:
            return missed
    raise AssertionError


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [0])
def test_the_culprit_is_right(seed):
    missed = measure(seed, 3)
    assert not missed, "\n".join(missed)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10))
def test_the_culprit_is_right_more_often(seed):
    missed = measure(100 + seed, 200)
    assert len(missed) <= (1 - LEAST_RATE) * 200, "\n".join(missed)
