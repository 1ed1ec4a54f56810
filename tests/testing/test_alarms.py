"""What is right passes the check, in every type."""

import json

import pytest
import torch

import aotkit
from aotkit.cli import main
from aotkit.testing.case import Case
from aotkit.testing.faults.alarms import DTYPES, FLOAT32_ONLY, LEFT_OUT, SEEDS, Combination, alarms, combinations
from aotkit.testing.zoo import CASES

FEW = ["broadcasting", "attention", "several_losses", "dropout", "mutates_an_input", "ResNetBlock"]


@pytest.mark.thinned
@pytest.mark.parametrize("where", [c for c in combinations(FEW, ["nop"]) if c.partition == "min_cut"], ids=str)
def test_no_false_alarm(where):
    assert alarms(where, range(1)) == []


def test_no_false_alarm_after_fusion():
    (where,) = (
        c for c in combinations(["attention"], ["inductor"]) if c.partition == "min_cut" and c.dtype is torch.bfloat16
    )
    assert alarms(where, range(1)) == []


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators:UserWarning")
@pytest.mark.parametrize("function", [case.name for case in CASES])
def test_no_false_alarm_anywhere(function):
    assert [alarm for where in combinations([function]) for alarm in alarms(where, range(SEEDS))] == []


def test_every_function_takes_part():
    found = list(combinations())
    assert {c.case.name for c in found if c.dtype is torch.float32} == {case.name for case in CASES}
    available = {name for name, reason in aotkit.backend_status().items() if reason is None}
    assert {c.backend for c in found} == available - set(LEFT_OUT)
    for dtype in DTYPES[1:]:
        assert {c.case.name for c in found if c.dtype is dtype} == {c.name for c in CASES} - set(FLOAT32_ONLY)


def wrong(gm, example_inputs):
    return lambda *args: [2 * result for result in gm(*args)]


def test_an_alarm_tells_where():
    case = Case("double", lambda device: lambda x: x * 2, lambda new: (new.values(3),))
    aotkit.register_backend("wrong_one")(wrong)
    try:
        (alarm,) = alarms(Combination(case, "wrong_one", "default", torch.float16), [4])
    finally:
        aotkit.unregister_backend("wrong_one")
    assert str(alarm).startswith("double, wrong_one, default, torch.float16, seed 4: MismatchError: output 0 differs")
    assert alarm.json()["dtype"] == "torch.float16"


def test_the_command_counts_checks(capsys):
    assert main(["faults", "--alarms", "--seeds", "1", "--json", "zero_dim", "--backend", "nop"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["alarms"] == []
    assert found["checks"] == len(aotkit.list_partitioners()) * len(DTYPES)
