"""`compile(backend="autotune")`: each kind of call runs as was found to be best."""

import copy
import pickle

import pytest
import torch
from torch import nn

import aotkit
from aotkit.tuning import function, search, steps
from aotkit.tuning.candidates import Candidate

NOP, EAGER = Candidate({"backend": "nop"}), Candidate(None)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(search, "TIMING", 0.0)
    monkeypatch.setattr(search, "LAST", 0.0)
    monkeypatch.setattr(steps, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(search.proposals, "around", lambda *args: [])
    answering(monkeypatch, NOP)


def answering(monkeypatch, candidate):
    monkeypatch.setattr(search.proposals, "backends", lambda device: ([candidate], {}))


def loss(x):
    return x.sin().square().sum()


def leaf(*shape):
    return torch.randn(shape).requires_grad_()


def test_each_kind_of_call_has_its_recipe(monkeypatch):
    fast = aotkit.compile(loss, backend="autotune")
    small, large = leaf(4), leaf(64, 64)
    assert torch.equal(fast(small), loss(small))
    answering(monkeypatch, EAGER)
    assert torch.equal(fast(large), loss(large))
    assert str(fast.recipe(small)) == "aotkit.compile(loss, backend='nop')"
    assert str(fast.recipe(large)) == "loss"
    with torch.no_grad():
        assert str(fast.recipe(small)) == "loss"


def test_a_call_that_was_seen_before_costs_what_the_answer_costs(monkeypatch):
    """What runs has guards: while they hold, nothing else is looked up; where they do not, its kind is."""
    fast = aotkit.compile(loss, backend="autotune")
    small, large = leaf(4), leaf(8)
    fast(small), fast(large), fast(small)
    with monkeypatch.context() as patch:
        patch.setattr(function, "_kind", lambda args, kwargs: pytest.fail("it was looked up"))
        assert torch.equal(fast(small), loss(small))
    with torch.no_grad():
        assert torch.equal(fast(large), loss(large))
    assert len(fast._recipes) == 3


def test_open_sizes_do_not_let_other_kinds_through():
    fast = aotkit.compile(loss, backend="autotune", dynamic=True)
    for x in (leaf(4), leaf(8)):
        assert torch.allclose(fast(x), loss(x))
    assert len(fast._recipes) == 2


def test_gradients():
    x = leaf(8)
    aotkit.compile(loss, backend="autotune")(x).backward()
    (want,) = torch.autograd.grad(loss(x), x)
    assert torch.allclose(x.grad, want)


def test_a_module_stays_one():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = model[1].running_mean.clone()
    fast = aotkit.compile(model, backend="autotune")
    x = torch.randn(8, 4)
    fast(x).sum().backward()
    assert isinstance(fast, nn.Sequential)
    assert not torch.equal(model[1].running_mean, before)
    once = nn.Sequential(*map(copy.deepcopy, model))
    once[1].reset_running_stats()
    once(x)
    assert torch.allclose(model[1].running_mean, once[1].running_mean), "the call counts once, timing does not"
    assert fast.report(x).passed
    assert fast.graphs(x).backend == "nop"


def test_what_eager_runs_is_told(monkeypatch):
    answering(monkeypatch, EAGER)
    fast = aotkit.compile(loss, backend="autotune")
    assert fast.explain(leaf(3)).eager == function.IS_EAGER
    with pytest.raises(aotkit.TraceError, match="found to be best"):
        fast.graphs(leaf(3))


def test_what_it_asks_of_the_compiled():
    fast = aotkit.compile(loss, backend="autotune")
    x = leaf(3)
    assert fast.graphs(x).backend == "nop"
    assert fast.explain(x).capture == "aot"
    assert fast.check(x).passed


def test_a_function_that_changes_more_than_its_arguments_is_not_called_many_times():
    total = torch.zeros(())
    others = {}

    @aotkit.compile(backend="autotune")
    def count(x):
        total.add_(1.0)
        return x * 2

    @aotkit.compile(backend="autotune")
    def note(x):
        others["calls"] = others.get("calls", 0) + 1
        return x * 2

    count(leaf(3))
    assert total == 1.0
    assert "it changes" in count.recipe(leaf(3)).origin
    note(torch.ones(3))
    assert others["calls"] == 1
    assert "must be known to change nothing" in note.recipe(torch.ones(3)).origin


def test_options_hold_for_all_candidates():
    fast = aotkit.compile(loss, backend="autotune", partition="default", random="torch")
    assert fast.graphs(leaf(3)).partition == "default"
    assert fast.recipe(leaf(3)).line == "aotkit.compile(loss, backend='nop', partition='default', random='torch')"


@aotkit.compile(backend="autotune")
def decorated(x, scale=2.0, *, more=None):
    return x * scale if more is None else x * scale + more["shift"]


def test_arguments_of_all_kinds():
    x = leaf(3)
    assert torch.equal(decorated(x), x * 2)
    assert torch.equal(decorated(x, 3.0), x * 3)
    assert torch.equal(decorated(x, scale=3.0, more={"shift": torch.ones(3)}), x * 3 + 1)


def test_copies_and_pickles():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert torch.equal(copy.deepcopy(decorated)(torch.ones(2)), torch.full((2,), 2.0))
    model = aotkit.compile(nn.Linear(2, 2), backend="autotune")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.explain(torch.ones(1, 2)).subject.endswith("backend 'nop' and partition 'min_cut'")


def test_methods():
    class Scaled:
        def __init__(self):
            self.scale = 3.0

        @aotkit.compile(backend="autotune")
        def times(self, x):
            return x * self.scale

    assert torch.equal(Scaled().times(torch.ones(2)), torch.full((2,), 3.0))


def test_not_each_of_many_sizes_is_measured(monkeypatch):
    monkeypatch.setattr(function, "MOST_MEASURED", 2)
    fast = aotkit.compile(loss, backend="autotune")
    for rows in (2, 3, 4, 5):
        x = leaf(rows)
        assert torch.equal(fast(x), loss(x))
    assert [fast.recipe(leaf(rows)).origin[:8] for rows in (2, 3, 4, 5)] == ["measured"] * 2 + ["not meas"] * 2


def test_as_a_part_of_what_is_compiled():
    fast = aotkit.compile(loss, backend="autotune")

    @aotkit.compile(backend="nop")
    def whole(x):
        return fast(x) * 2

    x = leaf(4)
    assert torch.equal(whole(x), loss(x) * 2)
    assert not fast._recipes, "it is traced with the rest, and measured when it is called by itself"


def test_inside_of_transforms_the_function_itself_runs():
    fast = aotkit.compile(loss, backend="autotune")
    x = torch.randn(3)
    assert torch.allclose(torch.func.grad(fast)(x), torch.func.grad(loss)(x))


@pytest.mark.parametrize("name", ["auto", "autotune"])
def test_what_leaves_the_choice_is_no_name(name):
    with pytest.raises(ValueError, match="leaves the choice to aotkit"):
        aotkit.register_backend(name, lambda gm, inputs: gm)
    with pytest.raises(aotkit.UnknownNameError, match="leaves the choice to aotkit"):
        aotkit.get_backend(name)
