"""aotkit's own backends and partitioners conform. Those that compile slowly are examined by `pytest -m sweep`."""

import pytest

from aotkit.testing import BackendConformance


class TestNop(BackendConformance):
    name = "nop"


class TestPrint(BackendConformance):
    name = "print"
    pytestmark = pytest.mark.sweep


class TestInductor(BackendConformance):
    name = "inductor"
    pytestmark = pytest.mark.sweep
