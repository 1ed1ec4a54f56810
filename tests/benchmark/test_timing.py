"""Timing is interleaved, counts only what it should, and loses no variant."""

from collections import Counter

import pytest

from aotkit.benchmark import Step, interleave, speedup, spread
from aotkit.benchmark.timing import FEWEST_ROUNDS
from tests.benchmark.conftest import READING


def step(log, name, sleep=lambda seconds: None, forward=0.0, backward=0.0, prepare=0.0):
    def run(part, seconds):
        log.append((name, part))
        sleep(seconds)
        return part

    return Step(
        lambda: run("prepare", prepare) and None,
        lambda: run("forward", forward),
        lambda result: run(f"backward of {result}", backward) and None,
    )


def test_each_phase_is_timed_alone_and_preparing_is_not(clock):
    times, failed = interleave({"a": step([], "a", clock.sleep, 2e-3, 4e-3, prepare=2e-2)}, seconds=0.01)
    assert not failed
    medians = [spread(times["a"][phase].wall).median for phase in ("forward", "backward")]
    assert medians == pytest.approx([2e-3 + READING, 4e-3 + READING])


def test_the_thread_clock_does_not_count_waiting(clock):
    times, _ = interleave({"a": step([], "a", clock.sleep, forward=5e-3)}, seconds=0.01)
    samples = times["a"]["forward"]
    assert spread(samples.cpu).median == pytest.approx(READING)
    assert spread(samples.wall).median == pytest.approx(5e-3 + READING)
    assert samples.main is samples.wall


def test_every_round_plays_every_variant_and_each_comes_first_equally_often():
    log = []
    names = ["a", "b", "c"]
    times, _ = interleave({name: step(log, name) for name in names}, seconds=0.0)
    order = [name for name, part in log if part == "forward"]
    rounds = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert all(sorted(r) == names for r in rounds)
    assert {len(times[name]["backward"].wall) for name in names} == {FEWEST_ROUNDS}
    first = Counter(r[0] for r in rounds[-FEWEST_ROUNDS:])
    assert max(first.values()) - min(first.values()) <= 1
    assert len(rounds) > FEWEST_ROUNDS, "warm-up rounds are not counted"


def test_the_budget_decides_the_number_of_rounds(clock):
    times, _ = interleave({"a": step([], "a", clock.sleep, forward=1e-3)}, seconds=0.1)
    assert len(times["a"]["forward"].wall) == pytest.approx(100, abs=1)


def test_nothing_to_differentiate_has_no_backward():
    times, _ = interleave({"a": Step(lambda: None, lambda: 1, None)}, seconds=0.0)
    assert list(times["a"]) == ["forward"]


def test_a_variant_that_fails_is_reported_and_the_others_go_on():
    def fail():
        raise RuntimeError("out of memory")

    steps = {"bad": Step(lambda: None, fail, None), "good": step([], "good")}
    times, failed = interleave(steps, seconds=0.0)
    assert list(times) == ["good"]
    assert str(failed["bad"]) == "out of memory"
    assert len(times["good"]["forward"].wall) == FEWEST_ROUNDS


def test_median_and_quartiles():
    found = spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.low, found.median, found.high) == (2.0, 3.0, 4.0)
    assert found.half_width == pytest.approx(1 / 3)
    assert spread([7.0]).half_width == 0
    assert found.overlaps(spread([4.0]))
    assert not found.overlaps(spread([4.5]))


def test_speed_up_pairs_the_rounds():
    """Both slow down tenfold in the last round: the ratio of each round is still 2."""
    found = speedup([2.0, 2.0, 20.0], [1.0, 1.0, 10.0])
    assert (found.low, found.median, found.high) == (2.0, 2.0, 2.0)
