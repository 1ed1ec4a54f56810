"""Where the time of a first call goes: what is recorded, and how it is told."""

import json

import pytest
import torch
from torch import nn

import aotkit
from aotkit.timeline import Timeline, memory, stage
from aotkit.torch_private.dispatch import pytree

MIB = 2**20


def scaled(x, weight):
    return (x * weight).sin().sum()


def names(stages):
    return {s.name: names(s.stages) for s in stages}


def arguments():
    return torch.randn(4), torch.randn(4, requires_grad=True)


def test_the_stages_of_a_first_call_are_recorded_in_order():
    fast = aotkit.compile(scaled, backend="nop", partition="default", capture="aot")
    fast(*arguments())
    timeline = fast.timeline(*arguments())
    found = names(timeline.stages)
    assert [*found] == ["find what it reads", "run in eager", "trace, cut and compile", "make the way in", "check"]
    assert [*found["trace, cut and compile"]] == ["partition", "compile forward", "compile backward"]
    assert "run both with other values" in found["check"]["run what was compiled"]


def test_it_is_that_of_the_call_that_compiled():
    fast = aotkit.compile(scaled, backend="nop", capture="aot")
    first = fast.timeline(*arguments())
    assert fast.timeline(*arguments()) is first
    other = torch.randn(5), torch.randn(5, requires_grad=True)
    assert fast.timeline(*other) is not first


def test_without_the_check_there_is_no_stage_of_it():
    fast = aotkit.compile(scaled, backend="nop", capture="aot", check=False)
    assert {"check", "run in eager"}.isdisjoint(names(fast.timeline(*arguments()).stages))


def test_stages_lie_in_their_call_and_in_one_another():
    fast = aotkit.compile(scaled, backend="nop", capture="aot")
    timeline = fast.timeline(*arguments())

    def verify(stages, begin, end):
        for one in stages:
            assert begin <= one.begin
            assert one.begin + one.seconds <= end + 1e-6
            verify(one.stages, one.begin, one.begin + one.seconds)
            begin = one.begin + one.seconds

    verify(timeline.stages, 0.0, timeline.seconds)


@pytest.mark.parametrize("check", [True, False])
def test_a_function_that_dynamo_captures(check):
    def branching(x):
        x = x.sin()
        return x.cos() if float(x.detach().sum()) > 0 else x.exp()  # two graphs

    fast = aotkit.compile(branching, backend="nop", check=check)
    fast(torch.ones(3))
    found = [s.name for s in fast.timeline(torch.ones(3)).stages]
    assert "find what it reads" in found  # it was tried
    dynamos = found[found.index("begin with TorchDynamo") :]
    assert dynamos[1] == "TorchDynamo"
    assert dynamos.count("trace, cut and compile") == 2
    assert dynamos.count("check") == (2 if check else 0)


def test_calls_that_each_compile_a_graph_are_told_one_after_the_other():
    def branching(x):
        return x.sin() if float(x.sum()) > 0 else x.cos()

    fast = aotkit.compile(branching, backend="nop", check=False, capture="dynamo")
    fast(torch.ones(3))
    fast(-torch.ones(3))
    timeline = fast.timeline(-torch.ones(3))
    begins = [s.begin for s in timeline.stages]
    assert begins == sorted(begins)
    assert timeline.seconds >= sum(s.seconds for s in timeline.stages) - 1e-6


def test_a_module_tells_it_too():
    fast = aotkit.compile(nn.Linear(3, 3), backend="nop")
    assert "check" in names(fast.timeline(torch.randn(2, 3)).stages)


def test_a_module_may_have_a_member_of_that_name():
    class Clock(nn.Linear):
        timeline = "my own"

    assert aotkit.compile(Clock(3, 3), backend="nop").timeline == "my own"


def test_a_call_that_runs_eagerly_has_none():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    fast = aotkit.compile(scaled, backend="nop", capture="aot")
    with Mode(), pytest.raises(aotkit.TraceError, match="eagerly"):
        fast.timeline(*arguments())


def test_text_html_and_json_tell_the_same():
    fast = aotkit.compile(scaled, backend="nop", capture="aot")
    timeline = fast.timeline(*arguments())
    text, page, data = str(timeline), timeline._repr_html_(), json.loads(json.dumps(timeline.json()))
    for one in (text, page):
        assert "compile backward" in one
        assert "'scaled' with backend 'nop'" in one or "&#x27;scaled&#x27; with backend" in one
    assert data["stages"][2]["stages"][0]["name"] == "partition"
    assert data["seconds"] == timeline.seconds


def test_explain_tells_how_long_the_first_call_took():
    fast = aotkit.compile(scaled, backend="nop", capture="aot")
    told = fast.explain(*arguments())
    assert "its first call took" in str(told)
    assert told.json()["timeline"]["stages"]
    assert "compile backward" in told.html()


def test_stages_outside_of_a_first_call_are_nobodys():
    with stage("something"):
        pass
    timeline = Timeline("this")
    with timeline.recording():
        pass
    assert timeline.stages == []


def test_a_stage_that_raises_is_recorded():
    timeline = Timeline("this")
    with pytest.raises(ValueError, match="no"), timeline.recording(), stage("outer"), stage("inner"):
        raise ValueError("no")
    assert names(timeline.stages) == {"outer": {"inner": {}}}
    with timeline.recording(), stage("next"):
        pass
    assert [s.name for s in timeline.stages] == ["outer", "next"]


def test_a_stage_tells_by_how_much_it_raised_the_peak_of_memory(monkeypatch):
    peaks = iter([10 * MIB, 13 * MIB, 13 * MIB, 13 * MIB])
    monkeypatch.setattr(memory, "_of_process", lambda: next(peaks))
    timeline = Timeline("this")
    with timeline.recording(), stage("large"):
        pass
    with timeline.recording(), stage("small"):
        pass
    assert [s.memory for s in timeline.stages] == [3 * MIB, 0]
    assert "3.0 MiB" in str(timeline)


def test_the_peak_of_the_process_is_more_than_a_large_tensor_in_it():
    held = torch.ones(32 * MIB)
    assert memory.Peaks.now().process > held.nbytes


def test_names_of_the_users_are_escaped():
    timeline = Timeline("<script>\x1b[2J")
    assert "<script>" not in timeline._repr_html_()
    assert "\x1b" not in str(timeline)


def test_a_compiled_call_records_nothing():
    fast = aotkit.compile(scaled, backend="nop", capture="aot")
    timeline = fast.timeline(*arguments())
    before = timeline.json()
    fast(*arguments())
    assert timeline.json() == before
    assert pytree.tree_leaves(before)
