"""What aotkit asks of every backend and partitioner, asked of these two: run with `pytest`."""

from aotkit.testing import BackendConformance, PartitionerConformance


class TestInterpret(BackendConformance):
    name = "interpret"


class TestSaveAll(PartitionerConformance):
    name = "save_all"
    expected_failures = {  # noqa: RUF012
        "random/drawn_once": "torch's default_partition leaves draws in the backward graph whose results nothing reads",
    }
