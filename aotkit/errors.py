"""What can go wrong. Every message says what was asked, what was found, and what to do next."""

from typing import Any


class AotkitError(Exception):
    """Base class of every error that aotkit raises on purpose."""


class UnknownNameError(AotkitError, LookupError):
    """No backend or partitioner is registered under this name, or no conformance case has it."""


class DuplicateNameError(AotkitError, ValueError):
    """Two different objects claim one name."""


class UnavailableError(AotkitError, RuntimeError):
    """The name is registered, but this machine or installation cannot run it."""


class TraceError(AotkitError, RuntimeError):
    """The function cannot be captured as one graph that stays valid for later calls."""


class CompileError(AotkitError, RuntimeError):
    """A backend or partitioner raised, or returned something that is not its contract.

    Attributes:
        graph: what it was given; the message shows its code.
        reason: the message without that; None where there is no graph.
        operation: the name of the node that a backend does not take, if that is known: its region is made without it.
    """

    graph: Any = None
    reason: str | None = None
    operation: str | None = None


class BudgetError(CompileError):
    """No partition keeps within the memory that it was given; with `least` bytes there is one."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.least)


class MismatchError(AotkitError, AssertionError):
    """The compiled function's outputs, gradients or mutations differ from eager's."""


class RankError(AotkitError, RuntimeError):
    """Another rank of this process's group does not go on, is not there in time, or would run other graphs."""


class UnsupportedError(AotkitError, RuntimeError):
    """A compiled function was used in a way for which it has no graph, such as a second derivative."""


class EagerCallWarning(UserWarning):
    """A whole call ran uncompiled."""


class EagerFallbackWarning(EagerCallWarning):
    """Compilation failed and `on_error="eager"` made the function run uncompiled."""


class UndecidedWarning(UserWarning):
    """A check had no time, or no memory, to find out whether what differs from eager is rounding."""


class RecompilationWarning(UserWarning):
    """A function compiles again and again, for inputs that are different each time."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether something failed for want of memory, so that it may work the next time."""
    import torch  # messages of the command line do not wait for it

    while error is not None and not isinstance(error, MemoryError | torch.OutOfMemoryError):
        error = error.__cause__
    return error is not None
