"""The C++ tier is built once, aside, and never stands in the way."""

import os
import shlex
import subprocess
import sys
import textwrap
import time

import pytest
import torch

import aotkit
from aotkit.random.draws import new_seed
from aotkit.torch_private import native
from aotkit.torch_private.native import building

needs_compiler = pytest.mark.skipif(native.library_path() is None, reason="no C++ compiler")

TRAIN = """
    import torch, aotkit
    from aotkit.torch_private import native
    x = torch.ones(3, requires_grad=True)
    f = aotkit.compile(lambda x: x.sin(), backend="nop")
    f(x).sum().backward()
    assert torch.allclose(x.grad, x.cos())
    print(f.explain(x).tier, native.library_path() is not None and native.library_path().exists())
"""

# Goes on after TRAIN, and ends with an error if there is no library.
INSIST = textwrap.dedent("""
    import os
    os.environ["AOTKIT_NATIVE"] = "1"
    aotkit.compile(lambda x: x.cos(), backend="nop")(x)
""")


# Where tests keep all processors busy, what runs at the lowest priority takes its time.
IN_A_HURRY = "import os\nos.SCHED_IDLE = os.SCHED_OTHER\n"


def run(code, **environment):
    environment = {**os.environ, **environment}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@needs_compiler
@pytest.mark.parametrize(("wanted", "tier"), [("", "C++"), ("0", "Python")])
def test_built_library_is_used(wanted, tier, monkeypatch):
    native.build()
    monkeypatch.setenv("AOTKIT_NATIVE", wanted)
    x = torch.ones(3, requires_grad=True)
    f = aotkit.compile(torch.sin, backend="nop")
    f(x).sum().backward()
    torch.testing.assert_close(x.grad, x.cos())
    assert f.explain(x).tier == tier


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Another cache, from which nothing is loaded yet; the path of the library there."""
    native.build()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AOTKIT_NATIVE", "")
    for name, value in (("PACKAGED", tmp_path / "packaged"), ("_loaded", None), ("_unusable", {})):
        monkeypatch.setattr(native, name, value)
    return tmp_path / "cache" / "aotkit" / building.place()


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Makes a script the compiler: it gets the output as its last argument."""

    def make(script, name="compiler"):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", shlex.quote(str(path)))

    return make


@pytest.fixture
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(os, "SCHED_IDLE", os.SCHED_OTHER)


def is_passed(gate):
    """Lets through whoever waits at it."""
    try:
        descriptor = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    os.write(descriptor, b"go\n")
    os.close(descriptor)
    return True


