"""What `bench` measures, what its table says, and that it leaves the caller's tensors alone."""

import json

import pytest
import torch
from torch import nn

import aotkit
from aotkit.benchmark import bench
from aotkit.benchmark.workloads import ResidualLoss, byte_tokens, tutorial, tutorial_inputs

NAMES = {"backends": ["nop"], "partitions": ["default"], "seconds": 0.05}
MIB = 2**20


def wrong(gm, example_inputs):
    return lambda *inputs: [x + 1 for x in gm(*inputs)]


def broken(gm, example_inputs):
    raise RuntimeError("no such instruction\nin a long trace")


ABSENT = aotkit.Backend(broken, unavailable=lambda: "it needs a flux capacitor")


@pytest.fixture
def absent():
    aotkit.register_backend("absent", ABSENT)
    yield "absent"
    aotkit.unregister_backend("absent")


@pytest.mark.sweep
def test_every_available_pair_is_compared_with_eager(absent):
    report = bench(tutorial, *tutorial_inputs(8, 16), seconds=0.2)
    # With a CUDA device nnc runs, but not on these inputs, which are on the CPU.
    assert [row for row in report.rows if row.status == "failed" and row.backend != "nnc"] == []
    assert (report.rows[0].backend, report.rows[0].partition) == ("eager", "")
    pairs = {(row.backend, row.partition): row for row in report.rows}
    assert {("nop", p) for p in aotkit.list_partitioners()} <= set(pairs)
    assert pairs[absent, ""].status == "unavailable"
    assert "print" not in {row.backend for row in report.rows}
    for row in report.rows:
        assert set(row.phases) == ({"forward", "backward"} if row.status in ("", "ok") else set())


def test_saved_bytes_of_functorchs_tutorial():
    """Eager and the default partition save two matrices, min_cut one: the point of the tutorial."""
    report = bench(tutorial, *tutorial_inputs(), backends=["nop"], partitions=["default", "min_cut"], seconds=0.1)
    assert [row.saved_bytes for row in report.rows] == [16 * MIB, 16 * MIB, 8 * MIB]
    assert "8.0 MiB" in str(report)


def test_a_slower_backend_says_so(clock):
    def slow(gm, example_inputs):
        def call(*inputs):
            clock.sleep(5e-3)
            return gm(*inputs)

        return call

    report = bench(tutorial, *tutorial_inputs(8, 16), backends=[slow], partitions=["default"], seconds=0.3)
    eager, row = report.rows
    assert row.status == "ok"
    for phase in ("forward", "backward"):
        assert report.verdict(row, phase) == "slower"
        assert report.ratio(row, phase).median < 1
        assert report.seconds(row, phase).median >= 5e-3 > report.seconds(eager, phase).median
    assert report.verdict(eager, "forward") is report.ratio(eager, "forward") is None
    assert str(report).count(" slower") == 2


def test_a_failure_keeps_its_row_and_names_its_cause(absent):
    backends = [wrong, broken, absent, "nop"]
    report = bench(tutorial, *tutorial_inputs(8, 16), backends=backends, partitions=["default"], seconds=0.05)
    assert [row.status for row in report.rows] == ["", "failed", "failed", "unavailable", "ok"]
    assert not report.passed
    _, differs, raised, missing, _ = report.rows
    assert differs.check.startswith("output 0 differs by up to ")
    assert "RuntimeError: no such instruction" in raised.check
    assert "\n" not in raised.check
    assert "flux capacitor" in missing.check
    text, markdown = " ".join(str(report).split()), report._repr_markdown_()
    for row in report.rows[1:4]:
        assert " ".join(row.check.split()) in text
        assert row.check in markdown


def test_a_backend_that_fails_only_later_keeps_its_row():
    def three_times(gm, example_inputs):
        calls = []

        def call(*inputs):
            calls.append(None)
            if len(calls) > 3:
                raise RuntimeError("worn out")
            return gm(*inputs)

        return call

    report = bench(tutorial, *tutorial_inputs(8, 16), **{**NAMES, "backends": [three_times, "nop"]})
    assert [row.status for row in report.rows] == ["", "failed", "ok"]
    assert report.rows[1].check == "RuntimeError: worn out"


