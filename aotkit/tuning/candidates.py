"""What may run a function: eager, or `compile` with options; as one line of Python, and as data."""

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aotkit.registry import AUTO, BACKENDS, PARTITIONERS, get_backend, name_of, named_backends
from aotkit.stages import regions

EAGER = "eager"
_LIMITED = re.compile(r"nx_min_cut\.(peak|budget)\((.+)\)")


@dataclass(frozen=True)
class Candidate:
    """One way to run a function.

    Attributes:
        options: of `compile`; None: the function runs as it is, in eager.
        instead: digest of a region -> the name of another backend that compiles it.
    """

    options: Mapping[str, Any] | None
    instead: Mapping[str, str] = field(default_factory=dict)

    @property
    def backend(self) -> Any:
        """As `compile` takes it, without what compiles regions instead."""
        return (self.options or {}).get("backend", AUTO)

    @property
    def listed(self) -> list[Any]:
        """The backends that share graphs."""
        return [*self.backend] if isinstance(self.backend, list | tuple) else [self.backend]

    def besides_partition(self) -> Hashable:
        """Equal for candidates that differ in nothing else. Backends without a registered name are what they are."""
        rest = {name: value for name, value in (self.options or {}).items() if name not in ("backend", "partition")}
        backends = [one if isinstance(one, str) else id(one) for one in self.listed]
        return tuple(backends), repr(sorted(rest.items()))

    @property
    def parts(self) -> int:
        """How much it consists of: nothing for eager, a backend, one more for each further one and for each option."""
        if self.options is None:
            return 0
        return len(self.listed) + len(self.instead) + len(self.options.keys() - {"backend"})

    def for_compile(self) -> dict[str, Any]:
        """The options of `compile`; not for eager."""
        found = dict(self.options or {})
        if self.instead:
            others = {digest: (name, get_backend(name)) for digest, name in self.instead.items()}
            found["backend"] = regions.shared(named_backends(self.listed), regions.Options(), others)
        return found

    @property
    def label(self) -> str:
        """What tables call it."""
        if self.options is None:
            return EAGER
        rest = {name: value for name, value in self.options.items() if name != "backend"}
        named = [name_of(value) if name == "partition" else f"{name}={value!r}" for name, value in rest.items()]
        apart = [f"{name} for {digest}" for digest, name in self.instead.items()]
        return " x ".join([", ".join([name_of(self.backend), *apart]), *named])

    def line(self, fn: str) -> str:
        """One line of Python that gives what runs, of a function called `fn`."""
        if self.options is None:
            return fn
        given = dict(self.options)
        texts = {name: _expression(name, value) for name, value in given.items()}
        if self.instead:
            names = ", ".join(map(_name, self.listed))
            texts["backend"] = f"aotkit.by_region({names}, instead={dict(self.instead)!r})"
        return f"aotkit.compile({', '.join([fn, *(f'{name}={text}' for name, text in texts.items())])})"

    def data(self) -> dict[str, Any] | None:
        """For JSON, and for `candidate_from` in another process; None where that knows something of it by no name."""
        if self.options is None:
            return {"options": None}
        options = dict(self.options)
        if "partition" in options:
            options["partition"] = name_of(options["partition"])
        names = [*self.listed, *self.instead.values()]
        partition = options.get("partition", AUTO)
        is_known = all(map(_is_installed, names)) and (
            partition == AUTO or PARTITIONERS.is_installed(partition) or _LIMITED.fullmatch(partition)
        )
        return {"options": options, "instead": dict(self.instead)} if is_known else None


def candidate_from(data: Mapping[str, Any]) -> Candidate:
    """The candidate of such data."""
    if data["options"] is None:
        return Candidate(None)
    options = dict(data["options"])
    if limited := _LIMITED.fullmatch(options.get("partition", AUTO)):
        from aotkit.partitioners import nx_min_cut

        kind, limit = limited.groups()
        options["partition"] = getattr(nx_min_cut, kind)(_limit(limit))
    return Candidate(options, data["instead"])


def candidates_of(given: Iterable[Any]) -> list[Candidate]:
    """What a user names: "eager", backends or lists of them, or dicts of options of `compile`."""
    return [_candidate(one) for one in given]


def _candidate(one: Any) -> Candidate:
    if isinstance(one, str) and one == EAGER:
        return Candidate(None)
    return Candidate(dict(one) if isinstance(one, Mapping) else {"backend": one})


def _is_installed(name: Any) -> bool:
    """Whether every process knows a backend of this name."""
    if not isinstance(name, str):
        return False
    return name == AUTO or BACKENDS.is_installed(name.rpartition(":")[2]) or name.startswith("dynamo:")


def _expression(option: str, value: Any) -> str:
    """A value of an option as Python has it, as far as it has a name."""
    if option == "backend":
        return f"[{', '.join(map(_name, value))}]" if isinstance(value, list | tuple) else _name(value)
    if option == "partition" and callable(value):
        name = name_of(value)
        return f"aotkit.partitioners.{name}" if _LIMITED.fullmatch(name) else name
    return repr(value)


def _name(backend: Any) -> str:
    return repr(backend) if isinstance(backend, str) else name_of(backend)


def _limit(text: str) -> int | float | str:
    if text[0] in "'\"":
        return text[1:-1]
    return float(text) if "." in text else int(text)
