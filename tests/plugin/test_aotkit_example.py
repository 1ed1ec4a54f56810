"""What aotkit asks of every backend and partitioner, asked of these two: run with `pytest`."""

from aotkit.testing import BackendConformance, PartitionerConformance


class TestInterpret(BackendConformance):
    name = "interpret"
    expected_failures = {  # noqa: RUF012
        "boxed/inputs_freed": "torch.fx.Interpreter keeps the arguments of its last run",
    }


class TestSaveAll(PartitionerConformance):
    name = "save_all"
