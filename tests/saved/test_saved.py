"""A step that one process has compiled and saved runs in another, as it is, or is refused with the difference."""

import functools
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn

import aotkit
from aotkit.capture import default_backend
from aotkit.saved import archive
from tests.saved.steps import Model, X, model, step

if default_backend().name == "nop":
    pytest.skip("there is no C++ compiler", allow_module_level=True)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("aotkit.keep.store.cache_folder", lambda: tmp_path / "cache")  # not that of the C++ tier
    monkeypatch.setenv("AOTKIT_KEEP", "1")


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    """The folder with a step that was saved, and with the key that signs it, for each way of capture."""

    @functools.cache
    def save(capture):
        folder = tmp_path_factory.mktemp(capture)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("aotkit.keep.store.cache_folder", lambda: folder / "cache")
            aotkit.compile(model(), capture=capture).save(folder / "a step", X, power=2)
        return folder

    return save


@pytest.fixture
def saved(request, tmp_path, saved_once):
    """A file of the test's own, which it may change."""
    shutil.copytree(saved_once(getattr(request, "param", "auto")), tmp_path, dirs_exist_ok=True)
    return tmp_path / "a step"


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.5), nn.Linear(16, 2))

    def forward(self, x):
        return {"loss": self.layers(x).logsumexp(-1).sum()}


@pytest.mark.thinned
@pytest.mark.parametrize("backend", ["fuser", ["fuser", "inductor"]], ids=str)
def test_a_step_of_parts(backend, tmp_path):
    module = Layers()
    compiled = aotkit.compile(module, backend=backend)
    want = step(compiled, module, X)
    compiled.save(tmp_path / "a step", X)
    loaded = aotkit.load(tmp_path / "a step", module, trusted=backend != "fuser")
    torch.testing.assert_close(step(loaded, module, X), want, rtol=0, atol=0)


@pytest.mark.thinned
@pytest.mark.parametrize("saved", ["auto", "dynamo"], indirect=True)
def test_a_loaded_step_computes_what_the_compiled_one_does(saved):
    one, other = model(), model()
    compiled, loaded = aotkit.compile(one), aotkit.load(saved, other)
    for _ in range(3):
        want, found = step(compiled, one, X, power=2), step(loaded, other, X, power=2)
        torch.testing.assert_close(found, want, rtol=0, atol=0)
    assert list(found[0]) == ["logits", "loss", "power"]
    assert "addmm" in loaded.graphs.forward.print_readable(print_output=False)


def test_saving_changes_nothing(tmp_path):
    module = model()
    fast = aotkit.compile(module)
    fast(X)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    fast.save(tmp_path / "step", X)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("saved", ["auto", "dynamo"], indirect=True)
