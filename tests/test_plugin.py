"""Installing tests/plugin/ is all it takes: aotkit and its test matrix find the new names without being told."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def run_with_plugin(tmp_path_factory):
    """A function that runs Python with the plug-in installed and returns what it printed."""
    copy, target = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT / "tests" / "plugin", copy)
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q"]
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "--target", target, copy], check=True)
    # Without the variables by which pytest and its workers talk to each other.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))

    def run(*arguments):
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE)
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


def test_the_names_are_listed_and_a_function_compiles_with_them(run_with_plugin):
    program = """if True:
        import aotkit, torch
        print("interpret" in aotkit.list_backends(), "save_all" in aotkit.list_partitioners())

        @aotkit.compile(backend="interpret", partition="save_all")
        def f(x):
            return (x.sin() * x).sum()

        x = torch.linspace(-2, 2, 9, requires_grad=True)
        f(x).backward()
        torch.testing.assert_close(x.grad, x.cos() * x + x.sin())
        graphs = f.graphs(x)
        print(graphs.backend, graphs.partition)
    """
    assert run_with_plugin("-c", program).split() == ["True", "True", "interpret", "save_all"]


def test_the_shared_matrix_picks_them_up_unasked(run_with_plugin):
    ids = run_with_plugin(
        "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/test_matrix.py"
    ).splitlines()
    assert [i for i in ids if "interpret" in i]
    assert [i for i in ids if "save_all" in i]


@pytest.mark.sweep
def test_its_own_tests_pass(run_with_plugin):
    file = "tests/plugin/test_aotkit_example.py"
    last = run_with_plugin("-m", "pytest", "-q", "-p", "no:cacheprovider", file, "-k", "boxed or cut or random")
    assert "1 xfailed" in last
    assert "passed" in last


@pytest.mark.sweep
def test_check_examines_it(run_with_plugin):
    assert "interpret: 1 passed" in run_with_plugin("-m", "aotkit", "check", "interpret", "--case", "sizes/one")
