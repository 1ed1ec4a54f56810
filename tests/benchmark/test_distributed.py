"""`bench distributed`: what is told of training on several ranks."""

import json

import pytest
import torch.distributed as dist

from aotkit.benchmark.distributed.measure import DistributedReport, Row, measure
from aotkit.benchmark.distributed.process import EAGER, OURS, TORCH_COMPILE
from aotkit.cli.dispatch import main


@pytest.fixture
def found():
    rows = [
        Row("DDP", EAGER, 2, 0.1, 0.02, 0.0),
        Row("DDP", TORCH_COMPILE, 2, 9.0, 0.01, 1e-7),
        Row("DDP", OURS, 2, 8.0, 0.005, 2e-7, "ok"),
        Row("pipeline 1F1B", OURS, 2, problem="rank 1: RuntimeError: no"),
    ]
    return DistributedReport({"processor": "some", "gpu": None}, "2.13.0", "cpu", rows)


def test_steps_are_shares_of_the_others(found):
    line = next(line for line in str(found).splitlines() if f" {OURS} " in line)
    assert line.split()[-6:] == ["8.0", "5.00", "0.25", "0.50", "2.0e-07", "ok"]


def test_what_fails_is_told(found):
    assert not found.passed
    assert "rank 1: RuntimeError: no" in str(found)


def test_json_can_be_joined(found):
    again = DistributedReport.joined([json.loads(json.dumps(found.json()))])
    assert again.rows == found.rows


def test_an_unknown_wrapper_is_wrong_usage(capsys):
    assert main(["bench", "distributed", "--wrappers", "none"]) == 2
    assert "none" in capsys.readouterr().err


@pytest.mark.sweep
@pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch was built without gloo")
def test_ranks_are_measured():
    report = measure(["DDP", "tensor parallel"], [OURS], seconds=0.1)
    assert report.passed, str(report)
    assert [row.verdict for row in report.rows] == ["", "ok", "", "ok"]
    assert all(row.distance < 1e-4 for row in report.rows)
