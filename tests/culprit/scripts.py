"""Run scripts in a fresh process, with a plug-in that it can find."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Runs each of the given scripts as a program, and prints what it exits with.
RUN_EACH = """
import runpy, sys
for path in sys.argv[1:]:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as e:
        print("exit", e.code)
"""


def exits(paths, plugin):
    """What programs exit with that run in a fresh process, and know the plug-in."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(plugin), str(ROOT)])}
    command = [sys.executable, "-c", RUN_EACH, *map(str, paths)]
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("exit")]


@contextmanager
def installed(folder, monkeypatch, module, source, entry_points):
    """For the time being, a module in a folder, as an installed package has it."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop(module, None)
