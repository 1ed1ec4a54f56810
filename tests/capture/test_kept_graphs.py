"""What one process has compiled, the next one runs: the same, or it is compiled anew."""

import collections
import enum
import json
import math
import os
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import aotkit
from aotkit.keep.store import folder
from aotkit.torch_private import native

pytestmark = pytest.mark.skipif(
    aotkit.get_backend("inductor").unavailable() is not None, reason="needs the backend inductor"
)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("aotkit.keep.store.cache_folder", lambda: tmp_path)  # not that of the C++ tier
    monkeypatch.setenv("AOTKIT_KEEP", "1")


class Model(nn.Module):
    """The plain case with all that a call has to do: a seed, constants among the results, an output apart."""

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.5)
        self.scale = 2.0

    def forward(self, x):
        hidden = self.linear(x).relu() * self.scale
        return {"loss": self.dropout(hidden).sum(), "rows": x.shape[0], "none": None, "apart": hidden.detach()}


class First:
    """The first call of a function of which nothing else is left in this process."""

    def __init__(self, fn=None, x=None, **options):
        torch.manual_seed(0)
        self.fn = Model() if fn is None else fn
        self.x = torch.randn(3, 4) if x is None else x
        torch.manual_seed(1)
        self.fast = aotkit.compile(self.fn, **{"backend": "inductor", **options})
        self.results = self.fast(self.x)
        stages = {stage.name for stage in self.fast.timeline(self.x).stages}
        self.kept = "trace, cut and compile" not in stages

    def gradients(self):
        loss = self.results["loss"]
        loss.backward()
        return [parameter.grad for parameter in self.fn.parameters()]


CAPTURES = ("auto", "dynamo")
BACKENDS = ("inductor", "fuser", ["fuser", "inductor"])


@pytest.mark.thinned
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("capture", CAPTURES)
def test_the_second_process_has_the_same_in_all(capture, backend):
    first, second = (First(capture=capture, backend=backend) for _ in range(2))
    assert (first.kept, second.kept) == (False, True)
    assert first.results.keys() == second.results.keys()
    for mine, theirs in zip(first.results.values(), second.results.values(), strict=True):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
    assert [r.requires_grad for r in (second.results["loss"], second.results["apart"])] == [True, False]
    assert all(map(torch.equal, first.gradients(), second.gradients()))
    ask = [(run.fast, run.x) for run in (first, second)]
    for text in (
        lambda fast, x: str(fast.graphs(x)),
        lambda fast, x: fast.graphs(x).forward.code,
        lambda fast, x: [(k.kernel.name, k.operations) for k in fast.explain(x).kernels.kernels],
        lambda fast, x: fast.explain(x).code("forward"),
        lambda fast, x: str(fast.report(x).comparisons),
        lambda fast, x: fast.explain(x).way,
    ):
        mine, theirs = (text(*asked) for asked in ask)
        assert mine == theirs
    assert second.fast.report(second.x).kept
    assert second.fast.check(second.x).passed


