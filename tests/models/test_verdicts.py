"""The command that asks for aotkit's verdict on many models: what fails costs one case, and results are kept."""

import sys

import pytest
import torch

from tests.models import zoo
from tests.models.verdicts import __main__ as command
from tests.models.verdicts import case
from tests.models.verdicts.case import Case, Verdict, in_a_process, judged

NET = Case("net", "bfloat16", None, "nop/nx_min_cut", 3, "cpu")


def net():
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1))
    return zoo.Training(layers, (torch.randn(4, 8),))


def test_a_first_call_is_judged(monkeypatch):
    monkeypatch.setattr(case, "builders", lambda batch: {"net": net})
    verdict = judged(NET)
    assert verdict.text == "passed"
    assert not verdict.why


def test_an_error_in_a_later_step_is_not_passed(monkeypatch):
    steps = 0

    def loss(output):
        nonlocal steps
        steps += 1
        if steps == 3:
            raise RuntimeError("out of memory")
        return output.sum()

    monkeypatch.setattr(
        case, "builders", lambda batch: {"net": lambda: zoo.Training(net().model, net().args, loss=loss)}
    )
    verdict = judged(NET)
    assert (verdict.text, verdict.why) == ("not passed", "RuntimeError: out of memory")


@pytest.mark.sweep
def test_a_case_without_an_end_or_with_an_error_is_not_passed():
    assert in_a_process(NET, 0.1).why == "not done in 0 s"
    failed = in_a_process(NET, 300)
    assert failed.text == "not passed"
    assert "KeyError: 'net'" in failed.why


def test_results_are_kept_and_what_is_not_passed_is_told_and_tried_again(monkeypatch, tmp_path, capsys):
    asked = []

    def answer(found, limit):
        asked.append(found)
        return Verdict("not passed" if found.model == "timm_dla34" else "passed, 2 undecided", "because", 1.0)

    monkeypatch.setattr(command, "in_a_process", answer)
    options = ["--models", "timm_dla*,bert", "--dtypes", "tf32", "--seeds", "2", "--results", str(tmp_path / "kept")]
    monkeypatch.setattr(sys, "argv", ["verdicts", *options])
    for _ in range(2):
        assert command.main() == 1
        printed = capsys.readouterr().out.splitlines()
        assert sum(line.startswith("timm_dla34 tf32 32 inductor/min_cut 1 cuda: not passed") for line in printed) == 1
        assert sorted(printed[-1].split(", ")) == ["not passed: 8", "undecided in part: 4"]
    assert len(asked) == 12 + 8
    assert len(set(asked)) == 12


@pytest.mark.parametrize(
    "wrong", [["--models", "bert,gtp2"], ["--dtypes", "int4"], ["--variants", "nop/no such"], ["--batches", "x"]]
)
def test_a_name_that_there_is_not_is_an_error_before_anything_runs(wrong, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["verdicts", *wrong])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "error: " in capsys.readouterr().err
