"""What gets installed is what pyproject.toml and the folders say."""

import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from aotkit.torch_private import native
from aotkit.torch_private.native import building

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DECLARED = PROJECT["project"]["entry-points"]
FOLDERS = ["backends", "partitioners"]


def test_there_is_one_group_of_entry_points_for_each_folder():
    assert sorted(DECLARED) == [*(f"aotkit.{folder}" for folder in FOLDERS), "torch_dynamo_backends"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_installed_entry_points_are_the_declared_ones(folder):
    group = f"aotkit.{folder}"
    points = importlib.metadata.distribution("aotkit").entry_points.select(group=group)
    assert {p.name: p.value for p in points} == DECLARED[group], "installed before the last edit: call `make install`"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_is_one_file_or_one_folder(folder):
    names = DECLARED[f"aotkit.{folder}"]
    files = {p.stem for p in (ROOT / folder).glob("*.py")} - {"__init__"}
    folders = {p.parent.name for p in (ROOT / folder).glob("*/__init__.py")}  # others are parts of plug-ins
    assert files <= set(names) <= files | folders
    assert {name: value.partition(":")[0] for name, value in names.items()} == {
        name: f"aotkit.{folder}.{name}" for name in names
    }


def test_every_package_folder_is_listed():
    # Follows the links aotkit/backends and aotkit/partitioners.
    walk = os.walk(ROOT / "aotkit", followlinks=True)
    folders = [Path(folder) for folder, _, files in walk if any(f.endswith(".py") for f in files)]
    found = sorted(".".join(f.relative_to(ROOT).parts) for f in folders)
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == found


OFFLINE = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy, since a build leaves files in its source."""
    copy = tmp_path_factory.mktemp("source") / "aotkit"
    generated = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=generated)
    return copy


def pip_install(what, target, **environment):
    command = [sys.executable, "-m", "pip", "install", *OFFLINE, "--target", target, what]
    subprocess.run(command, check=True, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def installed(source, tmp_path_factory):
    """A folder into which `pip install .` has put aotkit, where there is no compiler."""
    target = tmp_path_factory.mktemp("installed")
    pip_install(source, target, CXX="/bin/false")
    return target


def tags(installed):
    """Python, ABI and platform for which the installed wheel was made, joined by '-'."""
    (wheel,) = installed.glob("aotkit-*.dist-info/WHEEL")
    return [line.partition(": ")[2] for line in wheel.read_text().splitlines() if line.startswith("Tag: ")]


def test_a_plain_installation_holds_every_file(installed):
    walk = os.walk(ROOT / "aotkit", followlinks=True)
    files = {Path(folder, f).relative_to(ROOT) for folder, _, names in walk for f in names}
    missing = sorted(str(f) for f in files if "__pycache__" not in f.parts and not (installed / f).exists())
    assert not missing, f"name in [tool.setuptools] of pyproject.toml: {', '.join(missing)}"


def test_a_plain_installation_works_from_any_folder(installed):
    program = """if True:
        import importlib, json
        import aotkit
        modules = [aotkit, importlib.import_module("aotkit.backends"), importlib.import_module("aotkit.partitioners")]
        names = {"aotkit.backends": aotkit.list_backends(), "aotkit.partitioners": aotkit.list_partitioners()}
        print(json.dumps([[m.__file__ for m in modules], names]))
    """
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd="/", env=environment, check=True, text=True, stdout=subprocess.PIPE
    )
    files, names = json.loads(done.stdout)
    assert [f for f in files if not Path(f).is_relative_to(installed)] == []
    for group, found in names.items():
        assert set(DECLARED[group]) <= set(found)


def test_the_command_is_installed(installed):
    command, environment = [sys.executable, installed / "bin" / "aotkit", "--version"], {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd="/", env=environment, check=True, text=True, stdout=subprocess.PIPE)
    assert done.stdout == f"aotkit {PROJECT['project']['version']}\n"


def test_a_plain_installation_is_for_any_machine(installed):
    assert tags(installed) == ["py3-none-any"]
    assert not [*installed.rglob("*.so")]


CALL = """if True:
    import torch
    import aotkit
    from aotkit.torch_private import native
    x = torch.ones(3, requires_grad=True)
    f = aotkit.compile(torch.sin, backend="nop")
    f(x).sum().backward()
    assert torch.allclose(x.grad, x.cos())
    library = native.library()
    print(f.explain(x).tier, library and library.__file__, native.library_path(), sep="\\n")
"""


@pytest.mark.sweep
@pytest.mark.skipif(not building.can_build(), reason="no C++ compiler")
def test_a_wheel_may_hold_the_library(source, tmp_path):
    """By a compiler that hands out what the real one has made. Where it is installed, there is none."""
    native.build()
    compiler, target, dist = tmp_path / "compiler", tmp_path / "installed", tmp_path / "dist"
    compiler.write_text(f'#!/bin/sh\nfor last; do :; done\ncp {shlex.quote(str(native.library_path()))} "$last"\n')
    compiler.chmod(0o755)
    with_compiler = {**os.environ, "CXX": shlex.quote(str(compiler)), "PYTHONPATH": ""}
    subprocess.run(
        [sys.executable, "-m", "aotkit.torch_private.native.wheel", dist], cwd=source, env=with_compiler, check=True
    )
    assert not [*source.rglob("*.so")]
    (wheel,) = dist.iterdir()
    pip_install(wheel, target)
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert [tag.startswith(f"{version}-{version}") and not tag.endswith("any") for tag in tags(target)] == [True]
    environment = {
        **os.environ, "PYTHONPATH": str(target), "PATH": "", "CXX": "", "AOTKIT_NATIVE": "",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip

    def called():
        command = [sys.executable, "-c", CALL]
        return subprocess.run(command, cwd="/", env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout

    (library,) = target.rglob("*.so")
    assert called().split() == ["C++", str(library), str(library)]
    # As after another torch was installed.
    library.parent.rename(library.parent.with_name("of_another_torch"))
    assert called().split() == ["Python", "None", "None"]
