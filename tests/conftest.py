"""Fixtures over everything that is registered: a new backend or partitioner joins every test that asks for one."""

import collections
import functools
import gc
import logging
import os
import zlib

import pytest
import torch

import aotkit
from aotkit import culprit
from aotkit.checking import checker
from aotkit.torch_private import native
from aotkit.torch_private.switches import environment


def pytest_collection_finish():
    """What stays to the end is no garbage: looking for some in it took a sixth of the time of all tests."""
    # As long as tests run, pytest listens to loggers that do not propagate; to this one torch describes each step of a
    # compilation then, which took a tenth of it.
    logging.getLogger("torch.__trace").propagate = True
    gc.set_threshold(5000, 10, 10)  # of new objects: tracing makes thousands, which stay until it is done
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """The same of what a module leaves, such as torch's caches."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def verified():
    """A stage that breaks a promise fails at its own door, also in processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AOTKIT_VERIFY", os.environ.get("AOTKIT_VERIFY", "1"))
        yield


@pytest.fixture(scope="session", autouse=True)
def forgetful():
    """What an earlier run of the tests found is no verdict on the code of now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AOTKIT_KEEP", "0")
        yield


@pytest.fixture
def unverified(monkeypatch):
    """For plug-ins that are wrong on purpose, to be judged by what comes after the stages."""
    monkeypatch.setenv("AOTKIT_VERIFY", "0")


@pytest.fixture(autouse=True)
def switches_as_before():
    """A test that leaves a switch of torch changed fails, and not one that happens to run after it."""
    before = environment()
    yield
    assert environment() == before, "this test left a global switch of torch changed"


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_hurry():
    """What a check or a search finds shall not depend on what else the machine does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checker, "SECONDS", 300.0)
        patch.setattr(culprit, "SECONDS", 300.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def built():
    """Otherwise it would depend on the time in which tier a test runs.

    And loaded, before a test has another folder for its cache, where it would be built once more.
    """
    native.build()
    native.library()


def pytest_generate_tests(metafunc):
    """What is about safety holds in both tiers of a call."""
    if metafunc.module.__name__.rpartition(".")[2].startswith("test_safety"):
        metafunc.parametrize("in_tier", ["python", "native"], indirect=True)


@pytest.hookimpl(tryfirst=True)  # before what is marked is left out
def pytest_collection_modifyitems(config, items):
    """What is about safety, or is marked as `thinned`, runs for some of its parameters.

    Of several parameters one combination in 24 runs, of one (where marked) one value in three, and at least one of each
    test; the others run in `make sweep`, or where tests are asked for by their names.
    """
    if config.getoption("lf", False) or any("::" in argument for argument in config.args):
        return
    known = collections.defaultdict(dict)  # for a parameter of a test the place of each value
    found_of = collections.defaultdict(list)  # for a test its combinations, each with what it is picked by
    for item in items:
        if hasattr(item, "callspec") and item.callspec.params.get("backend") == "fuser_tuned":
            item.add_marker(pytest.mark.sweep)  # on small tensors, it is `fuser`
            continue
        is_safety = item.module.__name__.rpartition(".")[2].startswith("test_safety")
        if not (is_safety or item.get_closest_marker("thinned")) or not hasattr(item, "callspec"):
            continue
        places = {}
        for name in item.callspec.params.keys() - followers(item):
            value, of_values = item.callspec.params[name], known[item.function, name]
            # The places of backends that do not run here would make others miss partitioners.
            place = of_values.setdefault(id(value), len(of_values))
            places[name] = 0 if name == "backend" and is_unusable(value) else place
        if item.get_closest_marker("sweep"):
            continue
        if len(places) > 1 or item.get_closest_marker("thinned"):
            step, key = (24, sorted(places.items())) if len(places) > 1 else (3, item.name)
            found_of[item.function, step].append((item, key))
    for (function, step), found in found_of.items():
        picks = [zlib.crc32(f"{function.__name__}{key}".encode()) for _, key in found]
        runs = [item for (item, _), pick in zip(found, picks, strict=True) if pick % step == 0]
        alike = [item for item, _ in found]
        usable = [item for item in alike if not is_unusable(item.callspec.params.get("backend"))] or alike
        runs = runs or [usable[picks[0] % len(usable)]]
        for item in alike:
            if item not in runs:
                item.add_marker(pytest.mark.sweep)


def is_unusable(backend):
    return isinstance(backend, str) and backend in unusable_backends()


@functools.cache
def unusable_backends():
    return {name for name, reason in aotkit.backend_status().items() if reason is not None}


def followers(item):
    """The names of parameters that change together with another one."""
    named = [mark.args[0] for mark in item.iter_markers("parametrize")]
    return {name.strip() for names in named for name in (names.split(",") if isinstance(names, str) else names)[1:]}


@pytest.fixture(autouse=True)  # else pytest drops it from what names no such argument
def in_tier(request, monkeypatch):
    """Keep to Python, or use the C++ library, where a test is about that."""
    if not hasattr(request, "param"):
        return
    if request.param == "native" and native.library_path() is None:
        pytest.skip("no C++ compiler: aotkit runs in Python alone")
    monkeypatch.setenv("AOTKIT_NATIVE", "1" if request.param == "native" else "0")


@pytest.fixture
def only_the_verdict(monkeypatch):
    """Which node is wrong is asked after the verdict, and takes longer than it: tests/culprit is about the answer."""
    monkeypatch.setattr(culprit, "find", lambda recipe, attempt, run_eager, budget: "not looked for")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def device(request):
    return torch.device(request.param)


@pytest.fixture(params=aotkit.list_backends())
def backend(request):
    """The name of each backend that runs here."""
    return usable(aotkit.get_backend, request.param)


@pytest.fixture(params=aotkit.list_partitioners())
def partitioner(request):
    """The name of each partitioner that can be used here."""
    return usable(aotkit.get_partitioner, request.param)


def usable(get, name):
    try:
        get(name)
    except aotkit.UnavailableError as e:
        if e.__cause__ is not None:  # it does not even import
            raise
        pytest.skip(str(e))
    return name
