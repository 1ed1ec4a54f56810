"""What fused modules share: a pattern, compiled once for all modules that are made with equal arguments.

A pattern is a plain function. It runs as it is inside of other compilers, under functorch transforms, and where no C++
compiler is found.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from aotkit.capture import cpp_compiler
from aotkit.compiler import compile
from aotkit.errors import UnavailableError, UnknownNameError
from aotkit.registry import OneBackend, get_backend

Function = Callable[..., Tensor]

# Of this process: what is compiled, by what it was compiled for.
_COMPILED: list[tuple[tuple[Any, ...], Function]] = []


class Fused(nn.Module):
    """A module that runs `pattern`.

    Attributes:
        options: of `compile`; backend and partition "auto" are the class's, where that backend can be had.
    """

    pattern: ClassVar[Callable[..., Any]]
    backend: ClassVar[str | list[OneBackend]] = "auto"
    partition: ClassVar[str]

    def __init__(self, options: dict[str, Any], *configuration: Any) -> None:
        super().__init__()
        self.options = options
        self._configuration = configuration
        self._function = self._shared()

    def run(self, *args: Any) -> Tensor:
        """What the pattern computes."""
        # Dynamo of torch 2.11 cannot follow the other.
        run: Function = type(self).pattern if torch.compiler.is_compiling() else self._function
        return run(*args)

    def _shared(self) -> Function:
        options = {"backend": "auto", "partition": "auto", **self.options}
        if options["partition"] == "auto":
            options["partition"] = self.partition
        if options["backend"] == "auto" and self.backend != "auto":
            with suppress(UnavailableError, UnknownNameError):
                get_backend(self.backend)
                options["backend"] = self.backend
        return function_of(type(self).pattern, self._configuration, options)

    # Copies share what is compiled, as they would not if it was one of their attributes.

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_function"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._function = self._shared()


def function_of(pattern: Function, configuration: tuple[Any, ...], options: dict[str, Any]) -> Function:
    """A pattern, compiled once for all that have the same configuration and options."""
    options = {"backend": "auto", **options}
    if options["backend"] == "auto" and cpp_compiler() is None:
        return pattern  # operator by operator, shared random numbers would be slower than eager's
    wanted = (pattern, configuration, options)
    for key, function in _COMPILED:
        if key == wanted:
            return function
    compiled: Function = compile(pattern, **options)
    _COMPILED.append((wanted, compiled))
    return compiled
