"""`aotkit backends` and `aotkit partitioners`."""

import argparse
import functools
import textwrap
from typing import Any

from aotkit.cli.usage import Commands, add_command, progress, show

WIDTH = 100


def add(commands: Commands) -> None:
    for kind in ("backends", "partitioners"):
        add_command(commands, kind, functools.partial(_list, kind), f"list the {kind}, and why one cannot run here")


def _list(kind: str, options: argparse.Namespace) -> int:
    progress()(f"loading torch and the {kind}")
    import torch

    from aotkit.capture import BEST, default_backend
    from aotkit.registry import backend_status, partitioner_status

    status = backend_status() if kind == "backends" else partitioner_status()
    data: dict[str, Any] = {"schema": 1, kind: entries(status)}
    text = status_text(status)
    if kind == "backends":
        chosen = {device: default_backend(device) for device in BEST if device != "cuda" or torch.cuda.is_available()}
        data["auto"] = {device: [*choice.names] for device, choice in chosen.items()}
        text = "\n\n".join([text, "\n".join(textwrap.fill(choice.why, WIDTH) for choice in chosen.values())])
    show(options, data, text)
    return 0


def entries(status: dict[str, str | None]) -> list[dict[str, Any]]:
    """Names with the reason why they cannot be used here, or None, as data."""
    return [{"name": name, "available": reason is None, "reason": reason} for name, reason in status.items()]


def status_text(status: dict[str, str | None]) -> str:
    """The same as lines, with the reasons below each other."""
    width = max(map(len, status), default=0) + 2
    return "\n".join(
        textwrap.fill(reason or "available", WIDTH, initial_indent=name.ljust(width), subsequent_indent=" " * width)
        for name, reason in status.items()
    )
