"""Random functions, with and without results in the memory of what is not needed any more: bit for bit the same.

Nothing is overwritten that somebody still has: inputs, results, gradients that are given, and what a graph that is
retained has saved.
"""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import aotkit
from tests.backends.interpreted.comparing import by_region

SIZE = 16
STEPS = {
    "sin": lambda a, b, c: a.sin(),
    "gelu": lambda a, b, c: F.gelu(a),
    "sum of three": lambda a, b, c: a + b * 0.5 + c,
    "SwiGLU": lambda a, b, c: F.silu(a) * b,
    "product": lambda a, b, c: a @ b / SIZE,
    "transposed product": lambda a, b, c: a.t() @ b / SIZE,
    "running sum": lambda a, b, c: a.cumsum(0) / SIZE,
    "RMS norm": lambda a, b, c: F.rms_norm(a, (SIZE,), b[0]),
    "layer norm": lambda a, b, c: F.layer_norm(a, (SIZE,), b[0], c[1]),
    "softmax": lambda a, b, c: a.softmax(-1) * b,
    "softmax of columns": lambda a, b, c: a.softmax(0) + c,
    "transposed": lambda a, b, c: a.t() * 2,
    "view": lambda a, b, c: a.reshape(-1, 4, SIZE).transpose(0, 1).reshape(SIZE, SIZE),
    "halves": lambda a, b, c: torch.cat([-a[:, SIZE // 2 :], b[:, : SIZE // 2]], 1) + a,
    "column sums": lambda a, b, c: a + b.sum(0),
    "chosen": lambda a, b, c: torch.where(b > 0, a, c),
    "without gradient": lambda a, b, c: a.detach() * b,
}


class Program:
    """A function of three square matrices; its results may be inputs, views, and read again after they are results."""

    def __init__(self, data):
        count = data.draw(st.integers(3, 10))
        near = [st.integers(max(0, 3 + n - 4), 3 + n - 1) for n in range(count)]
        self.steps = [
            (data.draw(st.sampled_from(list(STEPS))), [data.draw(near[n]) for _ in "abc"]) for n in range(count)
        ]
        self.results = [count + 2, *data.draw(st.lists(st.integers(0, count + 2), max_size=3))]
        self.differentiated = data.draw(st.sets(st.integers(0, 2), min_size=1))
        self.computed = data.draw(st.sets(st.integers(0, 2)))  # of others, by eager operations

    def __call__(self, *inputs):
        values = list(inputs)
        for name, places in self.steps:
            values.append(STEPS[name](*(values[i] for i in places)))
        results = [values[i] for i in self.results]
        return (*results, results[0].reshape(-1)[:SIZE], results[0].square().mean())

    def leaves(self):
        torch.manual_seed(0)
        return [torch.randn(SIZE, SIZE).requires_grad_(i in self.differentiated) for i in range(3)]


def same(found, expected):
    return all(map(torch.equal, found, expected))


def copies(tensors):
    return [x.detach().clone() for x in tensors]


def differentiated(program, call, passes, scale):
    """Results and gradients of a few backward passes, each of which has to be like the first.

    Args:
        scale: that of an eager operation after the call: then gradients come to it that nobody else has; None: without.
    """
    leaves = program.leaves()
    inputs = [x * 2 if i in program.computed else x for i, x in enumerate(leaves)]
    before = copies(inputs)
    results = call(*inputs)
    found = copies(results)
    heads = [x if scale is None else x * scale for x in results if x.requires_grad]
    given = [torch.randn_like(x) for x in heads]
    known = copies(given)
    wanted = [x for x in leaves if x.requires_grad]
    for last in ([True] if passes == 1 else [*[False] * (passes - 1), True]) if heads else ():
        gradients = torch.autograd.grad(heads, wanted, given, retain_graph=not last, allow_unused=True)
        gradients = [torch.zeros(()) if x is None else x.clone() for x in gradients]
        assert len(found) == len(results) or same(gradients, found[len(results) :])
        found[len(results) :] = gradients
    assert same(results, found)
    assert same(inputs, before)
    assert same(given, known)
    return found


def same_in_place(data, memory):
    program = Program(data)
    call = aotkit.compile(lambda *inputs: program(*inputs), backend=by_region(), check=False)
    for scale in (None, 1.5):
        memory.on = False
        for _ in range(2):  # the first call has what it would overwrite
            expected = differentiated(program, call, 1, scale)
        memory.on = True
        for passes in (1, 2):
            assert same(differentiated(program, call, passes, scale), expected), (program.steps, program.results)


def many(count, memory):
    """How many of so many random programs have something overwritten."""
    found = []

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def run(data):
        before = memory.placed
        same_in_place(data, memory)
        found.append(memory.placed > before)

    run()
    return sum(found)


def test_random_programs(memory):
    assert many(10, memory) > 2


@pytest.mark.sweep
def test_many_random_programs(memory):
    assert many(300, memory) > 100
