"""The command line: `aotkit COMMAND`, or `python -m aotkit COMMAND`; `--help` lists the commands.

Exit codes: 0, all well; 1, a check failed: a compiled function differs from eager or does not compile, a plug-in does
not conform, a planted fault was missed; 2, wrong usage; 3, what was asked for cannot run here; 130, interrupted.

No module of this folder imports torch at its top: help and wrong usage should not wait for it.
"""

from aotkit.cli.dispatch import main

__all__ = ["main"]