def test_a_loaded_step_is_trained(saved):
    module = model()
    loaded = aotkit.load(saved, module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    losses = []
    for _ in range(10):
        result, _, _ = step(loaded, module, X, power=2)
        losses.append(result["loss"].item())
        optimizer.step()
    assert losses[-1] < losses[0]


def test_functions_are_saved_as_modules_are(tmp_path):
    def function(pair, scale):
        a, b = pair
        return (a * scale + b).sin().sum(), b.cos()

    pair = torch.randn(5, requires_grad=True), torch.randn(5)
    aotkit.compile(function).save(tmp_path / "step", pair, 2.0)
    loaded = aotkit.load(tmp_path / "step", function)
    found, want = loaded(pair, 2.0), function(pair, 2.0)
    torch.testing.assert_close(found, want)
    (gradient,) = torch.autograd.grad(found[0], pair[0])
    torch.testing.assert_close(gradient, torch.autograd.grad(want[0], pair[0])[0])
    with pytest.raises(aotkit.UnsupportedError, match=r"\['constant', 3.0\]"):
        loaded(pair, 3.0)


OTHER_CALLS = [
    (lambda loaded, module: loaded(X, power=3), "its arguments are"),
    (lambda loaded, module: loaded(X, power=2.0), "its arguments are"),
    (lambda loaded, module: loaded(X, power=2, mask=X), "its arguments are"),
    (
        lambda loaded, module: loaded(X[:2], power=2),
        r"tensor 0 among its arguments has shape \[2, 8\], and had",
    ),
    (lambda loaded, module: loaded(X.double(), power=2), "has dtype torch.float64, and had torch.float32"),
    (lambda loaded, module: loaded(X.t().contiguous().t(), power=2), r"has stride \[1, 4\], and had \[8, 1\]"),
    (lambda loaded, module: loaded(X.clone().requires_grad_(), power=2), "has requires_grad True, and had False"),
    (lambda loaded, module: (module.eval(), loaded(X, power=2)), "training mode"),
    (
        lambda loaded, module: (module.first.weight.requires_grad_(False), loaded(X, power=2)),
        "first.weight has requires_",
    ),
]


@pytest.mark.parametrize(("call", "message"), OTHER_CALLS)
def test_other_calls_are_refused(saved, call, message):
    module = model()
    loaded = aotkit.load(saved, module)
    loaded(X, power=2)
    with pytest.raises(aotkit.UnsupportedError, match=message):
        call(loaded, module)


def test_calls_under_other_switches_are_refused(saved):
    loaded = aotkit.load(saved, model())
    with torch.no_grad(), pytest.raises(aotkit.UnsupportedError, match="switches"):
        loaded(X, power=2)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(aotkit.UnavailableError, match="switches"):
        aotkit.load(saved, model())


def test_parameters_are_those_of_the_module_at_each_call(saved):
    module = model()
    loaded = aotkit.load(saved, module)
    step(loaded, module, X, power=2)
    module.first = nn.Linear(8, 16)
    want = step(aotkit.compile(module), module, X, power=2)
    reference = model()
    reference.load_state_dict(module.state_dict())
    found = step(loaded, module, X, power=2)
    torch.testing.assert_close(found[0]["logits"], want[0]["logits"])


def other_models():
    wide = Model(9)
    fewer = model()
    fewer.norm = nn.Identity()
    frozen = model()
    frozen.second.bias.requires_grad_(False)
    return [
        (wide, r"'first.weight' has shape \[16, 9\], and had \[16, 8\]"),
        (fewer, "module 'norm' is torch.nn.modules.linear.Identity, and was torch.nn.modules.batchnorm.BatchNorm1d"),
        (frozen, "'second.bias' has requires_grad False"),
        (nn.Linear(8, 2), "another model"),
        (model().double(), "dtype torch.float64"),
    ]


@pytest.mark.parametrize(("module", "message"), other_models())
def test_other_models_are_refused(saved, module, message):
    with pytest.raises(aotkit.UnavailableError, match=message):
        aotkit.load(saved, module)


def changed(path, change):
    """The file with other content, and its old signature."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members = change(members)
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)


def with_content(members, **new):
    return {**members, archive.CONTENT: json.dumps({**json.loads(members[archive.CONTENT]), **new}).encode()}


def test_a_file_that_was_changed_is_refused(saved):
    changed(saved, lambda members: with_content(members, name="other"))
    with pytest.raises(aotkit.UnavailableError, match="was not saved by this user's aotkit, or has been changed"):
        aotkit.load(saved, model())
    assert aotkit.load(saved, model(), trusted=True).name == "other"


def test_another_users_file_is_refused(saved, monkeypatch, tmp_path):
    monkeypatch.setattr("aotkit.keep.store.cache_folder", lambda: tmp_path / "another")
    with pytest.raises(aotkit.UnavailableError, match="trusted=True"):
        aotkit.load(saved, model())


def test_other_kernels_are_refused(saved):
    def swapped(members):
        names = [name for name in members if name.endswith(".so")]
        return {**members, names[0]: members[names[1]]}

    changed(saved, swapped)
    with pytest.raises(aotkit.UnavailableError, match="has other contents"):
        aotkit.load(saved, model(), trusted=True)


@pytest.mark.parametrize("at", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(saved, at):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(len(whole) * at)])
    with pytest.raises(aotkit.UnavailableError, match="no compiled step, or is damaged"):
        aotkit.load(saved, model())


def test_every_altered_byte_is_noticed(saved):
    whole, module = saved.read_bytes(), model()
    want = step(aotkit.load(saved, module), module, X, power=2)[0]["logits"]
    for at in range(0, len(whole), max(len(whole) // 60, 1)):
        saved.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            loaded = aotkit.load(saved, model())
        except aotkit.UnavailableError:
            continue
        # What no one reads of a zip archive, such as times, may be anything.
        assert torch.equal(step(loaded, loaded.__wrapped__.__self__, X, power=2)[0]["logits"], want)


def test_another_torch_is_refused(saved):
    there = json.loads(zipfile.ZipFile(saved).read(archive.CONTENT))["machine"]
    changed(saved, lambda members: with_content(members, machine=["torch 1.0.0 abc", *there[1:]]))
    with pytest.raises(aotkit.UnavailableError, match=r"was saved with torch 1\.0\.0 abc, and this is torch 2"):
        aotkit.load(saved, model(), trusted=True)


def test_another_gpu_is_refused(saved):
    there = json.loads(zipfile.ZipFile(saved).read(archive.CONTENT))["machine"]
    changed(saved, lambda members: with_content(members, machine=[*there, "NVIDIA X100 9.9 1"]))
    with pytest.raises(aotkit.UnavailableError, match="other GPUs"):
        aotkit.load(saved, model(), trusted=True)


def test_a_step_that_computes_something_else_is_refused(saved):
    probe = json.loads(zipfile.ZipFile(saved).read(archive.CONTENT))["probe"]
    probe[-1][0] += 1.0
    changed(saved, lambda members: with_content(members, probe=probe))
    with pytest.raises(aotkit.MismatchError, match=f"in 1 of {len(probe)} outputs and gradients"):
        aotkit.load(saved, model(), trusted=True)


def test_inputs_that_are_changed_do_not_share_memory(tmp_path):
    def function(x, y):
        return x.mul_(2).sum() + y.sum()

    aotkit.compile(function).save(tmp_path / "step", torch.ones(3), torch.ones(3))
    loaded = aotkit.load(tmp_path / "step", function)
    x = torch.ones(3)
    assert loaded(x, torch.ones(3)) == 9
    assert torch.equal(x, torch.full((3,), 2.0))
    assert x._version == 1
    with pytest.raises(aotkit.UnsupportedError, match="share memory"):
        loaded(x, x)
    with pytest.raises(aotkit.UnsupportedError, match="passed twice"):
        aotkit.compile(function).save(tmp_path / "other", x, x)


def test_what_is_more_than_a_graph_is_not_saved(tmp_path):
    path = tmp_path / "step"

    def mutates(x):
        return x.mul_(2).sin(), x.t_()

    def views(x):
        return x[0]

    with pytest.raises(aotkit.UnsupportedError, match="an output is an input"):
        aotkit.compile(mutates).save(path, torch.ones(3))
    with pytest.raises(aotkit.UnsupportedError, match="a view of an input"):
        aotkit.compile(views).save(path, torch.ones(3))
    with pytest.raises(aotkit.UnsupportedError, match="backend 'nop' does not tell"):
        aotkit.compile(torch.sin, backend="nop").save(path, torch.ones(3))
    constant = torch.ones(3)
    with pytest.raises(aotkit.UnsupportedError, match="neither an argument nor a parameter"):
        aotkit.compile(lambda x: x * constant).save(path, torch.ones(3))
    assert not path.exists()


def test_a_folder_that_is_not_there_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        aotkit.compile(model()).save(tmp_path / "nowhere" / "step", X)


PROGRAM = """
import sys, aotkit
from tests.saved.steps import X, model, step
module = model()
loaded = aotkit.load(sys.argv[1], module)
loss = step(loaded, module, X)[0]["loss"].item()
print(loss, *({"torch._inductor", "torch._dynamo", "sympy"} & {*sys.modules}))
"""


def test_another_process_needs_no_compiler(tmp_path, monkeypatch):
    path = tmp_path / "step"
    monkeypatch.setattr("aotkit.keep.store.cache_folder", lambda: tmp_path / "xdg" / "aotkit")
    aotkit.compile(model()).save(path, X)
    module = model()
    want = step(aotkit.compile(module), module, X)[0]["loss"].item()
    command = [sys.executable, "-c", PROGRAM, str(path)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "xdg"), "AOTKIT_NATIVE": "0"}
    found = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=environment)
    assert found.stdout.split() == [str(want)]
