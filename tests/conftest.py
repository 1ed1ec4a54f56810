"""Fixtures over everything that is registered: a new backend or partitioner joins every test that asks for one."""

import pytest
import torch

import aotkit


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


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
