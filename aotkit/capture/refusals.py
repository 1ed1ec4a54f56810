"""Why a call is not compiled, though nothing is wrong: for what has asked to compile it, not for users."""


class EagerOnly(Exception):
    """A call cannot be compiled; the message says why.

    Attributes:
        final: whether no other way of capture could compile it.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class OwnError(Exception):
    """The function itself raised `error` on copies of its inputs."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error
