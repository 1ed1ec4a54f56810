"""The conformance suites find what is wrong with a plug-in, and name it."""

import json
import subprocess
import sys

import pytest
import torch
from functorch.compile import default_partition

import aotkit
from aotkit.cli import main
from aotkit.testing.conformance.report import matching, run
from aotkit.testing.conformance.requirements import Subject
from aotkit.testing.conformance.suites import requirements


def swaps_outputs(gm, example_inputs):
    def call(*inputs):
        results = list(gm(*inputs))
        if len(results) > 1 and results[0] is not None and results[1] is not None:
            results[:2] = results[1::-1]
        return results

    return call


def keeps_the_first_result(gm, example_inputs):
    kept = []

    def call(*inputs):
        kept[:] = kept or gm(*inputs)
        return list(kept)

    return call


def mutates_its_input(gm, example_inputs):
    def call(*inputs):
        results = gm(*inputs)
        inputs[0].add_(1)
        return results

    return call


def ignores_strides(gm, example_inputs):
    def as_if_contiguous(x):
        return torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) if isinstance(x, torch.Tensor) else x

    return lambda *inputs: gm(*map(as_if_contiguous, inputs))


def keeps_its_inputs(gm, example_inputs):
    kept = []

    def call(*inputs):
        kept.append(inputs)
        return gm(*inputs)

    return call


def reuses_its_output_memory(gm, example_inputs):
    buffers = []

    def call(*inputs):
        results = gm(*inputs)
        buffers[:] = buffers or [torch.empty_like(r) for r in results]
        return [b.copy_(r) for b, r in zip(buffers, results, strict=True)]

    return call


def raises(gm, example_inputs):
    raise NotImplementedError("no code generator")


def swallows_errors(gm, example_inputs):
    promised = [n.meta["val"] for n in gm.graph.output_node().args[0]]

    def call(*inputs):
        try:
            return gm(*inputs)
        except Exception:
            return [torch.zeros(p.shape) for p in promised]

    return call


PLANTED_BACKENDS = [
    (swaps_outputs, "contract/order_of_outputs"),
    (keeps_the_first_result, "reuse/second_call_fresh_values"),
    (mutates_its_input, "contract/mutates_no_input"),
    (ignores_strides, "layout/transposed"),
    (keeps_its_inputs, "boxed/inputs_freed"),
    (reuses_its_output_memory, "reuse/earlier_results_keep_their_values"),
    (raises, "dtype/float32"),
    (swallows_errors, "errors/raises_at_run_time"),
]


