"""What TorchDynamo captured in one process, the next one runs without it: where Dynamo would run it, and only there."""

import cmath
import collections
import dataclasses
import functools
import gc
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import aotkit
from aotkit.capture import recipe_of
from aotkit.capture.frames import KeptCaptures
from aotkit.capture.frames.keeping import _is_as_loaded
from aotkit.checking import CheckReport
from aotkit.checking.comparison import Comparison
from aotkit.compiled.modules import function_of

pytestmark = pytest.mark.skipif(
    aotkit.get_backend("inductor").unavailable() is not None, reason="needs the backend inductor"
)
FACTOR = 3.0
SETTINGS = {"power": 2, "names": ["a", "b"]}
TABLE = torch.ones(4)
TIMES = 0
numbers = math


@pytest.fixture(scope="module", autouse=True)
def own_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aotkit.keep.store.cache_folder", functools.cache(lambda: tmp_path_factory.mktemp("kept")))
        patch.setenv("AOTKIT_KEEP", "1")
        yield


def triple(x):
    return x * FACTOR


class Part(nn.Module):
    gain = 1.5

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.scaled(self.linear(x))

    def scaled(self, x):
        return x * self.gain


class Net(nn.Module):
    """Reads what models read: numbers, flags, settings, globals, methods, parts; and notes its rows."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Part(), Part()])
        self.norm = nn.BatchNorm1d(4)
        self.scale = 0.5
        self.options = types.SimpleNamespace(activation="relu")
        self.rows = 0

    def forward(self, x, weight=None, *, mask=None):
        for part in self.parts:
            x = part(x)
        if self.options.activation == "relu":
            x = x.relu()
        if mask is not None:
            x = x.masked_fill(mask, 0.0)
        self.rows = x.shape[0]
        y = triple(self.norm(x)) * numbers.sqrt(4.0) * self.scale ** SETTINGS["power"]
        return {"out": y if weight is None else y * weight, "rows": x.shape[0]}


def net():
    torch.manual_seed(0)
    return Net()


def recipe(fn, **options):
    return recipe_of(fn, options.get("backend", "inductor"), "auto", False, "shared")


def captures(fn, *, is_checked=False):
    """What was kept for a function, for one call after the other."""
    kept = KeptCaptures(recipe(fn), is_checked)

    def find(*args, **kwargs):
        frames = kept.frames()
        return None if frames is None else frames.find(args, kwargs)

    find.frames = kept.frames
    return find


def found(fn, *args, **kwargs):
    """The call as it was kept for a function, if it was."""
    return captures(fn)(*args, **kwargs)


X = torch.arange(12.0).view(3, 4) / 10


@pytest.fixture(scope="module")
def kept(own_folder):
    model = net()
    aotkit.compile(model, backend="inductor", capture="dynamo")(X)
    assert found(net().forward, X) is not None


def test_what_was_undecided_is_not_checked_again_but_told(monkeypatch):
    undecided = CheckReport("it", [Comparison("output 0", undecided="no time")], repeated=True)
    monkeypatch.setattr("aotkit.checking.checker.check", lambda *args, **options: undecided)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    with pytest.warns(aotkit.UndecidedWarning):
        aotkit.compile(model, backend="inductor", capture="dynamo")(X)
    monkeypatch.undo()
    find = captures(model.forward, is_checked=True)
    with pytest.warns(aotkit.UndecidedWarning, match="no time"):
        assert find(X) is not None
    assert find(X) is not None


@pytest.mark.sweep  # three processes, and minutes for a C++ compiler
def test_later_calls_are_right_in_each_process(tmp_path):
    command = [sys.executable, "-m", "tests.capture.kept_scenarios"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "AOTKIT_KEEP": "1"}
    runs = [
        json.loads(subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=environment).stdout)
        for _ in range(3)
    ]
    assert runs[1] == runs[0]
    assert runs[2] == runs[0]


@pytest.mark.sweep  # two processes that import all
def test_the_next_process_needs_no_dynamo(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys, torch, aotkit\n"
        "from torch import nn\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)\n"
        "    def forward(self, x):\n"
        "        return self.drop(self.linear(x)).sum()\n"
        "torch.manual_seed(0)\n"
        "model, x = Model(), torch.randn(3, 4)\n"
        "fast = aotkit.compile(model, backend='inductor', capture='dynamo')\n"
        "fast(x).backward()\n"
        "loaded = 'torch._dynamo.symbolic_convert' in sys.modules\n"
        "grad = model.linear.weight.grad.tolist()\n"
        "stages = [stage.name for stage in fast.timeline(x).stages]\n"
        "print(json.dumps([loaded, grad, stages, fast.report(x).passed, str(fast.graphs(x))]))\n"
    )
    environment = {"XDG_CACHE_HOME": str(tmp_path), "AOTKIT_NATIVE": "0", "AOTKIT_KEEP": "1"}
    first, second = (_run(program, environment) for _ in range(2))
    assert first[1] == second[1]
    assert first[3:] == second[3:]
    assert "TorchDynamo" in first[2]
    assert "TorchDynamo" not in second[2]
    assert (first[0], second[0]) == (True, False)


def _run(program, environment):
    import os

    done = subprocess.run(
        [sys.executable, program], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_it_computes_and_changes_what_the_function_does(kept):
    want, model = net(), net()
    fast = aotkit.compile(model, backend="inductor", capture="dynamo")
    for scale in (1, 2):
        x, y = ((X * scale).requires_grad_() for _ in range(2))
        results, expected = fast(x.detach()), want(y.detach())
        assert results.keys() == expected.keys()
        assert results["rows"] == expected["rows"]
        torch.testing.assert_close(results["out"], expected["out"])
        results["out"].sum().backward()
        expected["out"].sum().backward()
    assert [type(piece).__name__ for piece in function_of(fast).captured] == ["KeptPiece"]
    for mine, theirs in zip(model.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close([*model.buffers()], [*want.buffers()])
    assert model.rows == want.rows == 3


def changed(change):
    model = net()
    change(model)
    return model.forward


CHANGES = {
    "a hook": lambda m: m.parts[1].register_forward_hook(lambda *a: None),
    "a hook before": lambda m: m.norm.register_forward_pre_hook(lambda *a: None),
    "a hook of a linear": lambda m: m.parts[0].linear.register_full_backward_hook(lambda *a: None),
    "a number": lambda m: setattr(m, "scale", 0.25),
    "a number of another type": lambda m: setattr(m, "scale", 1),
    "a setting": lambda m: setattr(m.options, "activation", "none"),
    "eval": lambda m: m.eval(),
    "eval of a part": lambda m: m.norm.eval(),
    "another part": lambda m: m.parts.append(Part()),
    "a part of another class": lambda m: setattr(m, "norm", nn.LayerNorm(4)),
    "a method of its own": lambda m: setattr(m.parts[0], "scaled", lambda x: x),
    "a frozen parameter": lambda m: m.parts[0].linear.weight.requires_grad_(False),
    "another type": lambda m: m.double(),
    "shared parameters": lambda m: setattr(m.parts[0].linear, "weight", m.parts[1].linear.weight),
    "no bias": lambda m: setattr(m.parts[0].linear, "bias", None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_state_is_captured_anew(kept, change):
    assert found(changed(change), X) is None


def doubled(self, x):
    return x * 4


ELSEWHERE = {
    "a method": (Part, "scaled", doubled),
    "an attribute of a class": (Part, "gain", 2.5),
    "a method of torch's": (nn.Linear, "forward", lambda self, x: x),
    "a global function": (sys.modules[__name__], "triple", lambda x: x),
    "a global module": (sys.modules[__name__], "numbers", cmath),
    "a global number": (sys.modules[__name__], "FACTOR", 2.0),
    "a global dict": (sys.modules[__name__], "SETTINGS", {"power": 3, "names": ["a", "b"]}),
}


@pytest.mark.parametrize("change", ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize("is_found_before", [True, False])
def test_other_code_is_captured_anew(kept, monkeypatch, change, is_found_before):
    find = captures(net().forward)
    if is_found_before and change[0] is sys.modules[__name__]:  # Dynamo does not look at classes again
        assert find(X) is not None
    monkeypatch.setattr(*change)
    assert find(X) is None


CALLS = {
    "more rows": lambda: ((torch.zeros(5, 4),), {}),
    "other strides": lambda: ((torch.zeros(4, 3).T,), {}),
    "another type": lambda: ((X.double(),), {}),
    "a gradient": lambda: ((X.clone().requires_grad_(),), {}),
    "a parameter": lambda: ((nn.Parameter(X),), {}),
    "one more": lambda: ((X, X + 1), {}),
    "a keyword": lambda: ((X,), {"mask": X > 0}),
    "an unknown keyword": lambda: ((X,), {"other": X}),
    "none": lambda: ((), {}),
    "no tensor": lambda: (("x",), {}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_another_call_is_captured_anew(kept, call):
    args, kwargs = call()
    assert found(net().forward, *args, **kwargs) is None


def marked():
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    return x


def test_sizes_that_are_to_be_open_are_not_those_that_were(kept):
    assert found(net().forward, X.clone()) is not None
    assert found(net().forward, marked()) is None


AROUND = {
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "hooks of saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_what_surrounds_a_call_counts(kept, around):
    find = captures(net().forward)
    assert find(X) is not None
    with around():
        assert find(X) is None
        assert found(net().forward, X) is None
    assert find(X) is not None


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_a_capture_is_that_of_what_surrounds_its_call(around):
    def fn(x):
        return x.sigmoid() @ x.t()

    fast = aotkit.compile(fn, backend="inductor", capture="dynamo", check=False)
    with around():
        fast(X)
    assert found(fn, X) is None


def test_a_verdict_is_wanted_where_calls_are_checked(kept, monkeypatch):
    assert captures(net().forward, is_checked=True)(X) is not None
    monkeypatch.setattr("aotkit.capture.frames.finding.kept_verdict", lambda *a: None)
    assert captures(net().forward, is_checked=True)(X) is None


def test_when_comparing_has_cost_as_much_as_capturing_dynamo_captures(kept, monkeypatch):
    find = captures(net().forward)
    assert find(X) is not None
    find.frames()._seconds = 1e-9
    assert find(X) is not None
    assert find(X) is None


def test_a_changed_file_is_captured_anew(kept, tmp_path):
    path = tmp_path / "part_of_a_library.py"
    path.write_text("def twice(x):\n    return x * 2\n")
    spec = importlib.util.spec_from_file_location("part_of_a_library", path)
    library = importlib.util.module_from_spec(spec)
    sys.modules["part_of_a_library"] = library
    try:
        spec.loader.exec_module(library)

        def fn(x):
            return library.twice(x) + 1

        aotkit.compile(fn, backend="inductor", capture="dynamo")(X)
        assert found(fn, X) is not None
        path.write_text("def twice(x):\n    return x + x\n")
        assert found(fn, X) is None
    finally:
        del sys.modules["part_of_a_library"]


def test_a_file_may_have_changed_since_it_was_loaded(tmp_path):
    path = tmp_path / "part.py"
    path.write_text("def twice(x):\n    return x * 2\n")
    code = compile(path.read_text(), str(path), "exec").co_consts[0]
    assert _is_as_loaded(code, str(path))
    path.write_text("def twice(x):\n    return x + x\n")
    assert not _is_as_loaded(code, str(path))


def looks_up(x):
    global TIMES
    TIMES += 1
    return x * TABLE


def test_global_variables_are_those_of_the_call(monkeypatch):
    for name, value in (("TABLE", TABLE), ("TIMES", 0)):
        monkeypatch.setattr(sys.modules[__name__], name, value)
    aotkit.compile(looks_up, backend="inductor", capture="dynamo", check=False)(X)
    monkeypatch.setattr(sys.modules[__name__], "TIMES", 0)
    find = captures(looks_up)
    torch.testing.assert_close(find(X)(), X)
    assert TIMES == 1
    monkeypatch.setattr(sys.modules[__name__], "TIMES", 0)
    monkeypatch.setattr(sys.modules[__name__], "TABLE", 2 * TABLE)
    torch.testing.assert_close(find(X)(), 2 * X)


def doubles_tensors(x):
    return x * 2 if type(x) is torch.Tensor else x


def test_what_dynamo_adds_to_the_module_is_neither_needed_nor_put_there():
    """Dynamo would refuse to capture another call, with what is not its own under its names."""
    aotkit.compile(doubles_tensors, backend="inductor", capture="dynamo", check=False)(X)
    space = {"torch": torch, "__name__": __name__}  # as in a process where Dynamo has added nothing
    find = captures(types.FunctionType(doubles_tensors.__code__, space))
    torch.testing.assert_close(find(X)(), 2 * X)
    added = space.keys() - {"torch", "__name__", "__builtins__"}
    assert added
    assert [name for name in added if not re.search(r"_kept_\d+$", name)] == []


def graphs():
    return counters["stats"]["unique_graphs"]


def test_sizes_that_change_after_a_kept_call_are_left_open_at_once():
    def another_length(x):
        return x.exp().sum()

    aotkit.compile(another_length, backend="inductor", capture="dynamo", check=False)(X)
    fast = aotkit.compile(another_length, backend="inductor", capture="dynamo", check=False)
    before = graphs()
    fast(X)
    assert graphs() == before
    for rows in (5, 7, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(fast(x), another_length(x))
        assert vars(x) == {}  # of what tells Dynamo so
    assert graphs() == before + 1
    assert found(another_length, X) is not None


def test_sizes_stay_as_the_user_marks_them():
    def another_length(x):
        return x.cos().sum()

    def compiled(**options):
        return aotkit.compile(another_length, backend="inductor", capture="dynamo", check=False, **options)

    compiled(dynamic=False)(X)
    fixed, before = compiled(dynamic=False), graphs()
    for rows in (3, 5, 7):
        fixed(torch.randn(rows, 4))
    assert graphs() == before + 2
    marked = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(marked, 0)
    compiled()(X)
    fast = compiled()
    fast(X)
    fast(marked)
    assert marked._dynamo_dynamic_indices == {0}


def test_a_function_whose_numbers_change_is_dynamos():
    """The next process would capture the second number alone, and leave it open with the third one only."""

    def times(x, number):
        return x * number

    fast = aotkit.compile(times, backend="inductor", capture="dynamo", check=False)
    fast(X, 2)
    assert found(times, X, 2) is not None
    fast(X, 3)
    assert found(times, X, 2) is None
    aotkit.compile(times, backend="inductor", capture="dynamo", check=False)(X, 2)
    assert found(times, X, 2) is None


def test_each_function_runs_its_own(kept):
    def own_names():
        return {name for name in globals() if "_kept_" in name}

    before, models = own_names(), [net(), net()]
    with torch.no_grad():
        models[1].norm.weight.mul_(2)
    runs = [found(model.forward, X) for model in models]
    for model, run in zip(models, runs, strict=True):
        torch.testing.assert_close(run()["out"], model(X)["out"])
    assert own_names() - before
    del runs, run
    assert own_names() <= before


def signature(x, /, y=2.0, *rest, scale=1.0, **more):
    return {"sum": x * y * scale + sum(rest), **{key: x - value for key, value in more.items()}}


class Callable:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x, y=1.0):
        return x * self.factor + y

    def method(self, x, y=1.0):
        return self(x, y), [x.sin()]


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: object


def in_an_object(x, y=2.0):
    return [Pair(x * y, len((x, y))), collections.OrderedDict(a=max(x.shape), b=x + 1)]


def closing_over(factor, offsets):
    def closed(x, y=0.5):
        return x * factor + y + offsets["one"]

    return closed


FUNCTIONS = {
    "signature": (lambda: signature, [((X,), {}), ((X, 3.0, 1, 2), {"scale": 2.0, "a": 1, "b": 2})]),
    "callable": (lambda: Callable(2.0), [((X,), {}), ((X,), {"y": 3})]),
    "method": (lambda: Callable(2.0).method, [((X,), {})]),
    "objects": (lambda: in_an_object, [((X,), {})]),
    "closure": (lambda: closing_over(2.0, {"one": 1}), [((X,), {}), ((), {"x": X, "y": 1.5})]),
    "partial": (lambda: functools.partial(signature, y=3.0), [((X,), {})]),
}


@pytest.mark.thinned
@pytest.mark.parametrize(("make", "calls"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_all_that_python_calls(make, calls):
    fn = make()
    for args, kwargs in calls:
        aotkit.compile(fn, backend="inductor", capture="dynamo", check=False)(*args, **kwargs)
        run = found(make(), *args, **kwargs)
        assert run is not None
        assert repr(run()) == repr(fn(*args, **kwargs))
    assert found(Callable(3.0), X) is None
    assert found(closing_over(3.0, {"one": 1}), X) is None
    assert found(closing_over(2.0, {"one": 2}), X) is None


def test_what_dynamo_makes_anew_to_look_at_may_be_another():
    """Told of its guards, Dynamo makes them twice, and compared the tensors that it had made of an array."""
    array = np.array([2.0, 3.0])
    gc.disable()  # the first is not gone yet
    try:
        fast = aotkit.compile(lambda x, a: x * a.sum(), backend="nop", capture="dynamo", check=False)
        assert torch.equal(fast(torch.ones(2), array), torch.full((2,), 5.0))
    finally:
        gc.enable()


def broken(x):
    x = x * 2
    torch._dynamo.graph_break()
    return x + 1


def of_the_process(x):
    return x + hash("a") % 2


@pytest.mark.parametrize("fn", [broken, of_the_process])
def test_what_another_process_could_not_know_is_not_kept(fn):
    aotkit.compile(fn, backend="inductor", capture="dynamo", check=False)(X)
    assert found(fn, X) is None
