"""The C++ tier is built once, aside, and never stands in the way."""

import os
import shlex
import subprocess
import sys
import textwrap

import pytest
import torch

import aotkit
from aotkit.random.draws import new_seed
from aotkit.torch_private import native

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


@needs_compiler
def test_first_use_builds_in_the_background(tmp_path):
    """By a compiler that hands out what the real one has made, once it is told to."""
    native.build()
    go, compiler = tmp_path / "go", tmp_path / "compiler"
    told, built = (shlex.quote(str(path)) for path in (go, native.library_path()))
    waits = f"while [ ! -e {told} ]; do sleep 0.1; done"
    compiler.write_text(f'#!/bin/sh\n{waits}\nfor last; do :; done\ncp {built} "$last"\n')
    compiler.chmod(0o755)
    code = textwrap.dedent(TRAIN) + textwrap.dedent(f"""
        import pathlib, time
        pathlib.Path({str(go)!r}).touch()
        deadline = time.monotonic() + 60
        while not native.library_path().exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        g = aotkit.compile(lambda x: x.cos(), backend="nop")
        g(x).sum().backward()
        print(g.explain(x).tier)
    """)
    done = run(code, XDG_CACHE_HOME=str(tmp_path), CXX=shlex.quote(str(compiler)), AOTKIT_NATIVE="")
    assert done.stdout.split() == ["Python", "False", "C++"], done.stderr


def test_without_a_compiler_everything_runs_in_python_and_asking_for_cpp_is_an_error(tmp_path):
    """An empty PATH has none."""
    done = run(textwrap.dedent(TRAIN) + INSIST, PATH=str(tmp_path), CXX="", AOTKIT_NATIVE="")
    assert done.stdout.split() == ["Python", "False"], done.stderr
    assert "there is no C++ compiler" in done.stderr


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
