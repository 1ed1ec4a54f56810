"""`aotkit doctor`: what it finds, and that it tries a compilation."""

import json
import types

import pytest
import torch

import aotkit
from aotkit.capture import BEST
from aotkit.cli import doctor, main


def report(capsys):
    code = main(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    return code, document, {finding["subject"]: finding for finding in document["findings"]}


def test_it_tells_what_there_is_and_tries_the_default_backend(capsys, monkeypatch):
    monkeypatch.setitem(BEST, "cpu", [["nop"]])
    code, document, found = report(capsys)
    assert (code, document["usable"]) == (0, True)
    assert found["torch"] == {"subject": "torch", "found": torch.__version__, "problem": None}
    assert {"python", "C++ compiler", "triton", "matplotlib", "cache of aotkit", "cache of inductor"} <= set(found)
    assert [entry["name"] for entry in document["backends"]] == aotkit.list_backends()
    assert [entry["name"] for entry in document["partitioners"]] == aotkit.list_partitioners()
    assert [(trial["backend"], trial["problem"]) for trial in document["trials"]][:1] == [("nop", None)]
    assert main(["doctor"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"torch {torch.__version__} " in text
    assert "The default backend 'nop' on cpu, a small function with gradients: compiled, ran and equals eager" in text


def test_a_default_backend_that_does_not_work_makes_it_exit_with_three(capsys, monkeypatch):
    def wrong(gm, example_inputs):
        return lambda *inputs: [x if x is None else x * 2 for x in gm(*inputs)]

    aotkit.register_backend("wrong", wrong)
    monkeypatch.setitem(BEST, "cpu", [["wrong"]])
    try:
        code, document, _ = report(capsys)
        assert (code, document["usable"]) == (3, False)
        assert document["trials"][0]["problem"].startswith("MismatchError: ")
        assert main(["doctor"]) == 3
        assert "failed" in capsys.readouterr().out
    finally:
        aotkit.unregister_backend("wrong")


@pytest.mark.parametrize(
    ("version", "ranges", "is_inside"),
    [
        ("2.13.0+cpu", ">=2.11,<2.14", True),
        ("2.11.0", ">=2.11,<2.14", True),
        ("2.11", "<2.14,>=2.11.0", True),
        ("2.14.0a0+git123", ">=2.11,<2.14", False),
        ("2.9.1", ">=2.11,<2.14", False),
        ("2.12.3", "!=2.12.3", False),
        ("3.11.7", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version, ranges, is_inside):
    assert doctor.within(version, ranges) == is_inside


def test_a_version_of_torch_outside_of_the_supported_ones_is_a_problem(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.1")
    (problem,) = [finding.problem for finding in doctor.findings() if finding.subject == "torch"]
    assert ">=2.11" in problem


def test_a_folder_that_cannot_be_written_and_a_missing_compiler_are_problems(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    found = {finding.subject: finding for finding in doctor.findings()}
    assert found["cache of aotkit"].problem == f"{tmp_path / 'file'} cannot be written to"
    assert found["cache of inductor"].problem is None
    assert found["C++ compiler"] == doctor.Finding(
        "C++ compiler", "no-such-compiler -O2", "the variable CXX names no program"
    )
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("aotkit.capture.cpp_compiler", lambda: None)
    (problem,) = [finding.problem for finding in doctor.findings() if finding.subject == "C++ compiler"]
    assert "'nop' is the default" in problem


def test_devices_and_why_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "_first_line", lambda *command: None)
    found = {finding.subject: finding for finding in doctor.findings()}
    assert found["CUDA"] == doctor.Finding("CUDA", "13.0", "there is no NVIDIA driver")
    device = types.SimpleNamespace(name="Some GPU", major=9, minor=0, total_memory=140 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: device)
    found = {finding.subject: finding for finding in doctor.findings()}
    assert found["CUDA"].problem is None
    assert found["cuda:0"].found == "Some GPU, compute capability 9.0, 140 GiB"


def test_why_calls_in_cpp_are_off_is_told(monkeypatch):
    monkeypatch.setenv("AOTKIT_NATIVE", "0")
    (found,) = [finding for finding in doctor.findings() if finding.subject == "calls in C++"]
    assert (found.found, found.problem) == ("off", "AOTKIT_NATIVE=0 keeps to Python")
