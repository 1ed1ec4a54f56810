"""What a planted fault is, and how it gets into a plug-in: by a change to graphs, or to what runs them."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch.fx import GraphModule

from aotkit.interfaces import Backend, GraphCompiler, Partitioner
from aotkit.registry import get_partitioner
from aotkit.testing.case import Case
from aotkit.testing.faults.rewriting import NotPlanted, calls, set_argument
from aotkit.testing.zoo import CASES

Run = Callable[..., Sequence[Any]]
Change = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])
Role = Literal["forward", "backward"]


@dataclass(frozen=True)
class PlugIn:
    """A backend and a partitioner, one of which may be wrong."""

    backend: Backend
    partition: Partitioner


@dataclass(frozen=True)
class Fault:
    """One mistake of a compiler or a partitioner.

    Attributes:
        subject: what it is about; faults of one subject share a file.
        description: what goes wrong, in a sentence.
        case: the function that is compiled.
        plug_in: makes the plug-in, with the fault (True) or without it (False).
        dynamic: whether the function is compiled with open sizes.
    """

    name: str
    subject: str
    description: str
    case: Case
    plug_in: Callable[[bool], PlugIn]
    dynamic: bool = False


class Subject:
    """Collects the faults of one subject, by methods that say what kind of change a fault is.

    A case is one of the zoo's, by name, or the fault's own; the role is that of the wrong graph.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults: list[Fault] = []

    def graph(self, case: str | Case, role: Role = "forward", *, dynamic: bool = False) -> "Planter":
        """`change(gm)`: the graph is changed before it is run."""
        return self._planter(case, _rewritten, role, dynamic)

    def operator(self, case: str | Case, operator: Any, role: Role = "forward", *, index: int = 0) -> "Planter":
        """The function computes what an operator should, in the graph's first call of it, or the one of this index."""

        def compiler(function: Change) -> GraphCompiler:
            def change(gm: GraphModule) -> None:
                calls(gm, operator)[index].target = function

            return _rewritten(functools.wraps(function)(change))

        return self._planter(case, compiler, role)

    def argument(self, case: str | Case, operator: Any, role: Role = "forward", /, **changed: Any) -> "Planter":
        """The graph's first call of an operator gets another argument; there is no function."""

        def compiler(function: Change) -> GraphCompiler:
            def change(gm: GraphModule) -> None:
                for name, value in changed.items():
                    set_argument(calls(gm, operator)[0], name, value)

            return _rewritten(functools.wraps(function)(change))

        return self._planter(case, compiler, role)

    def run(self, case: str | Case, role: Role = "forward") -> "Planter":
        """`change(run, arguments, kept)`, instead of `run(*arguments)`; `kept` is the same list in each call."""
        return self._planter(case, _running, role)

    def results(self, case: str | Case, role: Role = "forward") -> "Planter":
        """`change(results)`: what runs the graph returns something else."""
        return self._planter(case, lambda f: _running(lambda run, args, kept: f(list(run(*args)))), role)

    def arguments(self, case: str | Case, role: Role = "forward") -> "Planter":
        """`change(arguments)`: what runs the graph reads something else."""
        return self._planter(case, lambda f: _running(lambda run, args, kept: run(*f(args))), role)

    def compiler(self, case: str | Case) -> "Planter":
        """`change(compiler)` makes another compiler; it may keep what it compiled."""
        return self._planter(case, lambda change: change(_interpret))

    def parts(self, case: str | Case) -> "Planter":
        """`change(forward, backward, number of outputs)`: a partitioner's two graphs are changed."""
        return Planter(self, case, lambda change: PlugIn(Backend(_interpret), _cut_wrongly(change)))

    def _planter(
        self,
        case: str | Case,
        compiler: Callable[[Change], GraphCompiler],
        role: Role = "forward",
        dynamic: bool = False,
    ) -> "Planter":
        return Planter(self, case, lambda change: _plug_in(compiler(change), role), dynamic)


@dataclass
class Planter:
    """Makes faults of changes of one kind to one function's compilation.

    A decorator: the name of the fault is the decorated function's, its description the first line of the docstring.
    """

    subject: Subject
    case: str | Case
    plant: Callable[[Change], PlugIn]
    dynamic: bool = False

    def __call__(self, change: Function) -> Function:
        self.add(change.__name__, (change.__doc__ or "").splitlines()[0], change)
        return change

    def add(self, name: str, description: str, change: Change = lambda: None) -> None:
        """The same for a change of one expression."""

        def named(*args: Any, **kwargs: Any) -> Any:
            return change(*args, **kwargs)

        def plug_in(planted: bool) -> PlugIn:
            return self.plant(named) if planted else _plug_in(_interpret)

        named.__name__ = name
        case = self.case if isinstance(self.case, Case) else next(c for c in CASES if c.name == self.case)
        self.subject.faults.append(Fault(name, self.subject.name, description, case, plug_in, self.dynamic))


def _interpret(gm: GraphModule, example_inputs: Sequence[Any]) -> Run:
    """The right compiler: runs the graph as it is."""
    return lambda *args: list(gm(*args))


def _plug_in(compiler: GraphCompiler, role: Role = "forward") -> PlugIn:
    backend = Backend(compiler, _interpret) if role == "forward" else Backend(_interpret, compiler)
    return PlugIn(backend, get_partitioner("default"))


def _running(change: Change) -> GraphCompiler:
    def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Run:
        kept: list[Any] = []
        run = _interpret(gm, example_inputs)
        return lambda *arguments: change(run, list(arguments), kept)

    return compile_graph


def _rewritten(change: Change) -> GraphCompiler:
    def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Run:
        _rewrite([gm], change)
        return _interpret(gm, example_inputs)

    return compile_graph


def _cut_wrongly(change: Change) -> Any:
    def partition(joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any) -> Any:
        parts = get_partitioner("default")(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        _rewrite(parts, change, num_fwd_outputs)
        return parts

    return partition


def _rewrite(graphs: Sequence[GraphModule], change: Change, *others: int) -> None:
    before = [gm.code for gm in graphs]
    change(*graphs, *others)
    for gm in graphs:
        gm.graph.lint()
        gm.recompile()
    if [gm.code for gm in graphs] == before:
        raise NotPlanted(f"{change.__name__} changes nothing in:\n{before[0]}")
