"""Warnings, at the line of the user's that called into aotkit."""

import inspect
import warnings

from aotkit.errors import AotkitError, EagerCallWarning, EagerFallbackWarning


def warn_of_eager_call(name: str, reason: str) -> None:
    """Tell that a call runs uncompiled though nothing failed."""
    advice = "Change that, or leave it and ignore aotkit.EagerCallWarning; strict=True makes it an error."
    warn_user(f"{name!r} runs eagerly, as it would uncompiled: {reason}. {advice}", EagerCallWarning)


def warn_of_fallback(name: str, error: AotkitError) -> None:
    """Tell that a function runs uncompiled."""
    warn_user(f"{name!r} runs eagerly: {error}", EagerFallbackWarning)


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the line that called into aotkit and torch."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("aotkit", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level + 1)
