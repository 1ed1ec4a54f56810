"""A function's parameters: fit the arguments of calls to them, and name what is in these."""

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from aotkit.aot import pytree
from aotkit.arguments import Arguments, is_size
from aotkit.constants import is_constant
from aotkit.errors import EagerOnly

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Canonical = tuple[tuple[Any, ...], dict[str, Any]]


def bound_function(fn: Callable[..., Any]) -> types.FunctionType | None:
    """The function whose parameters the arguments of `fn` are fitted to, and whose defaults are filled in.

    Those of other callables go to them as they are: what their signature tells need not be what they do.
    """
    function = fn.__func__ if isinstance(fn, types.MethodType) else fn
    return function if isinstance(function, types.FunctionType) else None


class Parameters:
    """Bring the arguments of a call into canonical form, and name them."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._function = bound_function(fn)
        self._plain_count = -1
        if self._function is not None:
            self._read(self._function)
        try:
            known = list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError):  # a built-in
            known = []
        self._names = [p.name for p in known if p.kind in POSITIONAL]
        self._rest = next((p.name for p in known if p.kind is inspect.Parameter.VAR_POSITIONAL), "args")

    def _read(self, function: types.FunctionType) -> None:
        self._parts = function.__code__, function.__defaults__, function.__kwdefaults__
        # Without the attributes that may say that it has other parameters, which need not have its defaults.
        bare = types.FunctionType(function.__code__, {}, "", function.__defaults__, function.__closure__)
        bare.__kwdefaults__ = function.__kwdefaults__
        owner = getattr(self._fn, "__self__", None)
        signature = inspect.signature(bare if self._fn is function else types.MethodType(bare, owner))
        kinds = [p.kind for p in signature.parameters.values()]
        self._plain_count = len(kinds) if all(kind in POSITIONAL for kind in kinds) else -1
        self._bind = _binder(signature)
        # The same objects: they may be changed in place.
        self._bind.__defaults__, self._bind.__kwdefaults__ = function.__defaults__, function.__kwdefaults__

    def canonical(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Canonical:
        """Positional where possible, in the order of the parameters, with defaults filled in.

        Raises:
            EagerOnly: the arguments do not fit: Python shall say so.
        """
        function = self._function
        if function is None or (not kwargs and len(args) == self._plain_count):
            return args, kwargs
        code, defaults, keyword_defaults = self._parts
        if (
            function.__code__ is not code
            or function.__defaults__ is not defaults
            or function.__kwdefaults__ is not keyword_defaults
        ):
            self._read(function)
        try:
            return self._bind(*args, **kwargs)  # type: ignore[no-any-return]
        except TypeError as e:
            raise EagerOnly(f"the arguments do not fit its parameters: {e}") from None

    def names_of(self, arguments: Arguments) -> tuple[list[str], list[str]]:
        """Names of the tensors and of the objects among the arguments: `x`, `batch['image']`, `args[1]`."""
        tree = pytree.tree_unflatten(arguments.leaves, arguments.spec)
        try:
            named, _ = pytree.tree_flatten_with_path(tree, is_leaf=is_size)
        except ValueError:  # a container that was registered without names for its parts
            plain = [f"args[{i}]" for i in range(len(arguments.leaves))]
            return plain[: len(arguments.tensors)], plain[: len(arguments.objects)]
        tensors, objects = [], []
        for path, leaf in named:
            if isinstance(leaf, Tensor):
                tensors.append(self._name(path))
            elif not is_constant(leaf):
                objects.append(self._name(path))
        return tensors, objects

    def _name(self, path: Sequence[Any]) -> str:
        root, first, *rest = path
        if root.idx == 1:
            start = str(first.key)
        elif first.idx < len(self._names):
            start = self._names[first.idx]
        else:
            start = f"{self._rest}[{first.idx - len(self._names)}]"
        return start + str(pytree.keystr(tuple(rest)))


def _binder(signature: inspect.Signature) -> types.FunctionType:
    """A function with these parameters, whose defaults are yet to be set, from arguments to canonical ones.

    Python fits arguments to a function's parameters in a tenth of the time of `inspect`.
    """
    positional, keyword, bare = [], [], []
    for p in signature.parameters.values():
        bare.append(p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else None))
        if p.kind in POSITIONAL:
            positional.append(f"{p.name}, ")
        elif p.kind is p.VAR_POSITIONAL:
            positional.append(f"*{p.name}, ")
        else:
            keyword.append(f"**{p.name}" if p.kind is p.VAR_KEYWORD else f"{p.name!r}: {p.name}")
    source = f"def bind{inspect.Signature(bare)}: return ({''.join(positional)}), {{{', '.join(keyword)}}}"
    found: dict[str, types.FunctionType] = {}
    exec(source, found)
    return found["bind"]
