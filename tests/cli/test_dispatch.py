"""The command line as a whole: how fast it starts, and what its exit codes mean."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aotkit
from aotkit import cli
from aotkit.cli.dispatch import exit_code, parser
from aotkit.cli.usage import UsageError

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = re.findall(r"(?m)^    ([a-z]+)(?: |$)", parser().format_help())
WITHOUT_TORCH = """
import json, sys
from aotkit.cli import main

try:
    code = main(json.loads(sys.argv[1]))
except SystemExit as e:
    code = e.code
print(code, "torch" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('["--help"]', 0),
        ('["--version"]', 0),
        ('["bench", "memory", "--help"]', 0),
        ('["partitions"]', 2),
        ('["view"]', 2),
        ('["view", "nowhere.json"]', 2),
    ],
)
def test_help_and_wrong_usage_do_not_wait_for_torch(arguments, code):
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, arguments], cwd=ROOT, text=True, capture_output=True)
    assert done.stderr.splitlines()[-1] == f"{code} False"


@pytest.mark.parametrize("command", [["view"], ["export", "--format", "dot"]])
def test_graphs_that_were_written_are_shown_without_torch(command, tmp_path):
    graphs = aotkit.extract(torch.sin, torch.ones(3))
    (tmp_path / "graphs.json").write_text(json.dumps(graphs.json()))
    arguments = json.dumps([*command, str(tmp_path / "graphs.json"), "-o", str(tmp_path / "output")])
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, arguments], cwd=ROOT, text=True, capture_output=True)
    assert done.stderr.splitlines()[-1] == "0 False"
    assert (tmp_path / "output").read_text()


def test_every_command_explains_itself_and_most_have_json(capsys):
    assert {
        "backends",
        "bench",
        "check",
        "demo",
        "doctor",
        "explain",
        "export",
        "faults",
        "partitioners",
        "view",
    } <= set(COMMANDS)
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            cli.main([command, "--help"])
        assert stopped.value.code == 0
        # `bench` has subjects, and `export` other formats.
        assert ("--json" in capsys.readouterr().out) == (command not in ("bench", "export"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (aotkit.MismatchError("differs"), 1),
        (aotkit.CompileError("failed"), 1),
        (aotkit.TraceError("breaks"), 1),
        (aotkit.UnknownNameError("what"), 2),
        (UsageError("no such file"), 2),
        (aotkit.UnavailableError("no such device"), 3),
    ],
)
def test_each_error_has_an_exit_code(error, code):
    assert exit_code(error) == code


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("command", ["check nop", "bench overhead", "bench memory", "bench patterns", "bench oslo"])
def test_a_device_that_is_missing_is_unavailable(command, capsys):
    assert cli.main([*command.split(), "--device", "cuda"]) == 3
    assert "--device cuda was asked for, but torch finds no CUDA device. Run without it" in capsys.readouterr().err


def test_an_interrupt_is_one_line_and_exit_code_130(tmp_path):
    (tmp_path / "slow.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "aotkit", "explain", "slow.py:f"]
    # As from a shell: a process whose parent ignores the signal would ignore it, too.
    program = f"import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv({command[0]!r}, {command!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE
    )
    with running:
        assert running.stderr.readline() == "ready\n"
        running.send_signal(signal.SIGINT)
        assert running.stderr.read() == "interrupted\n"
    assert running.returncode == 130


def test_the_package_loads_its_names_when_they_are_asked_for():
    program = """if True:
        import sys, aotkit
        assert "torch" not in sys.modules
        assert aotkit.__version__
        assert not hasattr(aotkit, "nothing_of_that_name")
        assert set(aotkit.__all__) <= set(dir(aotkit))
        assert all(getattr(aotkit, name) is not None for name in aotkit.__all__)
        assert aotkit.inspection.Graphs is aotkit.Graphs
        names = {}
        exec("from aotkit import *", names)
        assert names["compile"] is aotkit.compile
    """
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize("command", [["faults", "no such fault"], ["check", "no such backend"]])
def test_plugins_are_judged_anew(command, monkeypatch, capsys):
    monkeypatch.setenv("AOTKIT_KEEP", "1")
    assert cli.main(command) == 2
    assert os.environ["AOTKIT_KEEP"] == "0"
