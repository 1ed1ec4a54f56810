"""What is kept for the next process, and what is made of it."""

import pytest
import torch

import aotkit
from aotkit.tuning import known, search, steps, verdicts
from tests.tuning import wrong


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path):
    monkeypatch.setenv("AOTKIT_KEEP", "1")
    monkeypatch.setattr("aotkit.keep.store.cache_folder", lambda: tmp_path)
    monkeypatch.setattr(search, "TIMING", 0.0)
    monkeypatch.setattr(search, "LAST", 0.0)
    monkeypatch.setattr(steps, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(search.proposals, "backend_status", lambda: {"nop": None})


def loss(x):
    return torch.sin(x).square()


def tuned(rows=64, **options):
    return aotkit.autotune(loss, torch.randn(rows, 8).requires_grad_(), budget=600.0, **options)


@pytest.fixture
def compiled_wins(monkeypatch):
    """What is kept shall not depend on the machine's speed."""
    monkeypatch.setattr(search.proposals, "backends", lambda device: ([search.Candidate({"backend": "nop"})], {}))
    monkeypatch.setattr(search.proposals, "around", lambda *args: [])


@pytest.mark.usefixtures("compiled_wins")
def test_the_same_graph_again_is_not_measured_again():
    assert tuned().origin == "measured now"
    again = tuned()
    assert (again.origin, str(again)) == (known.SAME, "aotkit.compile(loss, backend='nop')")


@pytest.mark.usefixtures("compiled_wins")
def test_another_objective_is_another_question():
    tuned()
    assert tuned(objective="peak").origin == "measured now"


@pytest.mark.usefixtures("compiled_wins")
def test_sizes_that_are_alike():
    """64 to 127 rows have seven bits."""
    tuned(64)
    assert tuned(100).origin == known.ALIKE
    assert tuned(256).origin == "measured now"


@pytest.mark.usefixtures("compiled_wins")
def test_what_is_carried_over_is_checked(monkeypatch):
    tuned(64)

    def wrong_now(candidate, workload, options):
        raise verdicts.Unfit("it computes something else")

    monkeypatch.setattr("aotkit.tuning.answer.made", wrong_now)
    assert tuned(100).origin == "measured now"


def test_a_backend_of_the_users_is_not_kept(monkeypatch):
    own = search.Candidate({"backend": aotkit.Backend(wrong.right)})
    monkeypatch.setattr(search.proposals, "backends", lambda device: ([own], {}))
    monkeypatch.setattr(search.proposals, "around", lambda *args: [])
    assert tuned().candidate == own
    assert tuned().origin == "measured now"


def test_a_kept_answer_of_eager():
    search_for = [search.Candidate(None)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search.proposals, "backends", lambda device: (search_for, {}))
        patch.setattr(search.proposals, "around", lambda *args: [])
        assert tuned().apply() is loss
        again = tuned()
    assert again.origin == known.SAME
    assert again.apply() is loss
