"""What one process has checked is not checked in the next, and nothing else is taken for checked."""

import functools

import pytest
import torch
from torch import nn

import aotkit
from aotkit.checking import CheckReport, checked_before, checker
from aotkit.checking.comparison import Comparison

RIGHT = CheckReport("this", [Comparison("output 0", 1e-7, 1e-4)], repeated=True)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("aotkit.keep.store.cache_folder", lambda: tmp_path)  # not that of the C++ tier
    monkeypatch.setenv("AOTKIT_KEEP", "1")


class Model(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x).relu().sum()


def first_call(backend="nop", width=4, model=Model, **options):
    """That of a process of its own: nothing of an earlier function is left but what was kept."""
    torch.manual_seed(0)
    fast = aotkit.compile(model(width), backend=backend, capture="dynamo", **options)
    x = torch.randn(3, width)
    fast(x)
    stages = {stage.name for stage in fast.timeline(x).stages}
    report = fast.report(x)
    assert report.kept == ("check" not in stages)
    return report


@pytest.mark.parametrize("backend", ["nop", "inductor"])
def test_the_second_process_does_not_check_again(backend):
    if (reason := aotkit.get_backend(backend).unavailable()) is not None:
        pytest.skip(reason)
    first, second = first_call(backend), first_call(backend)
    assert not first.kept
    assert second.kept
    assert second.comparisons == first.comparisons
    assert "as was found before" in str(second)
    assert "as was found before" not in str(first)


class Other(Model):
    def forward(self, x):
        return self.linear(x).relu().sum() * 2


def test_anything_else_is_checked():
    first_call()
    assert not first_call(model=Other).kept
    assert not first_call(width=5).kept
    assert not first_call(partition=lambda *args, **kwargs: aotkit.get_partitioner("nx_min_cut")(*args, **kwargs)).kept
    with torch.autocast("cpu", torch.bfloat16):
        assert not first_call().kept
    with torch.no_grad():
        assert not first_call().kept
    assert first_call().kept


class Halved(Model):
    def forward(self, x):
        return self.linear(x).relu().sum() * torch.tensor(0.5)


class Doubled(Model):
    def forward(self, x):
        return self.linear(x).relu().sum() * torch.tensor(2.0)


def test_constants_of_the_code_are_told_apart():
    assert not first_call(model=Halved).kept
    assert first_call(model=Halved).kept
    assert not first_call(model=Doubled).kept


def test_a_wrong_compiler_is_found_though_a_right_one_was_there_before(only_the_verdict):
    first_call()

    def wrong(gm, inputs):
        return lambda *values: [x * 2 if isinstance(x, torch.Tensor) else x for x in gm(*values)]

    def changed(gm, inputs):
        (node,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
        node.target = torch.ops.aten.sigmoid.default
        gm.recompile()
        return gm

    for compiler in (wrong, changed):
        with pytest.raises(aotkit.MismatchError):
            first_call(backend=aotkit.Backend(fw_compiler=compiler, bw_compiler=lambda gm, inputs: gm))


def test_a_compiler_that_does_not_tell_its_code_is_always_checked():
    backend = aotkit.Backend(fw_compiler=lambda gm, inputs: lambda *values: gm(*values))
    assert not first_call(backend=backend).kept
    assert not first_call(backend=backend).kept


def test_a_wrapper_of_what_tells_its_code_tells_nothing(only_the_verdict):
    def wrapped(gm, inputs):
        run = lambda *values: gm(*values)  # noqa: E731
        run.source = "all of it"

        @functools.wraps(run)
        def wrong(*values):
            return [x * 2 if isinstance(x, torch.Tensor) else x for x in run(*values)]

        return wrong

    def right(gm, inputs):
        run = lambda *values: gm(*values)  # noqa: E731
        run.source = "all of it"
        return run

    assert not first_call(backend=aotkit.Backend(fw_compiler=right)).kept
    assert first_call(backend=aotkit.Backend(fw_compiler=right)).kept
    with pytest.raises(aotkit.MismatchError):
        first_call(backend=aotkit.Backend(fw_compiler=wrapped, bw_compiler=right))


def test_check_compares_whatever_was_kept():
    first_call()
    fast = aotkit.compile(Model(), backend="nop", capture="dynamo")
    assert not fast.check(torch.randn(3, 4)).kept


def test_a_damaged_verdict_is_checked_again(tmp_path):
    first_call()
    for path in (tmp_path / "kept").glob("*.json"):
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(RuntimeWarning, match="has been changed since"):
        assert not first_call().kept
    assert first_call().kept


@pytest.mark.parametrize(
    "report",
    [
        CheckReport("this", [Comparison("output 0", problem="differs")], repeated=True),
        CheckReport("this", [Comparison("output 0")], repeated=False),
        checker.unmeasured("this"),
    ],
)
def test_a_verdict_on_less_than_all_is_not_kept(report):
    for _ in range(2):
        assert checked_before("this", ["a"], lambda: report) is report


def test_what_was_undecided_is_so_in_the_next_process():
    report = CheckReport("this", [Comparison("output 0", undecided="no time")], repeated=True)
    assert checked_before("this", ["a"], lambda: report) is report
    again = checked_before("this", ["a"], lambda: RIGHT)
    assert again.kept
    with pytest.warns(aotkit.UndecidedWarning, match="may equal eager, also with other values, as was found before"):
        checker.raise_if_different(again)


def test_the_verdict_of_another_machine_is_none(monkeypatch):
    assert checked_before("this", ["a"], lambda: RIGHT) is RIGHT
    assert checked_before("other", ["a"], lambda: RIGHT).subject == "other"
    monkeypatch.setattr("aotkit.checking.kept.machine", lambda: ("another GPU",))
    assert checked_before("this", ["a"], lambda: RIGHT) is RIGHT


def test_what_cannot_be_told_is_not_kept():
    for _ in range(2):
        assert checked_before("this", None, lambda: RIGHT) is RIGHT
