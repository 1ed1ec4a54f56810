"""Compilers and partitioners as Python source."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aotkit.culprit.parts import compiler_of
from aotkit.registry import BACKENDS, PARTITIONERS, get_backend, get_partitioner

if TYPE_CHECKING:
    from aotkit.capture import Recipe


@dataclass(frozen=True)
class PlugIn:
    """What a script has to find again in another process.

    Attributes:
        kind: "compiler" or "partitioner".
        what: it in words.
        function: itself.
        named: source that finds it by its name; None if an installed package provides no such name.
    """

    kind: str
    what: str
    function: Any
    named: str | None

    @property
    def code(self) -> str:
        """The body of a function that returns it."""
        if self.named is not None:
            return f"    return {self.named}"
        module, path = getattr(self.function, "__module__", ""), getattr(self.function, "__qualname__", "")
        if module not in ("", "__main__") and _found(module, path) is self.function:
            return f"    import {module}\n\n    return {module}.{path}"
        message = f"FILL IN: return {self.what} here"
        return f"    raise SystemExit({message!r})"


def compiler_plugin(recipe: "Recipe", attribute: str) -> PlugIn:
    """The compiler that the recipe's backend has in this attribute."""
    name, backend, function = recipe.backend_name, recipe.backend, compiler_of(recipe.backend, attribute)
    attribute = attribute if getattr(backend, attribute) is not None else "fw_compiler"
    is_named = name.startswith("dynamo:") or (
        BACKENDS.is_installed(name) and getattr(get_backend(name), attribute) == function
    )
    named = f"aotkit.get_backend({name!r}).{attribute}" if is_named else None
    return PlugIn("compiler", f"the graph compiler of backend {name!r}", function, named)


def partitioner_plugin(recipe: "Recipe") -> PlugIn:
    """The recipe's partitioner."""
    name, function = recipe.partition_name, recipe.partition
    is_named = PARTITIONERS.is_installed(name) and get_partitioner(name) == function
    named = f"aotkit.get_partitioner({name!r})" if is_named else None
    return PlugIn("partitioner", f"the partitioner {name!r}", function, named)


def _found(module: str, path: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
