"""Names -> backends and partitioners.

Two sources, looked up in this order: objects registered in this process with `register_backend` and
`register_partitioner`, then the entry points of installed packages. aotkit's own built-ins are entry points too
(pyproject.toml); nothing is imported until its name is asked for.
"""

import functools
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Generic, TypeVar, overload

from aotkit.errors import AotkitError, DuplicateNameError, UnavailableError, UnknownNameError
from aotkit.interfaces import Backend, GraphCompiler, Partitioner
from aotkit.text import nearest

AUTO, AUTOTUNE = "auto", "autotune"  # no names: `compile` chooses
T = TypeVar("T")
AnyBackend = Backend | GraphCompiler
OneBackend = str | AnyBackend
BackendSpec = OneBackend | Sequence[OneBackend]


class Registry(Generic[T]):
    """One kind of plug-in, by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.group = f"aotkit.{kind}s"
        self._local: dict[str, T] = {}

    def names(self) -> list[str]:
        """All names, sorted. Imports nothing."""
        return sorted({*self._local, *_installed(self.group, _places()).names})

    def register(self, name: str, obj: T) -> None:
        """Add `obj` for this process. The same function again (a notebook cell run twice) replaces itself."""
        if not re.fullmatch("[a-z0-9_]+", name):
            raise ValueError(f"{self.kind} name {name!r} must consist of lower-case letters, digits and underscores.")
        if name in (AUTO, AUTOTUNE):
            raise ValueError(f"{self.kind} name {name!r} leaves the choice to aotkit. Choose another name.")
        _plugin(self.kind, obj)
        old, points = self._local.get(name), self._points(name)
        taken, more = _origins(points), ""
        if old is not None:
            taken, more = _owner(old), f", or call unregister_{self.kind}({name!r}) first"
        if taken and (old is None or _identity(old) != _identity(obj)):
            raise DuplicateNameError(
                f"{self.kind} {name!r} cannot be {_owner(obj)}: it is already {taken}. Choose another name{more}."
            )
        self._local[name] = obj

    def unregister(self, name: str) -> None:
        """Forget an object registered in this process; installed packages keep their names."""
        if name not in self._local:
            if points := self._points(name):
                raise UnknownNameError(
                    f"{self.kind} {name!r} was not registered in this process: it is {_origins(points)}. "
                    "Uninstall that package to remove it."
                )
            raise self._unknown(name)
        del self._local[name]

    def lookup(self, name: str) -> T:
        """The object of this name; imports the plug-in that provides it."""
        if name in self._local:
            return self._local[name]
        match self._points(name):
            case []:
                raise self._unknown(name)
            case [point]:
                return self._load(point)
            case points:
                raise DuplicateNameError(
                    f"{self.kind} {name!r} is provided twice: {_origins(points)}. Uninstall all but one."
                )

    def is_installed(self, name: str) -> bool:
        """Whether an installed package provides this name, so that every process knows it."""
        return name not in self._local and bool(self._points(name))

    def _points(self, name: str) -> list[EntryPoint]:
        return list(_installed(self.group, _places()).select(name=name))

    def _load(self, point: EntryPoint) -> T:
        try:
            with warnings.catch_warnings():
                # What a plug-in imports may use deprecated names; that is not its user's business.
                warnings.simplefilter("ignore", DeprecationWarning)
                found: T = _plugin(self.kind, point.load())
                return found
        except Exception as e:
            raise UnavailableError(
                f"{self.kind} {point.name!r} ({_origins([point])}) is broken: importing it raised "
                f"{type(e).__name__}: {e}. Repair or uninstall that package."
            ) from e

    def _unknown(self, name: str) -> UnknownNameError:
        names = self.names()
        if not names:
            return UnknownNameError(
                f"no {self.kind} is registered at all: aotkit is imported but not installed. "
                "Run `pip install -e .` in its checkout."
            )
        return UnknownNameError(
            f"no {self.kind} is named {name!r}.{nearest(name, names)} Registered: {', '.join(names)}."
        )


@functools.lru_cache(maxsize=2)  # groups
def _installed(group: str, places: tuple[tuple[str, int], ...]) -> EntryPoints:
    """All entry points of a group. To read them takes 10 ms, a tenth of what compiling a small function takes.

    Args:
        places: as `_places` gives them; what is found depends on nothing else.
    """
    return entry_points(group=group)


def _places() -> tuple[tuple[str, int], ...]:
    """Where packages are looked for, and when something was last installed there."""
    found = []
    for place in sys.path:
        with suppress(OSError):
            found.append((place, os.stat(place or ".").st_mtime_ns))
    return tuple(found)


def _function(obj: Any) -> Any:
    return obj.fw_compiler if isinstance(obj, Backend) else obj


def _identity(obj: Any) -> Any:
    """Equal for a function and its redefinition, different for two functions."""
    obj = _function(obj)
    named = obj if hasattr(obj, "__qualname__") else type(obj)
    # Lambdas share one name, so their code has to tell them apart.
    code = getattr(obj, "__code__", None) if named.__qualname__.endswith("<lambda>") else None
    return named.__module__, named.__qualname__, code and (code.co_code, code.co_consts, code.co_names)


def _owner(obj: Any) -> str:
    module, qualname, _ = _identity(obj)
    return f"{module}.{qualname}"


def _origins(points: list[EntryPoint]) -> str:
    return " and ".join(f"{p.value} of package {p.dist.name if p.dist else 'unknown'}" for p in points)


BACKENDS: Registry[AnyBackend] = Registry("backend")
PARTITIONERS: Registry[Partitioner] = Registry("partitioner")


def list_backends() -> list[str]:
    """Names that `compile(backend=...)` takes; `backend_status` says which of them run here."""
    return BACKENDS.names()


def list_partitioners() -> list[str]:
    """Names that `compile(partition=...)` takes."""
    return PARTITIONERS.names()


def backend_status() -> dict[str, str | None]:
    """For each backend None if it can run here, else the reason why not. Imports every plug-in."""
    return {name: _problem(get_backend, name) for name in list_backends()}


def partitioner_status() -> dict[str, str | None]:
    """For each partitioner None if it can be used, else the reason why not. Imports every plug-in."""
    return {name: _problem(get_partitioner, name) for name in list_partitioners()}


def _problem(get: Callable[[str], object], name: str) -> str | None:
    try:
        get(name)
    except AotkitError as e:
        return str(e)
    return None


B = TypeVar("B", bound=AnyBackend)
Q = TypeVar("Q", bound=Partitioner)


@overload
def register_backend(name: str, backend: B) -> B: ...
@overload
def register_backend(name: str) -> Callable[[B], B]: ...
def register_backend(name: str, backend: Any = None) -> Any:
    """Register a graph compiler or a `Backend` under `name` for this process.

    `register_backend("mine", compiler)`, or `@register_backend("mine")` above a graph compiler.

    Raises:
        DuplicateNameError: something else has that name.
    """
    return _register(BACKENDS, name, backend)


@overload
def register_partitioner(name: str, partition: Q) -> Q: ...
@overload
def register_partitioner(name: str) -> Callable[[Q], Q]: ...
def register_partitioner(name: str, partition: Any = None) -> Any:
    """Register a partitioner under `name` for this process, as call or as decorator, like `register_backend`."""
    return _register(PARTITIONERS, name, partition)


def _register(registry: Registry[Any], name: str, obj: Any) -> Any:
    if obj is None:
        return lambda obj: _register(registry, name, obj)
    registry.register(name, obj)
    return obj


def unregister_backend(name: str) -> None:
    """Forget a backend that was registered in this process."""
    BACKENDS.unregister(name)


def unregister_partitioner(name: str) -> None:
    """Forget a partitioner that was registered in this process."""
    PARTITIONERS.unregister(name)


def get_backend(spec: BackendSpec) -> Backend:
    """What `backend=` means: a registered name, `dynamo:NAME`, a `Backend`, a graph compiler, or a list of such.

    A backend that takes only parts of graphs comes as one that takes whole graphs, and leaves the rest as it is; so
    does a list, of which each operation goes to the first backend that takes it: see `by_region`.

    Raises:
        UnknownNameError: there is no such name; the message suggests the nearest.
        UnavailableError: this machine cannot run it, or its package is broken.
        ValueError: a list is empty, or an entry of it gets nothing.
    """
    several = named_backends(spec if isinstance(spec, list | tuple) else [spec])  # type: ignore[list-item]
    if len(several) == 1 and several[0][1].declines is None:
        return several[0][1]
    from aotkit.stages import regions

    return regions.shared(several, regions.Options())


def named_backends(specs: Sequence[OneBackend]) -> list[tuple[str, Backend]]:
    """Each backend with its name, as it is: those that take parts of graphs only get no whole ones.

    Raises:
        UnknownNameError, UnavailableError: as `get_backend`.
    """
    return [(name_of(spec), _one_backend(spec)) for spec in specs]


def _one_backend(spec: OneBackend) -> Backend:
    found = _lookup_backend(spec) if isinstance(spec, str) else spec
    found = _plugin("backend", found)
    backend = found if isinstance(found, Backend) else Backend(found)
    try:
        reason = backend.unavailable()
    except Exception as e:
        reason = f"its `unavailable` raised {type(e).__name__}: {e}"
    if reason is not None:
        raise UnavailableError(f"backend {name_of(spec)!r} cannot run here: {reason}")
    return backend


def _lookup_backend(name: str) -> AnyBackend:
    if name in (AUTO, AUTOTUNE):
        raise UnknownNameError(f"backend {name!r} leaves the choice to aotkit: give it to `compile`, by itself.")
    prefix, _, inner = name.partition(":")
    if prefix == "dynamo" and inner:
        from aotkit.torch_private.dynamo import dynamo_backend

        try:
            return dynamo_backend(inner)
        except LookupError as e:
            raise UnknownNameError(str(e)) from None
    if prefix == "cudagraphs" and inner:
        from aotkit.stages import with_cuda_graphs

        return with_cuda_graphs(get_backend(inner))
    return BACKENDS.lookup(name)


def get_partitioner(spec: str | Partitioner) -> Partitioner:
    """What `partition=` means: a registered name or a partitioner.

    Raises:
        UnknownNameError: there is no such name; the message suggests the nearest.
        UnavailableError: its package is broken.
    """
    partition: Partitioner = _plugin("partitioner", PARTITIONERS.lookup(spec) if isinstance(spec, str) else spec)
    return partition


def _plugin(kind: str, obj: Any) -> Any:
    if not (callable(obj) or (kind == "backend" and isinstance(obj, Backend))):
        raise TypeError(f"{kind} must be a registered name or a callable, not {obj!r}.")
    return obj


def name_of(spec: Any) -> str:
    """How messages call a backend or partitioner: its registered name, or its function's."""
    if isinstance(spec, str):
        return spec
    if isinstance(spec, list | tuple):
        return ", ".join(map(name_of, spec))
    obj = _function(spec)
    return str(getattr(obj, "__name__", type(obj).__name__))