def test_a_function_that_runs_eagerly_is_not_called_compiled():
    sparse = torch.eye(3).to_sparse()
    with pytest.warns(aotkit.EagerCallWarning, match="not a plain strided tensor"):
        report = bench(lambda x: (sparse @ x).sum(), torch.randn(3, 3, requires_grad=True), **NAMES)
    assert report.rows[1].status == "eager"
    assert "runs eagerly" in report.rows[1].check
    assert report.rows[1].phases


def test_an_error_of_the_function_itself_is_raised():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        bench(torch.mm, torch.randn(2, 3), torch.randn(2, 3), **NAMES)


def test_json_holds_all_samples_and_can_be_dumped():
    report = bench(tutorial, *tutorial_inputs(8, 16), **NAMES)
    found = json.loads(json.dumps(report.json()))
    assert found["name"] == "tutorial"
    assert torch.__version__ in found["environment"]["torch"]
    eager, row = found["rows"]
    assert (row["backend"], row["partition"], row["check"]) == ("nop", "default", "ok")
    forward = row["phases"]["forward"]
    assert forward["low"] <= forward["median"] <= forward["high"]
    assert len(forward["samples"]["wall"]) == len(eager["phases"]["forward"]["samples"]["wall"]) >= 7
    assert forward["vs_eager"]["median"] == pytest.approx(eager["phases"]["forward"]["median"] / forward["median"])


def test_tables_have_a_line_for_each_row():
    report = bench(tutorial, *tutorial_inputs(8, 16), **NAMES)
    lines = str(report).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["backend", "eager", "nop"]
    assert lines[3].endswith("ok")
    assert max(map(len, lines)) <= 120
    table = [line for line in report._repr_markdown_().splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1


def test_arguments_and_modules_are_left_as_they_were():
    module = ResidualLoss(4)
    images, target = torch.randn(2, 4, 8, 8, requires_grad=True), torch.randn(2, 4, 8, 8)
    images.grad = torch.ones_like(images)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    report = bench(module, images, target, **NAMES)
    assert report.passed
    assert report.rows[1].phases["backward"].wall
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert torch.equal(images.grad, torch.ones_like(images))


def test_gradients_of_captured_tensors_are_put_back():
    weight = torch.randn(3, requires_grad=True)
    weight.grad = torch.ones(3)
    bench(lambda x: x * weight, torch.randn(3), **NAMES)
    assert torch.equal(weight.grad, torch.ones(3))


def test_inputs_may_be_mutated_and_need_not_be_leaves():
    def scale(x):
        x.mul_(2)
        return x.sin()

    x = torch.randn(3, requires_grad=True) + 0
    before = x.detach().clone()
    report = bench(scale, x, **NAMES)
    assert [row.status for row in report.rows] == ["", "ok"]
    assert torch.equal(x, before)


def test_keywords_and_structures_reach_the_function():
    def add(batch, *, scale):
        return {"sum": batch["x"] * scale + batch["y"]}

    batch = {"x": torch.randn(3, requires_grad=True), "y": torch.randn(3)}
    assert bench(add, batch, scale=2.0, **NAMES).rows[1].status == "ok"


def test_without_gradients_only_forward_is_timed():
    report = bench(nn.functional.silu, torch.randn(8), **NAMES)
    assert [set(row.phases) for row in report.rows] == [{"forward"}, {"forward"}]
    with torch.no_grad():
        report = bench(tutorial, *tutorial_inputs(8, 16), **NAMES)
    assert report.rows[1].status == "ok"
    assert set(report.rows[1].phases) == {"forward"}


def test_dynamo_captures_what_cannot_be_traced_at_once():
    def choose(x):
        return x.sin() if x.sum() > 0 else x.cos()

    report = bench(choose, torch.ones(3, requires_grad=True), capture="dynamo", **NAMES)
    row = report.rows[1]
    assert row.status == "ok"
    assert row.phases["backward"].wall
    assert row.saved_bytes == 0  # the backward pass reads the argument
    assert "in 2 graphs" in row.way


def test_progress_names_what_is_being_compiled():
    told = []
    bench(tutorial, *tutorial_inputs(8, 16), progress=told.append, **NAMES)
    assert any("compiling nop x default" in text for text in told)
    assert "timing 2 variants" in told[-1]


def test_bytes_are_the_text():
    tokens = byte_tokens(2, 128)
    assert tokens.shape == (2, 128)
    assert bytes(tokens.flatten().tolist()).decode().startswith("Alice was beginning to get very tired")
    assert byte_tokens(3, 1000).max() < 256
