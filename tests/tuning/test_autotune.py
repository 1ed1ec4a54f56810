"""What `autotune` chooses, and never does."""

import itertools

import pytest
import torch
from torch import nn

import aotkit
from aotkit.tuning import Workload, search, steps, verdicts
from aotkit.tuning.candidates import Candidate
from tests.tuning import wrong

pytestmark = pytest.mark.usefixtures("unverified")


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Nothing here depends on what is fastest, so timing may be short."""
    monkeypatch.setattr(search, "TIMING", 0.0)
    monkeypatch.setattr(search, "LAST", 0.0)
    monkeypatch.setattr(steps, "SAMPLE_SECONDS", 1e9)
    monkeypatch.setattr(steps, "MOST_STEPS", 20)


def loss(x, w):
    return torch.tanh(x * w) + x


def inputs(*shape):
    return torch.randn(4, 6).requires_grad_(), torch.randn(4, 6).requires_grad_()


def tuned(candidates, fn=loss, args=None, **options):
    return aotkit.autotune(fn, *(args or inputs()), candidates=candidates, budget=600.0, **options)


@pytest.mark.thinned
@pytest.mark.parametrize("name", [*wrong.FORWARD, *wrong.BACKWARD])
def test_what_is_wrong_is_never_chosen(name):
    """Each of thirty, though there is nothing else to choose but eager, and whether it is faster or not."""
    found = tuned([{"backend": wrong.backends()[name], "partition": "default"}])
    (trial,) = found.trials
    assert trial.why.startswith("not chosen: "), f"{name} passed: {found.table()}"
    assert str(found) == "loss"
    assert found.apply() is loss


def test_there_are_enough_wrong_ones():
    assert len(wrong.backends()) >= 30


def test_what_is_right_is_chosen_among_wrong_ones():
    planted = [{"backend": wrong.backends()[name]} for name in ("scaled", "stale", "one_gradient_zero", "without_nan")]
    found = tuned([*planted, "nop"])
    assert str(found) == "aotkit.compile(loss, backend='nop')"
    assert [trial.why[:10] for trial in found.trials] == ["not chosen"] * 4 + [""]


def test_what_cannot_be_checked_is_not_chosen(monkeypatch):
    """There is no time to find out whether it is rounding."""
    from aotkit.checking import checker

    monkeypatch.setattr(checker, "SECONDS", -1e9)
    off = aotkit.Backend(wrong.compiler(wrong.first(lambda x: x * (1 + 3e-4))))
    found = tuned([{"backend": off}])
    assert "could not be checked" in found.trials[0].why
    assert found.apply() is loss


def test_a_backend_that_cannot_run_a_function_has_a_reason():
    def broken(gm, example_inputs):
        raise RuntimeError("no such instruction\nin a long trace")

    found = tuned([{"backend": broken}, {"backend": "no_such"}])
    assert "no such instruction" in found.trials[0].why
    assert "no backend is named 'no_such'" in found.trials[1].why


def test_a_backend_that_leaves_its_regions_as_they_are_is_not_what_is_timed():
    """By itself it would be the other one that has the rest."""

    def broken(gm, example_inputs):
        raise RuntimeError("no such instruction")

    first = aotkit.Backend(wrong.right, declines=lambda node: None)
    compiled = aotkit.compile(loss, backend=first)
    compiled(*inputs())
    digest = compiled.graphs(*inputs()).regions["forward"].regions[0].digest
    aotkit.register_backend("broken", broken)
    try:
        workload = Workload(loss, inputs(), {})
        with pytest.raises(verdicts.Unfit, match="did not compile: RuntimeError: no such instruction"):
            verdicts.made(Candidate({"backend": first}, {digest: "broken"}), workload, {})
    finally:
        aotkit.unregister_backend("broken")


def test_a_list_of_which_one_has_nothing_to_do_is_not_timed():
    """The other one by itself runs the same, and says less."""
    every = aotkit.Backend(wrong.right, declines=lambda node: None)
    found = tuned([every, {"backend": [every, "nop"]}])
    assert found.candidate.backend is every
    assert found.trials[1].why == "not chosen: there is nothing to compile for nop"


def test_what_takes_nothing_is_not_timed():
    found = tuned([aotkit.Backend(wrong.right, declines=lambda node: "it takes nothing")])
    assert found.apply() is loss
    assert "there is nothing to compile for" in found.trials[0].why


def test_what_compiles_the_same_is_timed_once():
    """A cut that is like another one's; but not another backend, though it has the same name."""
    found = tuned(["nop", {"backend": "nop", "partition": "min_cut"}, {"backend": "nop", "partition": "default"}])
    assert [trial.why for trial in found.trials][1] == "not chosen: it compiles the same as nop"
    assert found.trials[2].seconds is not None
    other = tuned([wrong.compiler(wrong.every(torch.clone)), wrong.compiler(wrong.every(torch.clone))])
    assert all(trial.seconds is not None for trial in other.trials)


def test_a_module_is_timed_as_a_module():
    """With what calling one costs, as the answer has it."""
    workload = Workload(nn.Linear(2, 2), (torch.randn(3, 2),), {})
    assert isinstance(verdicts.made(Candidate({"backend": "nop"}), workload, {}), nn.Linear)


