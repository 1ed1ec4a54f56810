"""Other backends for single kinds of regions: which are tried, and what the answer is. Who is faster, the test says."""

import pytest
import torch

import aotkit
from aotkit.launches import Spread
from aotkit.tuning import search
from aotkit.tuning.candidates import Candidate
from aotkit.tuning.races import FEWEST, Race
from tests.tuning import wrong


def takes_pointwise(node):
    return None if torch.Tag.pointwise in getattr(node.target, "tags", ()) else "takes pointwise operators only"


@pytest.fixture(autouse=True)
def backends(monkeypatch):
    """One that takes parts, and another one that is tried instead."""
    aotkit.register_backend("parts", aotkit.Backend(wrong.right, declines=takes_pointwise))
    monkeypatch.setattr(search.proposals, "backends", lambda device: ([Candidate({"backend": n}) for n in NAMES], {}))
    monkeypatch.setattr(search.proposals, "around", lambda *args: [])
    yield
    aotkit.unregister_backend("parts")


NAMES = ("parts", "nop")


def ranking(monkeypatch, seconds):
    """Have candidates take the time that is given for them."""

    def raced(self, places, share):
        times = {i: seconds(self.trials[i].candidate) for i in places}
        for i, time in times.items():
            self.trials[i].seconds = Spread(time, time, time)
        return Race({i: [time] * FEWEST for i, time in times.items()}, [*times])

    monkeypatch.setattr(search.Search, "_race", raced)


def layers(x, w):
    for _ in range(2):
        x = x.sin().tanh() @ w
    return x.exp().log()


def tuned():
    with torch.no_grad():
        return aotkit.autotune(layers, torch.randn(4, 4), torch.randn(4, 4), budget=600.0)


def test_each_kind_of_region_for_which_another_one_is_faster(monkeypatch):
    ranking(monkeypatch, lambda candidate: 1.0 + (candidate.backend == "nop") - 0.1 * len(candidate.instead))
    found = tuned()
    assert len(found.candidate.instead) == 2, "equal layers are one kind"
    assert {*found.candidate.instead.values()} == {"nop"}
    assert str(found).startswith("aotkit.compile(layers, backend=aotkit.by_region('parts', instead={")
    fast = eval(str(found), {"aotkit": aotkit, "layers": layers})
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    assert torch.allclose(fast(x, w), layers(x, w), atol=1e-6)


def test_what_is_slower_with_it_stays_as_it_is(monkeypatch):
    """The borders cost more than the region gains."""
    ranking(monkeypatch, lambda candidate: 1.0 + (candidate.backend == "nop") + len(candidate.instead))
    found = tuned()
    assert str(found) == "aotkit.compile(layers, backend='parts')"
    assert len([trial for trial in found.trials if trial.candidate.instead]) == 2


def test_where_what_takes_whole_graphs_is_ahead_regions_are_tried_of_the_next(monkeypatch):
    ranking(monkeypatch, lambda candidate: 1.0 - 0.1 * (candidate.backend == "nop") - 0.2 * len(candidate.instead))
    assert len(tuned().candidate.instead) == 2
