"""Kernels of the backend `fuser` on the CPU: those in C++ as they are, or those in Triton by its interpreter.

tests/backends/test_fuser.py runs these tests in other processes, a few of them in the interpreter;
`make sweep` runs all, both ways.
"""

import pytest

from aotkit.backends.fuser import cpp_code, cpp_schedule, limits, search
from tests.backends.interpreted.comparing import IS_INTERPRETED
from tests.backends.interpreted.memory import Memory

OF_CASES = ("dropout_add_layer_norm", "cross_entropy", "chosen_of_rows", "rms_norm", "swiglu", "steps")
QUICK = [f"test_kernels_equal_aten[{name}-torch.float32]" for name in OF_CASES]


@pytest.fixture(scope="session", autouse=True)
def as_on_a_device():
    """With a library of functions, and without tests for overflows, which take half of the time."""
    if not IS_INTERPRETED:
        yield
        return
    from triton.language import extra
    from triton.runtime import interpreter

    from tests.backends.interpreted import libdevice

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extra, "libdevice", libdevice, raising=False)
        patch.setattr(
            interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(sanitize_overflow=False)
        )
        yield


@pytest.fixture(autouse=True)
def every_schedule_runs(monkeypatch):
    """One that does not is left out, where users are concerned."""
    left_out = []
    monkeypatch.setattr(search, "tell_of_failure", lambda *told: left_out.append(told))
    yield
    assert not left_out


@pytest.fixture
def limit(monkeypatch):
    """Sets limits of the plan and of schedules, by their names, so that small tensors are walked as large ones are."""

    def set_limits(**numbers):
        for name, number in numbers.items():
            having = [module for module in (limits, cpp_schedule, cpp_code) if hasattr(module, name)]
            assert having, f"there is no limit {name}"
            for module in having:
                monkeypatch.setattr(module, name, number)

    return set_limits


@pytest.fixture
def memory(monkeypatch):
    """Counts what kernels allocate, and can have them allocate all."""
    return Memory(monkeypatch)


@pytest.hookimpl(tryfirst=True)  # before what is marked is left out
def pytest_collection_modifyitems(items):
    for item in items:
        if item.name not in QUICK:
            item.add_marker(pytest.mark.sweep)
        # What NumPy says of elements that a mask leaves out, and of infinities.
        item.add_marker(pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning"))
