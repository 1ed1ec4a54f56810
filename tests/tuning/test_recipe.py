"""Candidates as lines of Python and as data, and what their defaults are."""

import inspect
import json

import pytest

import aotkit
from aotkit.partitioners import nx_min_cut
from aotkit.tuning.candidates import Candidate, candidate_from
from aotkit.tuning.recipe import DEFAULTS, TunedRecipe

CANDIDATES = {
    "f": Candidate(None),
    "aotkit.compile(f)": Candidate({}),
    "aotkit.compile(f, backend='nop')": Candidate({"backend": "nop"}),
    "aotkit.compile(f, backend=['fuser', 'nop'], partition='default')": Candidate(
        {"backend": ["fuser", "nop"], "partition": "default"}
    ),
    "aotkit.compile(f, backend='nop', partition=aotkit.partitioners.nx_min_cut.peak(0.5))": Candidate(
        {"backend": "nop", "partition": nx_min_cut.peak(0.5)}
    ),
    "aotkit.compile(f, backend='nop', partition=aotkit.partitioners.nx_min_cut.budget('2GiB'))": Candidate(
        {"backend": "nop", "partition": nx_min_cut.budget("2GiB")}
    ),
    "aotkit.compile(f, backend=aotkit.by_region('fuser', instead={'0123': 'nop'}))": Candidate(
        {"backend": "fuser"}, {"0123": "nop"}
    ),
}


@pytest.mark.parametrize("line", CANDIDATES)
def test_a_line_of_python(line):
    assert CANDIDATES[line].line("f") == line
    if "fuser" in line and aotkit.backend_status()["fuser"] is not None:
        pytest.skip("there is no C++ compiler")
    from aotkit import partitioners  # noqa: F401

    eval(line, {"aotkit": aotkit, "f": lambda x: x})


@pytest.mark.parametrize("line", CANDIDATES)
def test_data_for_another_process(line):
    data = json.loads(json.dumps(CANDIDATES[line].data()))
    assert candidate_from(data).line("f") == line


@pytest.mark.parametrize("options", [{"backend": lambda gm, inputs: gm}, {"partition": lambda joint, inputs: None}])
def test_what_has_no_name_is_no_data(options):
    assert Candidate(options).data() is None


def test_the_defaults_are_those_of_compile():
    parameters = inspect.signature(aotkit.compile).parameters.values()
    assert {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} == DEFAULTS


def test_options_that_all_candidates_have_are_in_the_line():
    recipe = TunedRecipe(abs, "f", Candidate({"backend": "nop"}), options={**DEFAULTS, "random": "torch"})
    assert recipe.line == "aotkit.compile(f, backend='nop', random='torch')"
