"""Compiled modules and functions under rough use: colliding names, replaced code, storms of signatures, fallbacks."""

import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import aotkit
from tests.agreement import Counter, agrees

ONES = torch.ones(3)


class Double(nn.Module):
    def forward(self, x):
        return x * 2


# Names and hooks of the user's classes.


@agrees
def test_attributes_named_like_aotkits_own(compile):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self._compiled, self._options, self._original, self._aotkit = False, {"a": 1}, 3.0, 2.0

        def forward(self, x):
            return x * self._original * self._aotkit

    module = compile(Module())
    yield module(ONES), module._compiled, module._options, module._aotkit


class Graphs(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.graphs = value
        self.report = None

    def forward(self, x):
        return self.graphs(x) if callable(self.graphs) else x * self.graphs


@pytest.mark.parametrize("kind", ["module", "parameter", "number"])
@agrees
def test_members_named_like_our_methods_win(compile, kind):
    value = {"module": Double(), "parameter": nn.Parameter(torch.full((3,), 2.0)), "number": 2.0}[kind]
    module = compile(Graphs(value))
    yield module(ONES), module.graphs is value, module.report


@agrees
def test_method_of_the_users_named_like_ours_wins(compile):
    class Module(Double):
        def graphs(self, n):
            return n + 1

    module = compile(Module())
    yield module(ONES), module.graphs(1)


def test_extract_and_check_do_not_need_the_name():
    assert " = mul(" in str(aotkit.extract(Graphs(2.0), ONES))
    assert aotkit.check(Graphs(2.0), ONES, backend="nop").passed


def test_subclass_hooks_do_not_run():
    seen = []

    class Registered(nn.Module):
        def __init_subclass__(cls, *, tag, **kwargs):
            super().__init_subclass__(**kwargs)
            seen.append(tag)

        def forward(self, x):
            return x * 2

    class Model(Registered, tag="model"):
        pass

    compiled = aotkit.compile(Model(), backend="nop")
    assert torch.equal(compiled(ONES), ONES * 2)
    assert isinstance(compiled, Model)
    assert seen == ["model"]


# Another forward.


@pytest.mark.parametrize("used", [False, True])
@agrees
def test_forward_replaced_on_the_class(compile, used):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = 2.0

        def forward(self, x):
            return x * self.factor

    module = compile(Module())
    if used:
        yield module(ONES)
    original = Module.forward
    for forward in (lambda self, x: x + self.factor, original, lambda self, x, y=1.0: x - y):
        Module.forward = forward
        yield module(ONES), module(ONES * 2)
        module.factor += 1.0
        yield module(ONES)


def test_forward_replaced_on_the_class_compiles_anew():
    class Module(Double):
        pass

    counter = Counter()
    compiled = aotkit.compile(Module(), backend=counter.backend())
    compiled(ONES)
    Module.forward = lambda self, x: x.sin()
    compiled(ONES)
    compiled(ONES)
    assert counter.compiled == 2
    assert " = sin(" in str(compiled.graphs(ONES))


@pytest.mark.parametrize("own", [False, True])
@agrees
def test_forward_assigned_to_the_module(compile, own):
    module = Double()
    if own:
        module.forward = types.MethodType(lambda self, x: x * 4, module)
    module = compile(module)
    before = module.forward
    yield module(ONES)
    calls = []

    def wrapper(x):
        calls.append(x.shape)
        return before(x) + 1

    module.forward = wrapper
    for _ in range(2):
        yield module(ONES), len(calls)
    module.forward = before
    yield module(ONES), len(calls)


@agrees
def test_own_forward_is_deleted(compile):
    original = Double()
    original.forward = lambda x: x * 4
    module = compile(original)
    yield module(ONES)
    del original.forward
    yield module(ONES)


# Other objects with a compiled module's state or class.


@agrees
def test_replica_uses_its_own_parameters(compile):
    module = compile(nn.Linear(3, 3))
    yield module(ONES)
    replica = module._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.zeros(3, 3), torch.ones(3)
    yield replica(ONES), module(ONES)


@agrees
def test_parametrization_is_registered_afterwards(compile):
    module = compile(nn.Linear(3, 3))
    yield module(ONES)
    parametrize.register_parametrization(module, "weight", Double())
    yield module(ONES), module.weight
    parametrize.remove_parametrizations(module, "weight")
    yield module(ONES), module.weight


# Dynamo.


def branch(x):
    if x.sum() > 0:
        return x.sin() * 2
    return x.cos() * 3


@pytest.fixture
def fresh_dynamo():
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_dynamo")
class TestDynamo:
    def test_report_of_one_graph(self):
        x = torch.ones(3, requires_grad=True)
        report = aotkit.compile(lambda x: x * 2, backend="nop", capture="dynamo").report(x)
        assert report.passed
        assert [c.what.partition(" of ")[0] for c in report.comparisons] == ["output 0", "gradient"]

    def test_report_of_several_graphs(self):
        report = aotkit.check(branch, ONES, backend="nop", capture="dynamo")
        assert report.passed
        assert "'branch' with backend 'nop'" in str(report)
        assert {c.what.split(":")[0] for c in report.comparisons} == {"graph 0", "graph 1"}

    def test_check_finds_a_wrong_graph(self):
        def wrong(gm, example_inputs):
            return lambda *inputs: [out + 0.5 for out in gm(*inputs) if out.is_floating_point()]

        with pytest.raises(aotkit.MismatchError):
            aotkit.check(lambda x: x * 2, ONES, backend=wrong, capture="dynamo")

    def test_no_report_without_a_check(self):
        compiled = aotkit.compile(branch, backend="nop", capture="dynamo", check=False)
        with pytest.raises(ValueError, match="'branch' was compiled with check=False: there is no report"):
            compiled.report(ONES)

    def test_no_report_where_nothing_is_compiled(self):
        with pytest.raises(aotkit.TraceError, match="nothing to compile"):
            aotkit.compile(lambda x: None, backend="nop", capture="dynamo").report(ONES)

    def test_on_error_eager_warns_once_and_repeats_no_effect(self):
        log = []

        def steps(x):
            log.append(len(log))
            y = x.sin()
            torch._dynamo.graph_break()
            return y.cos() * 2

        def broken(gm, example_inputs):
            raise ValueError("no such instruction")

        compiled = aotkit.compile(steps, backend=broken, capture="dynamo", on_error="eager")
        with pytest.warns(aotkit.EagerFallbackWarning, match="no such instruction") as caught:
            out = compiled(ONES)
        assert len(caught) == 1
        assert torch.equal(out, ONES.sin().cos() * 2)
        assert log == [0]
        with pytest.raises(aotkit.CompileError, match="no such instruction"):
            compiled.graphs(ONES)
        with pytest.raises(aotkit.CompileError, match="no such instruction"):
            compiled.report(ONES)

    def test_a_call_after_dynamo_has_given_up_runs_eagerly_and_warns(self, monkeypatch):
        monkeypatch.setattr(aotkit.torch_private.dynamo, "MOST_DYNAMO_VARIANTS", 2)
        monkeypatch.setattr(aotkit.capture.dynamo, "MOST_DYNAMO_VARIANTS", 2)
        compiled = aotkit.compile(lambda x: x * x.dim(), backend="nop", capture="dynamo")
        inputs = [torch.ones((2,) * n) for n in range(1, 6)]
        for x in inputs[:2]:
            compiled(x)
        with pytest.warns(aotkit.EagerCallWarning, match="TorchDynamo has compiled it 2 times"):
            assert torch.equal(compiled(inputs[2]), inputs[2] * 3)
        for x in inputs:
            assert torch.equal(compiled(x), x * x.dim())

    @pytest.mark.parametrize("strict", [False, True])
    def test_dynamo_gives_up_on_a_part(self, strict, monkeypatch):
        monkeypatch.setattr(aotkit.torch_private.dynamo, "MOST_DYNAMO_VARIANTS", 2)

        def part(x, name):
            torch._dynamo.graph_break()
            return x.sin() * len(name)

        def whole(x, name):
            y = x * 2
            torch._dynamo.graph_break()
            return part(y, name)

        compiled = aotkit.compile(whole, backend="nop", capture="dynamo", strict=strict)
        for name in ("a", "bc"):
            compiled(ONES, name)
        if strict:
            with pytest.raises(aotkit.TraceError, match="gave up"):
                compiled(ONES, "def")
            return
        with pytest.warns(aotkit.EagerCallWarning, match="in a part, TorchDynamo has compiled it") as caught:
            out = compiled(ONES, "def")
        assert len(caught) == 1
        for name, got in (("def", out), ("ghij", compiled(ONES, "ghij"))):  # warnings are errors here
            assert torch.equal(got, whole(ONES, name))
        found = compiled.explain(ONES, "klmno")
        assert found.eager is None
        assert any("in a part, TorchDynamo has compiled it" in reason for reason in found.breaks)

    def test_strict_raises_when_dynamo_gives_up(self, monkeypatch):
        monkeypatch.setattr(aotkit.torch_private.dynamo, "MOST_DYNAMO_VARIANTS", 2)
        compiled = aotkit.compile(lambda x: x * x.dim(), backend="nop", capture="dynamo", strict=True)
        for n in (1, 2):
            compiled(torch.ones((2,) * n))
        with pytest.raises(aotkit.TraceError, match="gave up"):
            compiled(torch.ones(2, 2, 2))


# Many signatures.


def storm(compiled, values):
    for value in values:
        compiled(ONES, value)


def test_many_constants_warn_once_and_say_which():
    """With fixed sizes, numbers that change are constants, too."""
    compiled = aotkit.compile(lambda x, step: x * step, backend="nop", check=False, dynamic=False)
    storm(compiled, range(31))
    message = r"was compiled 32 times.* step changed from 30 to 31\. Pass what changes as a tensor"
    with pytest.warns(aotkit.RecompilationWarning, match=message) as caught:
        storm(compiled, [31])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    storm(compiled, range(32, 70))  # warnings are errors here


def test_many_captured_constants_and_shapes_are_named():
    class Config:
        pass

    config = Config()
    compiled = aotkit.compile(lambda x: x * config.step, backend="nop", check=False, dynamic=False)

    def call(step):
        config.step = step
        compiled(torch.ones(step + 1))

    for step in range(31):
        call(step)
    with pytest.warns(aotkit.RecompilationWarning) as caught:
        call(31)
    message = str(caught[0].message)
    assert "config.step changed from 30 to 31" in message
    assert "x changed from a float32 tensor of shape [31] to a float32 tensor of shape [32]" in message


def test_equal_signatures_do_not_warn():
    compiled = aotkit.compile(lambda x, step: x * step, backend="nop", check=False)
    storm(compiled, [1, 2] * 40)


# Eager calls are visible, and cheap.


def array_reader(array):
    return lambda x: x * float(array.sum())


def test_an_eager_call_warns_once_and_says_why():
    compiled = aotkit.compile(array_reader(np.ones(3)), backend="nop", capture="aot")
    with pytest.warns(aotkit.EagerCallWarning, match="runs eagerly, .*: it reads 'array', a ndarray") as caught:
        assert torch.equal(compiled(ONES), ONES * 3)
    assert torch.equal(compiled(ONES), ONES * 3)
    assert caught[0].filename == __file__


def test_a_call_inside_a_transform_warns():
    compiled = aotkit.compile(lambda x: x * 2, backend="nop")
    with pytest.warns(aotkit.EagerCallWarning, match="functorch transform"):
        torch.func.vmap(compiled)(ONES)


@pytest.mark.parametrize("capture", ["auto", "aot", "dynamo"])
def test_strict_refuses_eager_calls(capture):
    compiled = aotkit.compile(lambda x: x * 2, backend="nop", capture=capture, strict=True)
    with pytest.raises(aotkit.TraceError, match="runs eagerly for these inputs: it is called inside a functorch"):
        torch.func.vmap(compiled)(ONES)
    assert torch.equal(compiled(ONES), ONES * 2)


@pytest.mark.filterwarnings("ignore::aotkit.errors.EagerCallWarning")
def test_the_search_is_not_repeated_at_each_call(monkeypatch):
    searches = []
    find = aotkit.capture.direct.find_captures
    monkeypatch.setattr(
        aotkit.capture.direct, "find_captures", lambda *args, **k: searches.append(args) or find(*args, **k)
    )
    array = np.ones(3)
    compiled = aotkit.compile(array_reader(array), backend="nop", capture="aot")
    for i in range(64):
        array[0] = i
        assert torch.equal(compiled(torch.ones(i % 5 + 1)), torch.ones(i % 5 + 1) * (i + 2))
    everywhere = [followed for _, _, followed, *_ in searches if followed is None]
    assert len(everywhere) == 7  # at calls 1, 2, 4, ..., 64
    assert len(searches) == 3 * 7  # then in what runs: in nothing, and in the function itself


@pytest.mark.filterwarnings("ignore::aotkit.errors.EagerCallWarning")
def test_a_function_that_becomes_compilable_is_compiled():
    class Config:
        pass

    config, counter = Config(), Counter()
    compiled = aotkit.compile(lambda x: x * config.factor.sum(), backend=counter.backend(), capture="aot")
    config.factor = np.ones(3)
    for _ in range(5):
        compiled(ONES)
    config.factor = torch.full((2,), 2.0)
    for _ in range(5):
        assert torch.equal(compiled(ONES), ONES * 4)
    assert counter.compiled == 1


@pytest.mark.filterwarnings("ignore::aotkit.errors.EagerCallWarning")
def test_one_odd_input_does_not_make_the_others_eager():
    counter = Counter()
    compiled = aotkit.compile(lambda x: x * 2, backend=counter.backend())
    for _ in range(8):
        compiled(ONES.to_sparse())
    assert counter.compiled == 0
    compiled(ONES)
    assert counter.compiled == 1


def test_graphs_and_report_of_an_eager_call_say_why():
    compiled = aotkit.compile(array_reader(np.ones(3)), backend="nop", capture="aot")
    for _ in range(3):
        for ask in (compiled.graphs, compiled.report):
            with pytest.raises(aotkit.TraceError, match="runs eagerly for these inputs: it reads 'array', a ndarray"):
                ask(ONES)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_want_of_memory_is_not_remembered(error):
    attempts = []

    def flaky(gm, example_inputs):
        attempts.append(gm)
        if len(attempts) == 1:
            raise error("no memory just now")
        return gm

    compiled = aotkit.compile(lambda x: x * 2, backend=flaky, on_error="eager")
    with pytest.warns(aotkit.EagerFallbackWarning, match="no memory just now"):
        assert torch.equal(compiled(ONES), ONES * 2)
    for _ in range(3):
        assert torch.equal(compiled(ONES), ONES * 2)
    assert len(attempts) == 2
    assert compiled.report(ONES).passed


# Sizes as outputs.


@pytest.mark.parametrize("requires_grad", [False, True])
@agrees(dynamic=True)
def test_sizes_are_returned(compile, requires_grad):
    f = compile(lambda x: (x * 2, x.shape, x.shape[0], {"half": x.size(0) // 2}))
    for n in (3, 5, 8):
        out, shape, *rest = f(torch.ones(n, 4, requires_grad=requires_grad))
        yield out, type(shape) is torch.Size, tuple(shape), rest