@pytest.fixture
def gate(tmp_path):
    """What a script passes by `read` from it once somebody has written a line into it; open in the end."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    yield path
    is_passed(path)


def until(happened):
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def starts(monkeypatch):
    """A list to which builds are added that would be started from now on."""
    found = []
    monkeypatch.setattr(building, "_start", lambda path, lock: found.append(path))
    return found


@pytest.mark.sweep
@needs_compiler
def test_first_use_builds_in_the_background(compiler, gate, tmp_path):
    """By a compiler that hands out what the real one has made, once it is told to."""
    native.build()
    compiler(f'read line < {shlex.quote(str(gate))}; cp {shlex.quote(str(native.library_path()))} "$last"')
    and_then = f"""
        import time
        deadline = time.monotonic() + 120
        while True:
            try:
                os.write(os.open({str(gate)!r}, os.O_WRONLY | os.O_NONBLOCK), b"go\\n")
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        while not native.library_path().exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        g = aotkit.compile(lambda x: x.cos(), backend="nop")
        g(x).sum().backward()
        print(g.explain(x).tier)
    """
    code = IN_A_HURRY + textwrap.dedent(TRAIN) + textwrap.dedent(and_then)
    done = run(code, XDG_CACHE_HOME=str(tmp_path), AOTKIT_NATIVE="")
    assert done.stdout.split() == ["Python", "False", "C++"], done.stderr


@needs_compiler
@pytest.mark.parametrize("capture", ["aot", "dynamo", "torch.compile"])
def test_build_begins_when_the_first_call_is_over(capture, elsewhere, monkeypatch):
    """Not while other compilers run."""
    begun, told = starts(monkeypatch), []

    @aotkit.Backend
    def backend(gm, inputs):
        told.append(len(begun))
        return gm

    def loss(x):
        return x.sin().sum()

    if capture == "torch.compile":
        f = torch.compile(loss, backend=aotkit.torch_backend(backend))
    else:
        f = aotkit.compile(loss, backend=backend, capture=capture)
    x = torch.ones(3, requires_grad=True)
    f(x)
    f(x).backward()
    assert told
    assert not any(told)
    assert set(begun) == {elsewhere}


@pytest.mark.sweep
@needs_compiler
def test_one_process_builds_at_a_time(elsewhere, compiler, gate, monkeypatch, in_a_hurry):
    """The first one has ended, and what it began lives on."""
    compiler(f'read line < {shlex.quote(str(gate))}; echo > "$last"')
    done = run(IN_A_HURRY + textwrap.dedent(TRAIN))
    assert done.stdout.split() == ["Python", "False"], done.stderr
    assert native.state() == ("being built", None)
    begun = starts(monkeypatch)
    building.begin(elsewhere)
    assert not begun
    until(lambda: is_passed(gate))
    until(elsewhere.exists)
    until(lambda: not building.is_begun(elsewhere))
    building.begin(elsewhere)
    assert not begun


@needs_compiler
def test_whoever_insists_does_not_wait_for_the_background(elsewhere, compiler, gate, in_a_hurry):
    compiler(f'read line < {shlex.quote(str(gate))}; echo slow > "$last"', "slow")
    building.begin(elsewhere)
    compiler('echo quick > "$last"', "quick")
    building.build(elsewhere)
    assert elsewhere.read_text() == "quick\n"
    until(lambda: is_passed(gate))
    until(lambda: not building.is_begun(elsewhere))


@needs_compiler
def test_failed_build_is_remembered_and_told(elsewhere, compiler, monkeypatch, in_a_hurry):
    compiler("echo call.cpp:1: error: no such thing >&2; exit 1")
    building.begin(elsewhere)
    until(lambda: not building.is_begun(elsewhere))
    found, problem = native.state()
    assert found == "none"
    assert "call.cpp:1: error: no such thing" in problem
    begun = starts(monkeypatch)
    building.begin(elsewhere)
    assert not begun
    with pytest.raises(RuntimeError, match="no such thing"):
        native.build()
    compiler("exit 0", "another")  # or an update
    building.begin(elsewhere)
    assert begun == [elsewhere]


@needs_compiler
@pytest.mark.parametrize("is_allowed", [True, False])
def test_background_yields_to_all_else(is_allowed, elsewhere, compiler, gate, tmp_path, monkeypatch):
    """It keeps the session: in one of its own, autogroups of Linux give it a share as large as the program's."""
    if not is_allowed:
        monkeypatch.setattr(os, "SCHED_IDLE", 99)
    compiler(f"echo $$ > {shlex.quote(str(tmp_path / 'pid'))}; read line < {shlex.quote(str(gate))}; exit 1")
    building.begin(elsewhere)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    if is_allowed:
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    else:
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert os.getsid(pid) == os.getsid(0)
    assert os.getpgid(pid) != os.getpgid(0)  # which Ctrl-C reaches
    with pytest.raises(ChildProcessError):  # it is nothing to wait for
        os.waitpid(pid, os.WNOHANG)
    until(lambda: is_passed(gate))
    until(lambda: not building.is_begun(elsewhere))


@needs_compiler
def test_library_that_does_not_load_is_told_and_python_used(elsewhere, monkeypatch):
    """As one of a wheel that was built on a newer system."""
    begun = starts(monkeypatch)
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text("no library")
    x = torch.ones(3, requires_grad=True)
    f = aotkit.compile(torch.sin, backend="nop")
    f(x).sum().backward()
    assert f.explain(x).tier == "Python"
    assert native.state() == (str(elsewhere), native._unusable[elsewhere])
    assert not begun


@pytest.mark.sweep
def test_without_a_compiler_everything_runs_in_python_and_asking_for_cpp_is_an_error(tmp_path):
    """An empty PATH has none."""
    nothing = {"PATH": str(tmp_path), "CXX": "", "XDG_CACHE_HOME": str(tmp_path)}
    done = run(textwrap.dedent(TRAIN) + INSIST, AOTKIT_NATIVE="", **nothing)
    assert done.stdout.split() == ["Python", "False"], done.stderr
    assert "there is no C++ compiler" in done.stderr


@pytest.mark.sweep
@needs_compiler
def test_failing_compiler_is_told(tmp_path):
    done = run(textwrap.dedent(TRAIN) + INSIST, CXX="false", AOTKIT_NATIVE="", XDG_CACHE_HOME=str(tmp_path))
    assert done.stdout.split() == ["Python", "False"], done.stderr
    assert "does not compile" in done.stderr


@needs_compiler
def test_seeds_are_those_of_python():
    native.build()
    library = native.library()
    torch.manual_seed(7)
    expected, state = [new_seed() for _ in range(3)], torch.get_rng_state()
    torch.manual_seed(7)
    with torch.device("meta"):  # a default device is not meant for seeds
        found = [library.with_seed(list)([])[0] for _ in range(3)]
    assert found == expected
    assert {(seed.dtype, seed.device, seed.shape) for seed in found} == {(torch.int64, torch.device("cpu"), ())}
    assert torch.equal(torch.get_rng_state(), state)
