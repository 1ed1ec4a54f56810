"""`bench oslo`: what it runs, that it finds out what is wrong, and what is told of it."""

import json
import types

import pytest
import torch

pytest.importorskip("transformers")

from transformers import NoRepeatNGramLogitsProcessor

from aotkit.benchmark.oslo.host_ngrams import HostNoRepeatNGram
from aotkit.benchmark.oslo.measure import measure
from aotkit.benchmark.oslo.process import Task, prepared, round_of
from aotkit.benchmark.oslo.report import OsloReport, Row
from aotkit.benchmark.oslo.variants import BEFORE_5_15, VARIANTS, Variant
from aotkit.benchmark.oslo.workloads import GPT2_INFERENCE, GPT2_TRAINING, T5_GENERATE, WORKLOADS, build
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE
from aotkit.cli.dispatch import main

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def precision():
    """Each task has a process of its own, and the switches in it."""
    yield
    torch.set_float32_matmul_precision("highest")


def task(workload, variant, **options):
    return Task("cpu", "float32", workload, variant, **options)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 3, 12])
def test_the_processor_of_before_is_todays(size, length):
    ids = torch.randint(4, (5, length), generator=torch.Generator().manual_seed(0))
    scores = torch.randn(5, 4)
    before = scores.clone()
    assert torch.equal(HostNoRepeatNGram(size)(ids, scores), NoRepeatNGramLogitsProcessor(size)(ids, scores))
    assert torch.equal(scores, before)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_weights_come_from_a_folder_or_are_random(workload, tmp_path):
    model = build(workload, "cpu", torch.float32).model
    with torch.no_grad():
        next(model.parameters()).add_(1)
    model.save_pretrained(tmp_path)
    loaded = build(workload, "cpu", torch.float32, folder=str(tmp_path)).model
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert loaded.training == model.training == (workload == GPT2_TRAINING)


def test_generate_makes_as_many_tokens_as_are_asked_for():
    workload = build(T5_GENERATE, "cpu", torch.float32, new_tokens=7)
    assert workload.run().shape == (4, 8)  # after the one that begins


def spoil_weights(model):
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)


@pytest.mark.parametrize(
    ("workload", "said"), [(GPT2_INFERENCE, "logits differ"), (GPT2_TRAINING, "gradients"), (T5_GENERATE, "token")]
)
def test_other_results_than_eagers_are_found_out(workload, said, monkeypatch):
    eager = VARIANTS[workload][EAGER]
    monkeypatch.setitem(VARIANTS[workload], "wrong", Variant(spoil_weights, eager.options))
    _, problem = prepared(task(workload, "wrong"))
    assert said in problem
    run, problem = prepared(task(workload, EAGER))
    assert problem is None
    found = round_of(run, 0.0, "cpu")
    assert len(found["seconds"]) == 1
    assert found["peak_bytes"] is None


def test_a_part_that_runs_uncompiled_is_a_problem(monkeypatch):
    def prepare(model):
        import aotkit

        def broken(gm, example_inputs):
            raise ValueError("no such instruction")

        aotkit.fuse(model, aotkit.FusionConfig(backend=broken))

    monkeypatch.setitem(VARIANTS[GPT2_INFERENCE], "broken", Variant(prepare, is_ours=True))
    _, problem = prepared(task(GPT2_INFERENCE, "broken"))
    assert "no such instruction" in problem


def test_a_token_may_differ_where_its_score_hardly_does():
    workload = build(T5_GENERATE, "cpu", torch.float32)
    scores = torch.tensor([[0.0, 1.0, 1.0 - 1e-5, -torch.inf]])
    wanted = types.SimpleNamespace(sequences=torch.tensor([[0, 1, 1]]), scores=(scores, scores))
    assert workload.compare(torch.tensor([[0, 2, 3]]), wanted, 1e-3) is None  # what follows has another past
    assert "row 0: token 2" in workload.compare(torch.tensor([[0, 1, 3]]), wanted, 1e-3)
    assert "row 0: token 1" in workload.compare(torch.tensor([[0, 0, 1]]), wanted, 1e-3)
    assert "tokens" in workload.compare(torch.tensor([[0, 1]]), wanted, 1e-3)


@pytest.fixture
def found():
    rows = [
        Row(T5_GENERATE, EAGER, [0.4, 0.2, 0.3], 2**20), Row(T5_GENERATE, BEFORE_5_15, [0.6]),
        Row(T5_GENERATE, TORCH_COMPILE, [0.2]), Row(T5_GENERATE, f"{TORCH_COMPILE} static cache", [0.15]),
        Row(T5_GENERATE, "fuse the model", [0.1]), Row(T5_GENERATE, "fuse kernels", [0.1], differs="row 0: no"),
        Row(T5_GENERATE, "fuse activations", problem="RuntimeError: broken"),
    ]  # fmt: skip
    place = {"processor": "some", "gpu": None, "transformers": "5.17.0", "dtype": "float32"}
    return OsloReport(place, "2.13.0", "cpu", rows)


def test_ratios_are_over_eager_and_the_best_of_torch_compile(found):
    ratios = {row["variant"]: (row["vs_eager"], row["vs_torch_compile"]) for row in found.json()["rows"]}
    assert ratios["fuse the model"] == (pytest.approx(3.0), pytest.approx(1.5))
    assert ratios[BEFORE_5_15] == (pytest.approx(0.5), pytest.approx(0.25))
    assert ratios[TORCH_COMPILE] == (pytest.approx(1.5), None)
    assert ratios[EAGER] == (None, pytest.approx(0.5))


def test_what_failed_is_told(found):
    assert not found.passed
    assert "t5 generate: fuse kernels: row 0: no" in str(found)
    assert "t5 generate: fuse activations: RuntimeError: broken" in str(found)
    right = {
        line.rpartition(" ")[2] for line in str(found).splitlines() if line.startswith("t5 generate  fuse kernels")
    }
    assert right == {"no"}
    assert str(OsloReport.joined([json.loads(json.dumps(found.json()))])) == str(found)


@pytest.mark.sweep
def test_a_process_that_fails_is_a_row_that_failed():
    (row,) = measure({GPT2_INFERENCE: ["no such variant"]}).rows
    assert "no such variant" in row.problem


@pytest.mark.sweep
def test_each_variant_has_a_process(tmp_path, capsys):
    build(T5_GENERATE, "cpu", torch.float32).model.save_pretrained(tmp_path / "t5")
    asked = ["--workloads", T5_GENERATE, "--variants", f"{EAGER},{BEFORE_5_15}", "--t5", str(tmp_path / "t5")]
    assert main(["bench", "oslo", *asked, "--new-tokens", "5", "--seconds", "0", "-o", str(tmp_path / "found")]) == 0
    told = capsys.readouterr()
    assert BEFORE_5_15 in told.out
    assert "is ready" in told.err
    rows = json.loads((tmp_path / "found").read_text())["rows"]
    assert [row["variant"] for row in rows] == [EAGER, BEFORE_5_15]
    assert all(len(row["seconds"]) == 3 for row in rows)


@pytest.mark.sweep
@pytest.mark.parametrize(("workload", "variant"), [(w, v) for w, variants in VARIANTS.items() for v in variants])
def test_every_variant_gives_eagers_results(workload, variant):
    torch._dynamo.reset()
    _, problem = prepared(task(workload, variant, new_tokens=6))
    assert problem is None


def test_names_that_are_unknown_are_refused(capsys):
    assert main(["bench", "oslo", "--workloads", "bert"]) == 2
    assert T5_GENERATE in capsys.readouterr().err