@pytest.mark.parametrize(("backend", "requirement"), PLANTED_BACKENDS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_bad_backend_fails_the_requirement_that_it_breaks(backend, requirement):
    report = examine("backend", backend, requirement)
    assert not report.passed
    assert f"{requirement}: " in str(report)
    assert "0 passed, 0 expected failures, 1 failed" in str(report)


@pytest.mark.parametrize("requirement", [requirement for _, requirement in PLANTED_BACKENDS])
def test_a_good_backend_passes_it(requirement):
    assert examine("backend", "nop", requirement).passed


def draws_again(joint, joint_inputs, *, num_fwd_outputs, **kwargs):
    """Draws a mask that was saved once more in the backward graph."""
    forward, backward = default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
    inputs = backward.graph.find_nodes(op="placeholder")
    for mask in [n for n in inputs if getattr(n.meta["val"], "dtype", None) is torch.bool]:
        with backward.graph.inserting_after(inputs[-1]):
            again = backward.graph.call_function(torch.ops.aten.bernoulli.p, (mask, 0.5))
        again.meta["val"] = mask.meta["val"]
        mask.replace_all_uses_with(again, delete_user_cb=lambda user, again=again: user is not again)
    backward.recompile()
    return forward, backward


def reorders_saved_values(joint, joint_inputs, *, num_fwd_outputs, **kwargs):
    forward, backward = default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
    output = forward.graph.output_node()
    results = list(output.args[0])
    output.args = ((*results[:num_fwd_outputs], *results[: num_fwd_outputs - 1 : -1]),)
    forward.recompile()
    return forward, backward


PLANTED_PARTITIONERS = [(draws_again, "random/drawn_once"), (reorders_saved_values, "cut/saved_values_arrive_in_order")]


@pytest.mark.parametrize(("partition", "requirement"), PLANTED_PARTITIONERS)
def test_a_bad_partitioner_fails_the_requirement_that_it_breaks(partition, requirement):
    report = examine("partitioner", partition, requirement)
    assert not report.passed
    assert f"{requirement}: AssertionError" in str(report), report


@pytest.mark.parametrize("requirement", [requirement for _, requirement in PLANTED_PARTITIONERS])
def test_a_good_partitioner_passes_it(requirement):
    assert examine("partitioner", "default", requirement).passed


def test_an_expected_failure_that_passes_is_a_failure():
    report = examine("backend", "nop", "sizes/one", {"sizes/*": "because"})
    assert not report.passed
    assert "sizes/one: unexpectedly passes: remove it from expected_failures (because)" in str(report)


def test_an_expected_failure_is_no_failure():
    report = examine("backend", raises, "sizes/one", {"sizes/one": "no code generator yet"})
    assert report.passed
    assert "0 passed, 1 expected failures, 0 failed" in str(report)


def test_an_expected_failure_that_names_no_case_is_an_error():
    with pytest.raises(aotkit.UnknownNameError, match=r"no conformance case matches 'sizes/onne'.*sizes/\*"):
        examine("backend", "nop", "sizes/one", {"sizes/onne": "because"})


def examine(kind, spec, pattern, expected_failures=None):
    return run(Subject(kind, spec, torch.device("cpu")), matching(requirements(kind), pattern), expected_failures)


@pytest.fixture
def bad_name():
    aotkit.register_backend("refuses", raises)
    yield "refuses"
    aotkit.unregister_backend("refuses")


def test_check_prints_failures_and_a_summary(capsys, bad_name):
    assert main(["check", "nop", "--case", "sizes/one"]) == 0
    assert capsys.readouterr().out.startswith("nop: 1 passed, 0 expected failures, 0 failed in ")
    assert main(["check", bad_name, "--case", "sizes/one*"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["sizes/one", "sizes/ones", bad_name]
    assert "NotImplementedError: no code generator" in lines[0]


def test_check_prints_json(capsys, bad_name):
    assert main(["check", bad_name, "--case", "sizes/one", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["kind"], document["passed"]) == (1, "backend", False)
    assert [(c["name"], c["status"]) for c in document["cases"]] == [("sizes/one", "failed")]


def test_check_tells_wrong_usage_from_an_unavailable_plugin(capsys):
    assert main(["check", "nopp"]) == 2
    assert "no backend or partitioner is named 'nopp'" in capsys.readouterr().err
    assert main(["check", "nop", "--case", "size/*"]) == 2
    assert "sizes/*" in capsys.readouterr().err
    aotkit.register_backend("elsewhere", aotkit.Backend(raises, unavailable=lambda: "it needs a quantum computer"))
    try:
        assert main(["check", "elsewhere"]) == 3
    finally:
        aotkit.unregister_backend("elsewhere")
    assert "it needs a quantum computer" in capsys.readouterr().err


@pytest.mark.sweep
def test_every_operator_of_torchs_test_database(capsys):
    assert main(["check", "nop", "--all-operators", "--case", "opinfo/*soft*"]) == 0
    assert int(capsys.readouterr().out.split()[1]) > 10
    only_soft = [r for r in requirements("backend", all_operators=True) if r.name == "opinfo/softmax"]
    (outcome,) = run(Subject("backend", without_softmax, torch.device("cpu")), only_soft).outcomes
    assert outcome.is_failure
    assert outcome.message.startswith("AssertionError: sample 0: output 0: ")


def without_softmax(gm, example_inputs):
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten._softmax.default):
        node.target = lambda x, dim, half_to_float: x.clone()
    gm.recompile()
    return gm


PYTEST = """
import aotkit
from aotkit.testing import BackendConformance

class TestExpected(BackendConformance):
    name = "nop"
    expected_failures = {"sizes/one": "of no reason"}

class TestAbsent(BackendConformance):
    name = aotkit.Backend(lambda gm, example_inputs: gm, unavailable=lambda: "it needs a TPU.")
"""


@pytest.mark.sweep
def test_pytest_reports_unexpected_passes_and_absent_plug_ins(tmp_path):
    (tmp_path / "test_it.py").write_text(PYTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", "sizes", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "[XPASS(strict)] of no reason (if it passes, remove it from expected_failures)" in done.stdout
    assert "it needs a TPU." in done.stdout
    counts = dict(reversed(part.split()[:2]) for part in done.stdout.splitlines()[-1].split(", "))
    assert counts["failed"] == "1"
    assert counts["skipped"] == str(int(counts["passed"]) + 1)
