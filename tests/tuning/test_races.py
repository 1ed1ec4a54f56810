"""Who goes, who stays and who wins, by times that the test gives."""

import itertools
import math

import pytest

from aotkit.tuning.races import FEWEST, MOST, least_median, race


def runs(**seconds):
    """Each gives its numbers over and over."""
    return {name: itertools.cycle(found).__next__ for name, found in seconds.items()}


class Clock:
    """Each reading takes a second."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def test_the_fastest_wins_and_the_slower_half_goes_after_the_first_rounds():
    found = race(runs(a=[4.0], b=[2.0], c=[1.0], d=[3.0]), 100.0, clock=Clock())
    assert found.ranked() == ["c"]
    assert {name: len(seconds) for name, seconds in found.seconds.items()} == {
        "a": FEWEST,
        "d": FEWEST,
        "b": 2 * FEWEST,
        "c": 2 * FEWEST,
    }


def test_what_may_be_as_fast_as_the_fastest_stays():
    """Its quartiles, round by round, lie on both sides."""
    found = race(runs(a=[1.0, 1.2, 1.0, 1.2], b=[1.2, 1.0, 1.1, 1.1], c=[3.0]), 20.0, clock=Clock())
    assert found.left == ["a", "b"]


def test_what_is_slower_by_chance_stays():
    """In three rounds of four it is slower, which says something after many rounds, and nothing after seven."""
    pattern = [1.1, 1.1, 0.9, 1.1]
    assert race(runs(a=pattern, b=[1.0]), 9.0, clock=Clock()).left == ["a", "b"]
    assert race(runs(a=pattern, b=[1.0]), 90.0, clock=Clock()).left == ["b"]


@pytest.mark.parametrize(("count", "below"), [(6, None), (7, 1), (10, 1), (20, 5), (100, 38), (1000, 463)])
def test_what_the_median_is_above(count, below):
    """By the binomial distribution: of 20, at most 4 are below the median in 0.6 % of all cases, at most 5 in 2 %."""
    assert least_median([*range(1, count + 1)]) == (below or -math.inf)


def test_of_those_that_may_be_the_fastest_the_first_comes_first():
    alike = runs(eager=[1.1, 1.0], simple=[1.2, 0.9], double=[1.0, 1.1], slow=[1.6, 1.7])
    found = race(alike, 60.0, keep=None, clock=Clock())
    assert found.alike() == ["eager", "simple", "double"]
    assert race(runs(simple=[1.05], double=[1.0]), 60.0, keep=None, clock=Clock()).alike() == ["double"]
    assert race(runs(simple=[1.005], double=[1.0]), 60.0, keep=None, clock=Clock()).alike() == ["simple", "double"]
    assert race({}, 1.0, clock=Clock()).alike() == []


def test_of_equally_fast_ones_the_first_wins():
    assert race(runs(simple=[1.005], other=[1.0]), 20.0, keep=None, clock=Clock()).ranked() == ["simple", "other"]
    assert race(runs(simple=[1.02], other=[1.0]), 20.0, keep=None, clock=Clock()).ranked() == ["other", "simple"]


def test_it_ends_with_its_time_but_not_before_the_fewest_rounds():
    found = race(runs(a=[1.0], b=[1.0]), 0.0, clock=Clock())
    assert [*map(len, found.seconds.values())] == [FEWEST] * 2
    endless = race(runs(a=[1.0], b=[1.0]), 1.0, clock=lambda: 0.0)
    assert [*map(len, endless.seconds.values())] == [MOST] * 2


def test_what_raises_is_out_and_the_others_go_on():
    numbers = iter([1.0, 1.0])
    broken = {"broken": lambda: next(numbers, None) or 1 / 0}
    found = race({**broken, **runs(a=[2.0], b=[1.0])}, 30.0, clock=Clock())
    assert found.ranked() == ["b"]
    assert isinstance(found.failed["broken"], ZeroDivisionError)


def test_those_that_are_to_be_kept_are_kept():
    assert race(runs(a=[4.0], b=[2.0], c=[1.0]), 60.0, keep=2, clock=Clock()).left == ["b", "c"]
    found = race(runs(a=[4.0], b=[2.0], c=[1.0]), 60.0, keep=None, clock=Clock())
    assert found.left == ["a", "b", "c"]
    assert min(map(len, found.seconds.values())) >= 59, "for all of the time: each reading of the clock is a second"


def test_the_order_of_a_round_changes():
    """Else whoever comes after the one that empties the cache would always pay for it."""
    order = []

    def turn(name):
        return lambda: order.append(name) or 1.0

    race({name: turn(name) for name in "abc"}, 0.0, keep=None, clock=Clock())
    rounds = {"".join(order[i : i + 3]) for i in range(0, len(order), 3)}
    assert len(rounds) > 2
    assert all(sorted(found) == ["a", "b", "c"] for found in rounds)


@pytest.mark.parametrize("name", ["a", "b"])
def test_ratios_are_to_the_fastest(name):
    found = race(runs(a=[2.0, 4.0], b=[1.0, 2.0]), 9.0, clock=Clock())
    assert found.ratio(name).median == {"a": 2.0, "b": 1.0}[name]
