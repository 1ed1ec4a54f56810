"""What a function reads besides its arguments: closures, globals, attributes, the state of modules.

`find_captures` walks from the function (and from arguments that are objects) to every tensor and constant that its code
mentions. Tensors become inputs of the graph, so they are fetched again on every call; constants are baked into the
graph, so they are compared on every call. Both happen in one generated function, the guard.
"""

import types
from collections.abc import Sequence, Set
from typing import Any

from aotkit.capture.guards import GuardSource
from aotkit.capture.objects import is_trusted, package_of
from aotkit.capture.parameters import fitted_function
from aotkit.capture.walk import Codes, Walk
from aotkit.errors import EagerOnly
from aotkit.text import is_installed

# Code is read instruction by instruction: so many functions take some 50 ms.
MOST_PLAIN_FUNCTIONS = 200
Root = tuple[str, Any, str]  # an expression, the object that it stands for, and a name for people


def find_captures(
    source: GuardSource,
    roots: Sequence[Root],
    followed: Codes | None,
    mentioned: Set[str] = frozenset(),
    *,
    plain: bool = False,
) -> Walk:
    """Walk from `roots`, the function first, to tensors and slots as they are now, and what a guard finds and compares.

    Args:
        source: what a guard does before.
        followed: the code to look into; None: all of the user's.
        mentioned: names known to be mentioned by that code.
        plain: look into nothing but the user's own code, and not much of that.

    Raises:
        EagerOnly: the function reads something that can be neither fetched nor compared, or is not plain.
    """
    while True:
        look_into = _PlainCode() if plain else lambda function: None
        if isinstance(function := getattr(roots[0][1], "__func__", roots[0][1]), types.FunctionType):
            look_into(function)  # the first one is the best reason
        walk = Walk(mentioned, source.copy(), followed, fitted_function(roots[0][1]), look_into)
        for path, root, name in roots:
            walk.visit(root, path, name, None)
        if walk.mentioned == mentioned:
            return walk
        mentioned = walk.mentioned


class _PlainCode:
    """Refuses functions that an installed library brings, and too many of them."""

    def __init__(self) -> None:
        self._left = MOST_PLAIN_FUNCTIONS

    def __call__(self, function: types.FunctionType) -> None:
        if is_trusted(function):
            return
        if is_installed(function.__code__.co_filename):
            raise EagerOnly(f"{function.__qualname__!r} is code of the library {package_of(function)!r}")
        self._left -= 1
        if self._left < 0:
            raise EagerOnly(f"it reaches more than {MOST_PLAIN_FUNCTIONS} functions")
