"""The arguments of a call: fitted to a function's parameters, taken apart into tensors and all else, and named."""

import inspect
import itertools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aotkit.capture.objects import constant_key, is_constant
from aotkit.capture.refusals import EagerOnly
from aotkit.torch_private.dispatch import pytree, pytree_children

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Canonical = tuple[tuple[Any, ...], dict[str, Any]]


class Arguments(NamedTuple):
    """One call's arguments, taken apart.

    Attributes:
        leaves: everything in args and kwargs, flat.
        spec: how to put the leaves together again.
        tensors: the leaves that are tensors.
        objects: the leaves that are neither tensors nor constants: modules, functions, dataclasses.
        key: equal for calls that differ in tensors and objects only.
    """

    leaves: list[Any]
    spec: Any
    tensors: list[Tensor]
    objects: list[Any]
    key: Hashable

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with other tensors in the places of these."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs


def flatten(args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
    """Take canonical arguments apart.

    Raises:
        EagerOnly: something else traces the call.
    """
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs), is_leaf=is_size)
    tensors: list[Tensor] = []
    objects: list[Any] = []
    key: list[Hashable] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            key.append(Tensor)
        elif is_constant(leaf):
            key.append(constant_key(leaf))
        elif isinstance(leaf, torch.fx.Proxy):
            raise EagerOnly("torch.fx is tracing it", final=True)
        else:
            objects.append(leaf)
            key.append(object)
    return Arguments(leaves, spec, tensors, objects, (spec.num_leaves, structure_of(spec), tuple(key)))


def is_size(value: Any) -> bool:
    """Whether a value is a torch.Size of plain numbers, which stays whole."""
    return isinstance(value, torch.Size) and all(type(n) is int for n in value)


def structure_of(spec: Any) -> Hashable:
    """A tree's structure, exactly: the order of dict keys counts, and {1: x} is neither {1.0: x} nor {True: x}."""
    if spec.type is None:  # a leaf
        return None
    return spec.type, _hashable(spec.context), *map(structure_of, pytree_children(spec))


def _hashable(context: Any) -> Hashable:
    if isinstance(context, list | tuple):
        return tuple(map(_hashable, context))
    if isinstance(context, dict):
        return tuple((_hashable(k), _hashable(v)) for k, v in context.items())
    if type(context) is str or isinstance(context, type | types.BuiltinFunctionType | types.FunctionType):
        return context
    if is_constant(context):
        return constant_key(context)
    raise EagerOnly(f"an argument's container holds a {type(context).__name__}, which cannot be compared")


def fitted_function(fn: Callable[..., Any]) -> types.FunctionType | None:
    """The function whose parameters arguments of `fn` are fitted to, so that all its defaults are given in each call.

    Those of other callables go to them as they are: what their signature tells need not be what they do.
    """
    function = fn.__func__ if isinstance(fn, types.MethodType) else fn
    return function if isinstance(function, types.FunctionType) else None


class _Fit(NamedTuple):
    """What fits arguments to a function as it was.

    Attributes:
        code: of that function.
        plain: the number of arguments without keywords to which nothing has to be added; -1: any may need more.
        bind: a function with its parameters and defaults, from arguments to canonical ones.
    """

    code: types.CodeType
    plain: int
    bind: Any  # a types.FunctionType, which mypy would take for a method


