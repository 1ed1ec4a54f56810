"""What gets installed is what pyproject.toml and the folders say."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
def test_every_name_is_one_file(folder):
    names = DECLARED[f"aotkit.{folder}"]
    assert sorted(names) == sorted({p.stem for p in (ROOT / folder).glob("*.py")} - {"__init__"})
    assert {name: value.partition(":")[0] for name, value in names.items()} == {
        name: f"aotkit.{folder}.{name}" for name in names
    }


def test_every_package_folder_is_listed():
    # Follows the links aotkit/backends and aotkit/partitioners.
    walk = os.walk(ROOT / "aotkit", followlinks=True)
    folders = [Path(folder) for folder, _, files in walk if any(f.endswith(".py") for f in files)]
    found = sorted(".".join(f.relative_to(ROOT).parts) for f in folders)
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == found


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which `pip install .` has put aotkit, built from a copy: a build leaves files in its source."""
    copy, target = tmp_path_factory.mktemp("source") / "aotkit", tmp_path_factory.mktemp("installed")
    generated = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=generated)
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q"]
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "--target", target, copy], check=True)
    return target


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
