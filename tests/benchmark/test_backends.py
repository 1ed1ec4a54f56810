"""What `aotkit bench backends` measures, says, joins and draws."""

import json
import warnings

import pytest
import torch

import aotkit
from aotkit.benchmark.backends import measure as measuring
from aotkit.benchmark.backends.report import AUTOTUNE, FORWARD, STEP, BackendsReport, Row
from aotkit.benchmark.backends.workloads import WORKLOADS, build
from aotkit.benchmark.plots import plot_backends
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE
from aotkit.tuning import search, steps


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(search, "TIMING", 0.0)
    monkeypatch.setattr(steps, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(search.proposals, "backend_status", lambda: {"nop": None})
    monkeypatch.setattr(search.proposals, "around", lambda *args: [])


def measured(*names, **more):
    rivals = {name: measuring.variants()[name] for name in names}
    return measuring.measure(["tutorial-2x4"], {**rivals, **more}, seconds=0.0, budget=600.0)


def test_a_row_for_each_variant():
    report = measured(EAGER, "nop", AUTOTUNE)
    assert [row.variant for row in report.rows] == [EAGER, "nop", AUTOTUNE]
    assert report.passed
    for row in report.rows:
        assert row.peak > 0
        assert {*row.seconds} == {FORWARD, STEP}
        assert row.time(FORWARD).median < row.time(STEP).median
    assert report.rows[1].operations > 5
    assert report.rows[2].line in ("tutorial", "aotkit.compile(tutorial, backend='nop')")
    assert "autotune takes" in str(report)


def test_what_is_wrong_or_fails_is_told_and_not_timed():
    def wrong(gm, example_inputs):
        return lambda *inputs: [x + 1 for x in gm(*inputs)]

    aotkit.register_backend("wrong", wrong)
    try:
        report = measured(EAGER, "wrong")
    finally:
        aotkit.unregister_backend("wrong")
    assert not report.passed
    assert not report.rows[1].seconds
    assert "tutorial-2x4: wrong: output 0" in str(report)


def test_what_a_backend_does_not_take():
    def declines(node):
        return "it has no cosine" if "cos" in str(node.target) else None

    aotkit.register_backend("partial", aotkit.Backend(lambda gm, inputs: gm, declines=declines))
    try:
        row = measured("partial").rows[0]
    finally:
        aotkit.unregister_backend("partial")
    assert row.declined["aten.cos.default"] == (row.as_it_is, "it has no cosine")
    assert 0 < row.as_it_is < row.operations


def made_up():
    """Half of eager's time."""
    report = BackendsReport({"gpu": None, "processor": "P"}, "2", "cpu")
    for workload in ("a", "b"):
        for variant, second in ((EAGER, 2e-3), (TORCH_COMPILE, 4e-3), ("nop", 1e-3), (AUTOTUNE, 1e-3)):
            seconds = {FORWARD: [second / 4] * 8, STEP: [second] * 8}
            declined = {"aten.mm": (2, "a library does")} if variant == "nop" else {}
            report.rows.append(Row(workload, variant, seconds, 2**20, 1.5, 5 * bool(declined), declined))
    return report


def test_the_table_and_what_it_comes_to():
    text = str(made_up())
    assert "0.50 ±0.00" in text
    assert "nop: eager takes 2.00 times as long in the mean of 2 workloads" in text
    assert "autotune: torch.compile takes 4.00 times as long in the mean of 2 workloads" in text
    assert "a: autotune takes 1.00 ±0.00 times as long as nop" in text
    assert "nop does not take aten.mm: a library does" in text
    assert "2 of 5" in text


def test_runs_can_be_joined():
    report = made_up()
    first, second = (json.loads(json.dumps(report.json())) for _ in range(2))
    first["rows"] = first["rows"][:4]
    assert str(BackendsReport.joined([first, second])) == str(report)
    with pytest.raises(ValueError, match="Report 1 of 1"):
        BackendsReport.joined([{"rows": []}])


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plot_backends(made_up(), tmp_path / "found.svg")
    assert "torch.compile" in (tmp_path / "found.svg").read_text(encoding="utf-8")
    empty = BackendsReport({"gpu": None, "processor": "P"}, "2", "cpu")
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_backends(empty, tmp_path / "none.svg")


@pytest.mark.parametrize("name", ["chain", "gelu-dropout", "layer-norm", "softmax", "mlp", "resnet-block"])
def test_workloads_are_the_same_each_time(name):
    (_, first), (_, second) = build(name, "cpu"), build(name, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert name in WORKLOADS
