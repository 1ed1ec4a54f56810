"""What the command does with models that end badly, and what it makes of what it found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import report, zoo
from tests.models.measure import Measured, first_sentence
from tests.models.processes import Row

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.sweep
def test_a_model_that_crashes_or_never_ends_costs_only_itself():
    program = """if True:
        import json, os, signal
        from tests.models import processes, zoo

        zoo.add("crash", "torch", lambda: os.kill(os.getpid(), signal.SIGSEGV))
        zoo.add("endless", "torch", signal.pause)
        zoo.add("absent", "torch", signal.pause, "no_such_library")
        found = {}
        for name, limit in {"mlp": 600.0, "crash": 600.0, "endless": 1.0, "absent": 1.0}.items():
            (found[name],) = processes.rows([zoo.steps()[name]], {"backend": "nop"}, limit, jobs=2)
        ours = [found["mlp"].ours.outcome, found["crash"].ours.outcome]
        print(json.dumps([*ours, found["endless"].theirs.outcome, found["absent"].missing]))
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    assert json.loads(done.stdout) == ["whole", "crashed", "no end", "no_such_library not installed"]


def row(ours, theirs):
    return Row(zoo.Step("model", "torch", lambda: None), None, ours, theirs)


RIGHT = Measured("whole", check=True, difference=1e-6, seconds=1.0)
WRONG = [
    Measured("eager", ["it reads an iterator"], difference=0.0),
    Measured("refused", ["TraceError: no"], error="TraceError: no"),
    Measured("whole", check=True, difference=float("inf")),
    Measured("2 graphs", check=False, difference=0.0),
    Measured("3 graphs", check=True, difference=0.0, zeros=1),
    Measured("no end", ["not done in 1 s"]),
]


@pytest.mark.parametrize("measured", WRONG, ids=lambda m: m.outcome)
def test_what_torch_compile_alone_takes_is_told(measured):
    behind = row(measured, RIGHT)
    assert report.is_behind(behind)
    assert "torch.compile alone takes `model`" in report.page([behind], "command")
    assert not report.is_behind(row(RIGHT, RIGHT))
    assert not report.is_behind(row(measured, Measured("refused", ["RuntimeError: no"])))


def test_the_page_is_written_between_its_markers(tmp_path, monkeypatch):
    page = tmp_path / "models.md"
    page.write_text(report.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(report, "PAGE", page)
    for reason in ("a|b", "second"):
        report.write([row(Measured("refused", [reason]), RIGHT)], "command")
    before, _, rest = page.read_text(encoding="utf-8").partition(report.BEGIN)
    assert before == report.PAGE.read_text(encoding="utf-8").partition(report.BEGIN)[0]
    assert rest.count("| model | torch | refused |") == 1
    assert "second" in rest


def test_the_page_names_no_folders_of_the_machine():
    where = ["/home/me/env/lib/python3.11/site-packages/timm/layers.py:3", "/opt/lib/python3.11/inspect.py:4"]
    page = report.page([row(Measured("2 graphs", [f"a at {path}" for path in where]), RIGHT)], "command")
    assert "a at timm/layers.py:3; a at inspect.py:4" in page


def test_a_reason_is_one_sentence_of_an_error():
    text = "TraceError: 'f' reads x.y at\n  model.py:3, which differs. Use capture='dynamo'."
    assert first_sentence(text) == "TraceError: 'f' reads x.y at model.py:3, which differs."
