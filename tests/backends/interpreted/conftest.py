"""Kernels of the backend `fuser` on the CPU; tests/backends/test_fuser.py runs these tests, in another process."""

import pytest
from triton.language import extra
from triton.runtime import interpreter

from aotkit.backends.fuser import limits
from tests.backends.interpreted import libdevice


@pytest.fixture(scope="session", autouse=True)
def as_on_a_device():
    """With a library of functions, and without tests for overflows, which take half of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extra, "libdevice", libdevice, raising=False)
        patch.setattr(
            interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(sanitize_overflow=False)
        )
        yield


@pytest.fixture
def limit(monkeypatch):
    """Sets limits of the plan and of schedules, by their names, so that small tensors are walked as large ones are."""

    def set_limits(**numbers):
        for name, number in numbers.items():
            monkeypatch.setattr(limits, name, number)

    return set_limits


def pytest_collection_modifyitems(items):
    for item in items:
        # What NumPy says of elements that a mask leaves out, and of infinities.
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