class Parameters:
    """Bring the arguments of a call into canonical form, and name them."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._function = fitted_function(fn)
        self._owner = (fn.__self__,) if isinstance(fn, types.MethodType) else ()
        self._fit: _Fit | None = None  # replaced as a whole: other threads may read it

    def canonical(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Canonical:
        """Positional where possible, in the order of the parameters, with defaults filled in.

        Raises:
            EagerOnly: the arguments do not fit: Python shall say so.
        """
        function = self._function
        if function is None:
            return args, kwargs
        fit = self._fit
        if fit is not None and function.__code__ is fit.code and len(args) == fit.plain and not kwargs:
            return args, kwargs
        try:
            if (
                fit is None
                or function.__code__ is not fit.code
                or function.__defaults__ is not fit.bind.__defaults__
                or function.__kwdefaults__ is not fit.bind.__kwdefaults__
            ):
                fit = self._fit = _fit_of(function, len(self._owner))
            args, kwargs = fit.bind(*self._owner, *args, **kwargs)
        except (SyntaxError, TypeError) as e:  # the first: code that was made with names that Python does not allow
            raise EagerOnly(f"the arguments do not fit its parameters: {e}", final=True) from None
        return args[len(self._owner) :], kwargs

    def names_of(self, arguments: Arguments) -> tuple[list[str], list[str]]:
        """Names of the tensors and of the objects among the arguments: `x`, `batch['image']`, `args[1]`."""
        tree = pytree.tree_unflatten(arguments.leaves, arguments.spec)
        try:
            named, _ = pytree.tree_flatten_with_path(tree, is_leaf=is_size)
        except ValueError:  # a container that was registered without names for its parts
            plain = [f"args[{i}]" for i in range(len(arguments.leaves))]
            return plain[: len(arguments.tensors)], plain[: len(arguments.objects)]
        positional, rest = self._positional_names()
        tensors, objects = [], []
        for path, leaf in named:
            if isinstance(leaf, Tensor):
                tensors.append(_name(path, positional, rest))
            elif not is_constant(leaf):
                objects.append(_name(path, positional, rest))
        return tensors, objects

    def _positional_names(self) -> tuple[Sequence[str], str]:
        """The names of the positional parameters, and of the one that takes all further arguments."""
        if self._function is not None:
            positional, _, rest, _ = _names_in(self._function.__code__)
            if own := positional[len(self._owner) :]:
                return own, next(iter(rest), "args")
        try:
            known = list(inspect.signature(self._fn).parameters.values())  # perhaps of what it wraps
        except Exception:  # a built-in, or a signature of the user's that cannot be had
            known = []
        rest = [p.name for p in known if p.kind is inspect.Parameter.VAR_POSITIONAL]
        return [p.name for p in known if p.kind in POSITIONAL], next(iter(rest), "args")


def _name(path: Sequence[Any], positional: Sequence[str], rest: str) -> str:
    root, first, *inner = path
    if root.idx == 1:
        start = str(first.key)
    elif first.idx < len(positional):
        start = positional[first.idx]
    else:
        start = f"{rest}[{first.idx - len(positional)}]"
    return start + str(pytree.keystr(tuple(inner)))


def _fit_of(function: types.FunctionType, given: int) -> _Fit:
    """What fits further arguments to a function that is given so many first.

    Python fits arguments to a function's parameters in a tenth of the time of `inspect`.
    """
    code = function.__code__
    positional, keyword, rest, more = _names_in(code)
    starred, doubly = [f"*{name}" for name in rest], [f"**{name}" for name in more]
    heading = [*positional, *(starred or ["*"] * bool(keyword)), *keyword, *doubly]
    if code.co_posonlyargcount:
        heading.insert(code.co_posonlyargcount, "/")
    results = [f"{name}, " for name in (*positional, *starred)]
    pairs = [*(f"{name!r}: {name}" for name in keyword), *doubly]
    found: dict[str, types.FunctionType] = {}
    exec(f"def bind({', '.join(heading)}): return ({''.join(results)}), {{{', '.join(pairs)}}}", found)
    bind = types.FunctionType(found["bind"].__code__, {}, function.__name__, function.__defaults__)
    # The same dict: it may be changed in place.
    bind.__kwdefaults__, bind.__qualname__ = function.__kwdefaults__, function.__qualname__
    plain = -1 if keyword or rest or more else len(positional) - given
    return _Fit(code, plain, bind)


def _names_in(code: types.CodeType) -> Sequence[Sequence[str]]:
    """A function's parameters: positional ones, those of keywords, and at most one that takes the rest of each kind."""
    flags = code.co_flags
    counts = (
        code.co_argcount,
        code.co_kwonlyargcount,
        bool(flags & inspect.CO_VARARGS),
        bool(flags & inspect.CO_VARKEYWORDS),
    )
    names = iter(code.co_varnames)
    return [list(itertools.islice(names, count)) for count in counts]
