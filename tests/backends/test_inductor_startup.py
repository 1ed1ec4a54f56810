"""Inductor's answers that outlive the process: compiled graphs, and which vector instructions can be used."""

import json
import subprocess
import sys

import pytest
import torch._inductor.config as config
from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512, VecAVX512VNNI, VecISA

from aotkit.torch_private import inductor as isa

PROGRAM = """
import json, sys, torch, aotkit
from torch._dynamo.utils import counters

probes = []
sys.addaudithook(lambda event, args: event == "subprocess.Popen" and "LoadLibrary" in str(args) and probes.append(args))
x = torch.ones(8, requires_grad=True)
compiled = aotkit.compile(lambda x: x.sin().sin(), backend="inductor", check=False)
compiled(x).sum().backward()
with torch.no_grad():
    compiled(x)
found = {name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss", "bypass")}
print(json.dumps({**found, "probes": len(probes)}))
"""


# Probes, precompiled headers, workers, the build of the C++ tier: all are programs.
NOTHING = """
import sys, torch  # a build for CUDA looks for its libraries with one
started = []
events = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system")
sys.addaudithook(lambda event, args: event in events and started.append((event, args)))
import aotkit
x = torch.ones(8, requires_grad=True)
aotkit.compile(lambda x: x.sin().sin(), backend="nop")(x).sum().backward()
print(started)
"""


@pytest.mark.sweep
def test_another_backend_starts_no_program():
    """Where the C++ tier is built, as in the tests."""
    done = subprocess.run([sys.executable, "-c", NOTHING], check=True, text=True, stdout=subprocess.PIPE)
    assert done.stdout == "[]\n"


@pytest.mark.sweep
def test_a_second_process_compiles_and_probes_nothing():
    """In the user's cache, which is warm in all but the first run of the tests: probing takes 20 seconds."""

    def told():
        done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, text=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout.splitlines()[-1])

    warm = {"hit": 3, "miss": 0, "bypass": 0, "probes": 0}
    assert told() == warm or told() == warm


@pytest.fixture
def probe(monkeypatch, tmp_path):
    """Stands in for Inductor's probe; returns how often it was made, and with what result."""
    made = []

    def check_build(self, code):
        made.append(code)
        return not code.startswith("bad")

    monkeypatch.setattr(VecISA, "check_build", check_build)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(isa, "_cpu", lambda: ("flags: avx2",))
    return made


def ask(code):
    with isa.remembered_probes():
        return VecAVX2().check_build(code)


def test_what_passed_is_not_asked_again(probe):
    for code in ("good", "good", "other"):
        assert ask(code)
    assert probe == ["good", "other"]


def test_a_part_of_what_passed_is_not_asked(probe):
    """Of flags, not of codes; nor is what has other macros a part."""
    large, small = VecAVX512VNNI(), VecAVX512()
    with isa.remembered_probes():
        assert large.check_build("good")
        assert small.check_build("good")
        assert small.check_build("other")
        assert large.check_build("other")
        assert VecAVX2().check_build("good")
        assert not large.check_build("bad")
        assert not small.check_build("bad")
    assert probe == ["good", "other", "other", "good", "bad", "bad"]


def test_what_failed_is_asked_again(probe):
    assert not ask("bad")
    assert not ask("bad")
    assert probe == ["bad", "bad"]


def test_another_cpu_is_asked_again(probe, monkeypatch):
    """A home directory may be shared among machines."""
    ask("good")
    monkeypatch.setattr(isa, "_cpu", lambda: ("flags: avx2 avx512f",))
    ask("good")
    assert probe == ["good", "good"]


def test_another_compiler_is_asked_again(probe, monkeypatch, tmp_path):
    ask("good")
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    with config.patch({"cpp.cxx": (str(compiler),)}):
        ask("good")
        ask("good")
    assert probe == ["good", "good"]


@pytest.mark.parametrize("setting", [{"cpp.vec_isa_ok": True}, {"cpp.vec_isa_ok": False}, {"cpp.simdlen": 256}])
def test_what_the_user_decides_is_left_alone(probe, setting):
    with config.patch(setting):
        ask("good")
        ask("good")
    assert probe == ["good", "good"]


def test_unknown_cpus_are_always_asked(probe, monkeypatch):
    monkeypatch.setattr(isa, "_cpu", lambda: ())
    ask("good")
    ask("good")
    assert probe == ["good", "good"]


def test_a_cache_that_cannot_be_written(probe, tmp_path):
    (tmp_path / "aotkit_isa").write_text("in the way")
    assert ask("good")


def test_this_cpu_is_known():
    assert any(line.startswith(("flags", "features")) for line in isa._cpu())


def test_inductor_has_the_probe_back_afterwards(probe):
    before = VecISA.check_build
    with pytest.raises(KeyError), isa.remembered_probes():
        raise KeyError
    assert VecISA.check_build is before
