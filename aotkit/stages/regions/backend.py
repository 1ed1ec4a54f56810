"""Backends that take parts of a graph, as one backend: each operation goes to the first that takes it."""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from aotkit.interfaces import Backend, Boxed, Decompositions, GraphCompiler
from aotkit.stages.own_operators import decompositions_of
from aotkit.stages.regions.division import Choice, Options, RegionCompiler
from aotkit.stages.regions.kept import Load, load

_WITHIN: ContextVar[frozenset[Any]] = ContextVar("_WITHIN", default=frozenset())  # operators that rules are applied to


def options_of(min_region_size: int, horizontal: bool | None, skip_ops: Sequence[Any], strict: bool) -> Options:
    """The options of `aotkit.by_region`, examined."""
    if isinstance(min_region_size, bool) or not isinstance(min_region_size, int) or min_region_size < 1:
        raise ValueError(f"min_region_size must be a positive number of operations, not {min_region_size!r}.")
    if isinstance(skip_ops, str):
        raise TypeError(f"skip_ops must be a list of operators, such as [{skip_ops!r}], not {skip_ops!r}.")
    return Options(min_region_size, horizontal, frozenset(map(_operator, skip_ops)), strict)


def _operator(given: Any) -> str:
    """`aten.gelu` or `aten.gelu.default`, as graphs call it."""
    name = str(given)
    found: Any = torch.ops
    for part in name.removeprefix("torch.ops.").split("."):
        found = getattr(found, part, None)
    if not hasattr(found, "overloads") and not hasattr(found, "overloadpacket"):
        raise ValueError(f"skip_ops names {name!r}, which is no operator. Give them like 'aten.gelu', or as objects.")
    return str(found)


def shared(
    backends: Sequence[tuple[str, Backend]], options: Options, instead: Mapping[str, tuple[str, Backend]] | None = None
) -> Backend:
    """One backend for all of several, each with its name: each operation goes to the first that takes it.

    Args:
        instead: digest of a region -> a backend for whole graphs that compiles it, with its name.

    Raises:
        ValueError: there is none, one comes twice, or one comes after one that takes everything.
    """
    names = [name for name, _ in backends]
    if not names:
        raise ValueError("A list of backends must name at least one.")
    if len(set(names)) < len(names):
        raise ValueError(f"A list of backends must name each once, not {', '.join(map(repr, names))}.")
    for name, backend in backends[:-1]:
        if backend.declines is None:
            raise ValueError(f"Backend {name!r} takes every operation, so none is left for {names[-1]!r}: put it last.")

    others = instead or {}

    def compiler(role: str) -> GraphCompiler:
        choices = (Choice(n, getattr(b, role) or b.fw_compiler, b.declines, b.horizontal) for n, b in backends)
        found = {of: Choice(n, getattr(b, role) or b.fw_compiler, None) for of, (n, b) in others.items()}
        return RegionCompiler(tuple(choices), options, found)

    passes = [b.joint_pass for _, b in backends if b.joint_pass is not None]
    return Backend(
        fw_compiler=compiler("fw_compiler"),
        bw_compiler=compiler("bw_compiler"),
        inference_compiler=compiler("inference_compiler"),
        decompositions=functools.partial(_decompositions, [b for _, b in backends]),
        joint_pass=functools.partial(_run_all, passes) if passes else None,
        load=None if others else _load_of(backends),  # data tell the name of a backend, not which graphs it takes
        unavailable=functools.partial(_unavailable, backends),
    )


def _decompositions(backends: Sequence[Backend]) -> Decompositions:
    first, *others = map(decompositions_of, backends)
    # Of rules that undo each other, one is of another table than the first.
    rules = {op: _once(op, rule) for table in reversed(others) for op, rule in table.items()}
    return {**rules, **first}


def _once(operator: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """The same rule, which leaves the operator as it is while the rule is applied to it already.

    Inductor's table has `clamp_min` and `clamp_max` for `clamp`, and that of ATen's core `clamp` for those.
    """

    @functools.wraps(rule)
    def applied(*args: Any, **kwargs: Any) -> Any:
        if operator in (within := _WITHIN.get()):
            return NotImplemented
        token = _WITHIN.set(within | {operator})
        try:
            return rule(*args, **kwargs)
        finally:
            _WITHIN.reset(token)

    return applied


def _load_of(
    backends: Sequence[tuple[str, Backend]],
) -> Callable[[Mapping[str, Any], Mapping[str, Path]], Boxed] | None:
    """What makes functions of data again, if all backends do that for their parts, and are aotkit's own."""
    own = [(name, backend) for name, backend in backends if backend.fw_compiler.__module__.startswith("aotkit.")]
    loads = {name: backend.load for name, backend in own if backend.load is not None}
    return _Loads(loads) if len(loads) == len(backends) else None


@dataclass(frozen=True)
class _Loads:
    loads: Mapping[str, Load]

    def __call__(self, data: Mapping[str, Any], files: Mapping[str, Path]) -> Boxed:
        return load(self.loads, data, files)


def loads_of(load_all: Load) -> Mapping[str, Load] | None:
    """What loads the parts of a divided graph, by backend; None for what loads whole graphs."""
    return load_all.loads if isinstance(load_all, _Loads) else None


def _run_all(passes: Sequence[Callable[[GraphModule, Any], None]], joint: GraphModule, joint_inputs: Any) -> None:
    for joint_pass in passes:
        joint_pass(joint, joint_inputs)


def _unavailable(backends: Sequence[tuple[str, Backend]]) -> str | None:
    reasons = ((name, backend.unavailable()) for name, backend in backends)
    return next((f"{name}: {reason}" for name, reason in reasons if reason is not None), None)