def test_later_calls_are_those_of_any_compiled_function():
    First()
    second = First()
    fast, x = second.fast, second.x
    assert second.kept
    for rows in (3, 5):  # five rows are compiled anew
        values = torch.randn(rows, 4)
        torch.manual_seed(2)
        found = fast(values)
        torch.manual_seed(2)
        again = fast(values)
        assert torch.equal(found["loss"], again["loss"])
        assert found["rows"] == rows
    loss = fast(x)["loss"]
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in second.fn.parameters()]
    loss.backward()
    assert all(torch.equal(p.grad, 2 * g) for p, g in zip(second.fn.parameters(), once, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    with pytest.raises(aotkit.UnsupportedError, match="create_graph"):
        torch.autograd.grad(fast(x)["loss"], [*second.fn.parameters()], create_graph=True)


def product(x):
    return (x * 3).sin()


def test_without_gradients_other_graphs_are_kept():
    x = torch.randn(3, 4)
    assert not First(product, x).kept
    assert not First(product, x.clone().requires_grad_()).kept
    with torch.no_grad():
        assert not First(product, x).kept
        assert First(product, x).kept
    found = First(product, x.clone().requires_grad_())
    assert found.kept
    assert found.results.requires_grad
    found = First(product, x)
    assert found.kept
    assert not found.results.requires_grad
    assert torch.allclose(found.results, product(x))


@pytest.mark.thinned
@pytest.mark.parametrize(
    "other",
    [
        lambda: First(check=False, random="torch"),
        lambda: First(partition="default"),
        lambda: First(Model(5), torch.randn(3, 5)),
        lambda: First(x=torch.randn(4, 3).T),
        lambda: First(x=torch.randn(12 + 1)[1:].view(3, 4)),
        lambda: First(x=torch.randn(3, 4, requires_grad=True)),
        lambda: First(Model().eval()),
        lambda: First(Model().double(), torch.randn(3, 4).double()),
        lambda: First(Model().bfloat16(), torch.randn(3, 4).bfloat16()),
    ],
)
def test_what_differs_in_anything_is_compiled_anew(other):
    First(check=False)
    assert not other().kept


def test_switches_and_settings_count(monkeypatch):
    import torch._inductor.config as settings

    First(check=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert not First(check=False).kept
    with settings.patch(epilogue_fusion=False):
        assert not First(check=False).kept
    monkeypatch.setattr("aotkit.capture.kept_graphs.machine", lambda: ("another torch",))
    assert not First(check=False).kept
    monkeypatch.undo()


def test_nothing_is_kept_on_demand(monkeypatch):
    monkeypatch.setenv("AOTKIT_KEEP", "0")
    for _ in range(2):
        assert not First(check=False).kept
    assert folder() is None


def test_a_backend_of_the_users_own_is_not_kept():
    inductor = aotkit.get_backend("inductor")
    own = aotkit.Backend(
        fw_compiler=lambda gm, inputs: inductor.fw_compiler(gm, inputs),
        bw_compiler=lambda gm, inputs: inductor.bw_compiler(gm, inputs),
        decompositions=inductor.decompositions,
        load=lambda data, files: pytest.fail("its code is not known"),
    )
    for _ in range(2):
        fast = aotkit.compile(product, backend=own)
        fast(torch.randn(3))
        assert "trace, cut and compile" in {stage.name for stage in fast.timeline(torch.randn(3)).stages}


def test_a_list_with_a_backend_of_the_users_own_is_not_kept():
    own = aotkit.Backend(
        lambda gm, inputs: gm,
        declines=lambda node: None if "mm" in str(node.target) else "takes products only",
        load=lambda data, files: pytest.fail("its code is not known"),
    )
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    for _ in range(2):
        fast = aotkit.compile(lambda x, w: (x @ w).sin().cos(), backend=["fuser", own])
        fast(x, w)
        assert "trace, cut and compile" in {stage.name for stage in fast.timeline(x, w).stages}


def test_a_graph_that_is_all_of_one_region_is_kept():
    first, second = (First(product, backend="fuser") for _ in range(2))
    assert (first.kept, second.kept) == (False, True)
    assert torch.equal(first.results, second.results)
    loaded = aotkit.compile(product, backend=aotkit.by_region("fuser", min_region_size=5))
    torch.testing.assert_close(loaded(first.x), product(first.x))  # other options are another backend


@pytest.mark.parametrize("capture", CAPTURES)
def test_statistics_go_on(capture):
    def run():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        found = First(model, capture=capture, check=False)
        found.fast(found.x)
        assert model[1].num_batches_tracked >= 2
        return found.kept, [*model.buffers()]

    torch._dynamo.reset()
    (_, want), (is_kept, found) = run(), run()
    assert is_kept
    assert all(map(torch.equal, found, want))


class Key(enum.IntEnum):
    A = 1


Pair = collections.namedtuple("Pair", ["first", "second"])

RESULTS = {
    "numbers as keys": lambda x: {1: x * 2, 2: None},
    "pairs as keys": lambda x: {(0, 1): x * 2},
    "members of an enumeration as keys": lambda x: {Key.A: x * 2},
    "other numbers as keys": lambda x: {1.0: x * 2, False: x * 3},
    "not a number": lambda x: [x * 2, math.nan, -0.0, math.inf, 10**40, "\ud800", ()],
    "a named tuple": lambda x: Pair(x * 2, [x * 3]),
    "a view": lambda x: (x * 2).view(-1),
    "twice the same": lambda x: [y := x * 2, y],
    "an ordered dict": lambda x: collections.OrderedDict(b=x * 2, a=[x * 3, {"c": (x * 4,)}]),
    "a size": lambda x: (x * 2, x.shape, x.dtype),
    "nothing to compute": lambda x: (torch.zeros(2), 1),
}


@pytest.mark.parametrize("fn", RESULTS.values(), ids=RESULTS)
def test_results_are_what_they_were(fn):
    x = torch.randn(3, 4)
    want = fn(x)
    for _ in range(2):
        found = First(fn, x).results
        assert repr(found) == repr(want)
        assert type(found) is type(want)


# Damage.


def files(kind):
    return sorted(folder().glob(f"*{kind}"))


def altered(content, other):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def truncated(content, other):
    return content[: len(content) // 2]


def replaced(content, other):
    return other


def gone(content, other):
    return None


def damaged(kind, damage):
    """All files of a kind; a library that is loaded here is not to be changed in place."""
    contents = {path: path.read_bytes() for path in files(kind)}
    others = [*[*contents.values()][1:], b"other"]
    for (path, content), other in zip(contents.items(), others, strict=True):
        path.unlink()
        if (instead := damage(content, other)) is not None:
            path.write_bytes(instead)


@pytest.mark.parametrize("capture", [CAPTURES[0], *(pytest.param(c, marks=pytest.mark.sweep) for c in CAPTURES[1:])])
def test_what_is_damaged_is_compiled_anew(capture):
    torch._dynamo.reset()
    want = First(capture=capture).gradients()
    for kind in (".so", ".z", ".json"):
        for damage in (altered, truncated, replaced, gone):
            damaged(kind, damage)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                run = First(capture=capture)
            assert not run.kept
            assert any("has been changed since" in str(w.message) for w in said) == (
                kind == ".json" and damage is not gone
            )
            assert all(map(torch.equal, run.gradients(), want))
            assert First(capture=capture).kept  # written anew


def test_a_library_that_does_not_load_is_compiled_anew(monkeypatch):
    def load(data, files):
        raise ImportError("libgomp.so.1: cannot open shared object file")

    First()
    import aotkit.backends.inductor_graphs.kept as kept

    monkeypatch.setattr(kept, "load", load)
    with pytest.warns(RuntimeWarning, match="libgomp.*compiled anew"):
        assert not First().kept


def test_a_full_disk_costs_the_next_process_its_start_alone(monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert not First(check=False).kept
    assert not First(check=False).kept
    assert First(check=False).kept


def test_what_is_looked_at_later_needs_no_file():
    First()
    second = First()
    for path in folder().iterdir():
        path.unlink()
    assert second.kept
    assert second.fast.graphs(second.x).backward is not None
    assert second.fast.explain(second.x).kernels.kernels


# Processes.

PROGRAM = """
import json, sys
import torch
from torch import nn
import aotkit

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.1)

    def forward(self, x):
        return self.b(self.drop(torch.nn.functional.gelu(self.a(x))))

torch.manual_seed(0)
net, x = Net(), torch.randn(4, 8)
fast = aotkit.compile(net, backend="inductor", capture=sys.argv[1])
out = fast(x)
out.sum().backward()
heavy = [name for name in ("torch._inductor.graph", "torch._dynamo.convert_frame", "sympy") if name in sys.modules]
told = [out.tolist(), [p.grad.tolist() for p in net.parameters()], fast.graphs(x).forward.code, str(fast.graphs(x))]
print(json.dumps([heavy, [stage.name for stage in fast.timeline(x).stages], fast.report(x).kept, told]))
"""


NATIVE = native.library_path()  # in the folder of all tests: processes of these have their own


def process(path, capture, wait=True, **environment):
    if NATIVE is not None and not (cached := path / "aotkit" / NATIVE.parent.name).exists():
        shutil.copytree(NATIVE.parent, cached)  # it would be built in the background
    (path / "program.py").write_text(PROGRAM)
    paths = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    given = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, str(path / "program.py"), capture]
    started = subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True)
    return outcome(started) if wait else started


def outcome(started):
    told, _ = started.communicate()
    assert started.returncode == 0
    return json.loads(told)


def test_in_processes_the_second_one_imports_no_compiler(tmp_path):
    _, stages, is_kept, told = process(tmp_path, "aot")
    assert "trace, cut and compile" in stages
    assert not is_kept
    heavy, stages, is_kept, again = process(tmp_path, "aot")
    assert "trace, cut and compile" not in stages
    assert heavy == []
    assert is_kept
    assert again == told


@pytest.mark.sweep
def test_two_processes_at_once_compile_the_same(tmp_path):
    both = [process(tmp_path, "dynamo", wait=False) for _ in range(2)]
    found = [outcome(started)[3] for started in both]
    assert found[0] == found[1]
    _, stages, is_kept, told = process(tmp_path, "dynamo", AOTKIT_NATIVE="0")  # the tier in Python
    assert "trace, cut and compile" not in stages
    assert is_kept
    assert told == found[0]
