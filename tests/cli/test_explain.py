"""`aotkit explain FILE.py:function`: what it prints, and what it says where a file is not as it should be."""

import json

import pytest

import aotkit
from aotkit.cli import main

FILE = """
import torch
import aotkit
from helpers import factor

print("imported")

def loss(x):
    return (x * factor).sin().sum()

def example_inputs():
    return [torch.ones(3, requires_grad=True)]

model = torch.nn.Linear(3, 2)
compiled = aotkit.compile(model, backend="nop")
loss.nested = loss
own = lambda x, y: x + y
own.example_inputs = (torch.ones(2), torch.ones(2))
two = (1, 2)
number = 3

class Model(torch.nn.Module):
    pass

def fails(x):
    return x @ torch.ones(7)

def failing():
    raise LookupError("no data here")

if __name__ == "__main__":
    raise SystemExit("this is for python FILE.py")
"""


@pytest.fixture
def explain(tmp_path, monkeypatch, capsys):
    """Runs the command on FILE: exit code, standard output, standard error."""
    (tmp_path / "train.py").write_text(FILE)
    (tmp_path / "helpers.py").write_text("factor = 2.0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # restores sys.path

    def run(target, *options):
        try:
            code = main(["explain", target, *options])
        except SystemExit as e:
            code = e.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("name", "kernel"), [("loss", "sin"), ("loss.nested", "sin"), ("model", "addmm"), ("own", "add")]
)
def test_a_function_or_module_is_explained(explain, name, kernel):
    code, out, err = explain(f"train.py:{name}", "--backend", "nop")
    assert code == 0
    assert "with backend 'nop' and partition 'min_cut'" in out
    assert f" aten.{kernel}.default " in out or f" aten.{kernel}.Tensor " in out
    assert "imported" in err
    assert "imported" not in out


def test_colours_go_by_where_the_text_goes(explain, monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert "\x1b" not in explain("train.py:own", "--backend", "nop")[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert explain("train.py:own", "--backend", "nop")[1].startswith("\x1b[1m")


def test_json_and_a_page(explain, tmp_path):
    code, out, _ = explain("train.py:compiled", "--json", "-o", "page.html")
    assert code == 0
    assert [k["name"] for k in json.loads(out)["launched"]["kernels"]].index("aten.addmm.default") == 0
    assert "aten.addmm.default" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("train.py", "FILE.py:function is needed, such as train.py:loss, not 'train.py'"),
        ("missing.py:loss", "there is no file 'missing.py'"),
        ("helpers.txt:loss", "'helpers.txt' is no Python file"),
        ("train.py:los", "train.py has no 'los'. It has Model, compiled, example_inputs, failing, fails"),
        ("train.py:Model", "'Model' in train.py is a class: make an instance"),
        ("train.py:number", "'number' in train.py is of type int, neither a function nor a module"),
        ("train.py:loss --inputs two", "loss(x) does not take its 2 inputs: too many positional arguments"),
        ("train.py:loss --inputs number", "the inputs 'number' in train.py are of type int, not a tuple"),
        ("train.py:loss --inputs one", "train.py has no 'one'"),
        ("train.py:loss --inputs failing", "train.py:29: LookupError: no data here"),
        ("train.py:fails --backend nop", "train.py:26: RuntimeError: "),
        ("train.py:compiled --backend nop", "'compiled' is compiled already: leave out --backend"),
        ("helpers.py:factor", "'factor' in helpers.py is of type float"),
        ("broken.py:loss", "broken.py:2: SyntaxError: "),
        ("empty.py:loss", "empty.py has no 'example_inputs': a tuple of arguments"),
        ("train.py:loss --backend nopp", "Did you mean 'nop'?"),
        ("train.py:loss -o nowhere/x.html", "nowhere/x.html cannot be written"),
    ],
)
def test_wrong_usage_says_what_is_missing(explain, tmp_path, arguments, says):
    (tmp_path / "helpers.txt").write_text("loss")
    (tmp_path / "broken.py").write_text("x = 1\ndef loss(:\n")
    (tmp_path / "empty.py").write_text("def loss(x):\n    return x\n")
    code, out, err = explain(*arguments.split())
    assert (code, out) == (2, "")
    assert says in err


def test_a_wrong_backend_fails_the_check_and_an_absent_one_is_unavailable(explain):
    def wrong(gm, example_inputs):
        return lambda *inputs: [x * 2 if x.is_floating_point() else x for x in gm(*inputs)]

    aotkit.register_backend("wrong", wrong)
    aotkit.register_backend("absent", aotkit.Backend(wrong, unavailable=lambda: "no fan."))
    try:
        code, _, err = explain("train.py:loss", "--backend", "wrong")
        assert code == 1
        assert "differs" in err
        assert explain("train.py:loss", "--backend", "absent")[0] == 3
    finally:
        aotkit.unregister_backend("wrong")
        aotkit.unregister_backend("absent")