def test_the_simplest_that_is_not_surely_slower_is_chosen(monkeypatch):
    """Whichever is given first; eager is slower in each round."""

    def first(gm, example_inputs):
        return wrong.right(gm, example_inputs)

    def longer(x, w):
        return torch.sin(torch.exp(torch.neg(torch.abs(x * w))))

    takes = ("exp", "sin")
    shared = [aotkit.Backend(first, declines=lambda n: None if any(t in str(n.target) for t in takes) else "no"), "nop"]
    seconds = {"'first, nop'": [1.0, 1.2], "'nop'": [1.2, 1.0], "function": [1.4, 1.4]}  # by what they are called
    times = {name: itertools.cycle(found) for name, found in seconds.items()}

    def sampler(workload, call, count):
        return times[next(name for name in times if name in repr(call))].__next__

    monkeypatch.setattr(search, "sampler", sampler)
    found = tuned([{"backend": shared}, "nop", "eager"], longer)
    assert all(trial.seconds is not None for trial in found.trials), found.table()
    assert found.candidate == Candidate({"backend": "nop"})


def test_what_runs_eagerly_is_no_candidate():
    found = tuned([{"backend": "nop"}], lambda x: x.sin(), [torch.randn(3, 3).to_sparse()])
    assert found.origin.startswith("not measured: ")
    assert str(found).endswith("<lambda>")


def test_eager_costs_nothing():
    assert tuned(["eager"]).apply() is loss
    model = nn.Linear(2, 2)
    assert tuned(["eager"], model, [torch.randn(3, 2)]).apply() is model


def test_the_recipe_gives_what_its_line_says():
    found = tuned([{"backend": "nop", "partition": "nx_min_cut"}])
    given = eval(found.line, {"aotkit": aotkit, "loss": loss})
    assert repr(given) == repr(found.apply()) == "<compiled loss (backend='nop', partition='nx_min_cut')>"
    x, w = inputs()
    assert torch.equal(found.apply()(x, w), loss(x, w))


def test_other_functions_can_have_the_recipe():
    found = tuned(["nop"])
    assert repr(found.apply(torch.sin)).endswith("sin (backend='nop', partition='min_cut')>")


def test_nothing_is_left_behind():
    """The module's state, gradients and random numbers are as before."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    x = torch.randn(8, 4)
    w = torch.ones(8, 4, requires_grad=True)
    w.grad = torch.full_like(w, 7.0)
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    tuned(["nop"], model, [x])
    tuned(["nop"], lambda x: (x * w).sum(), [x])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(w.grad, torch.full_like(w, 7.0))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_function_that_changes_its_arguments_is_tuned_on_copies():
    def add(x, y):
        x.add_(y)
        return x * 2

    x, y = torch.zeros(8), torch.ones(8)
    assert tuned(["nop"], add, [x, y]).trials[0].why == ""
    assert torch.equal(x, torch.zeros(8))


def test_a_function_that_changes_its_lists_gets_new_ones():
    def last(tensors):
        return tensors.pop() * 2

    found = tuned(["eager"], last, [[torch.ones(2), torch.ones(2)]])
    assert found.apply() is last


def test_the_budget_ends_what_has_not_begun():
    found = aotkit.autotune(loss, *inputs(), candidates=["eager", "nop"], budget=0.0)
    assert found.trials[1].why.startswith("not tried")
    assert "1 other" in found.table()


def test_least_peak():
    """Whatever time it takes."""

    def wasteful(gm, example_inputs):
        def call(*inputs):
            memory = torch.empty(1 << 20)
            return [gm(*inputs), memory][0]

        return call

    found = tuned([wasteful, "nop"], objective="peak")
    assert found.trials[0].peak > found.trials[1].peak
    assert str(found) == "aotkit.compile(loss, backend='nop')"


def test_the_frontier_has_less_memory_with_more_time():
    found = tuned(["eager", {"backend": "nop", "partition": "nx_min_cut"}], objective="frontier")
    places = [(point.trials[0].seconds.median, point.trials[0].peak) for point in found.frontier]
    assert places == sorted(places)
    assert [peak for _, peak in places] == sorted((peak for _, peak in places), reverse=True)
    assert found.frontier[0].candidate == found.candidate
    assert len(found.json()["frontier"]) == len(places)


def test_an_objective_that_is_none():
    with pytest.raises(ValueError, match="objective must be one of 'time', 'peak', 'frontier'"):
        tuned(["nop"], objective="speed")


def test_progress_is_told():
    told = []
    tuned(["nop"], progress=told.append)
    assert told[:2] == ["loss: compiling and checking nop", "loss: timing 1 candidates"]


def test_what_is_proposed_where_nobody_says(monkeypatch):
    """Eager, what runs here, and partitions of what was ahead; what does not run here has its reason."""
    monkeypatch.setattr(search.proposals, "backend_status", lambda: {"nop": None, "away": "it is away", "print": None})
    found = aotkit.autotune(loss, *inputs(), budget=600.0)
    labels = [trial.candidate.label for trial in found.trials]
    assert labels[:2] == ["eager", "nop"]
    assert {"nop x default", "nop x nx_min_cut"} <= {*labels} or str(found) == "loss"
    assert labels[-1] == "away"
    assert found.trials[-1].why == "it is away"
