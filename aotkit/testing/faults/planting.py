"""How a fault gets into a plug-in: by a change to a graph, to the two parts of a joint graph, or to what runs."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from torch.fx import GraphModule

from aotkit.interfaces import Backend, GraphCompiler
from aotkit.registry import get_partitioner
from aotkit.testing.case import Case, Inputs
from aotkit.testing.faults.fault import Fault, NotPlanted, PlugIn
from aotkit.testing.zoo import CASES

Run = Callable[..., Sequence[Any]]
GraphChange = Callable[[GraphModule], None]
PartsChange = Callable[[GraphModule, GraphModule, int], None]
RunChange = Callable[[Run], Run]
ResultsChange = Callable[[list[Any], Sequence[Any]], list[Any]]
ArgumentsChange = Callable[[list[Any]], list[Any]]
CompilerChange = Callable[[GraphCompiler], GraphCompiler]
Role = Literal["forward", "backward", "both"]
AnyChange = TypeVar("AnyChange", bound=Callable[..., Any])


class Subject:
    """Collects the faults of one subject.

    Its methods are decorators. The name of a fault is the decorated function's, its description the first line of the
    docstring. A case is one of the zoo's, by name, or the fault's own.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults: list[Fault] = []

    def graph(
        self, case: str | Case, role: Role = "forward", *, dynamic: bool = False
    ) -> Callable[[GraphChange], GraphChange]:
        """`change(gm)`: the graph is changed before it is run."""
        return self._collect(case, lambda change: _plug_in(rewritten(change), role), dynamic)

    def parts(self, case: str | Case) -> Callable[[PartsChange], PartsChange]:
        """`change(forward, backward, number of outputs)`: a partitioner's two graphs are changed."""
        return self._collect(case, lambda change: PlugIn(Backend(interpret), _cut_wrongly(change)))

    def run(self, case: str | Case, role: Role = "forward") -> Callable[[RunChange], RunChange]:
        """`change(run)` makes another function of what runs the graph; it may keep values between calls."""
        return self._collect(case, lambda change: _plug_in(_running(change), role))

    def results(self, case: str | Case, role: Role = "forward") -> Callable[[ResultsChange], ResultsChange]:
        """`change(results, arguments)`: what runs the graph returns something else."""

        def changed(change: ResultsChange) -> RunChange:
            return lambda run: lambda *args: change(list(run(*args)), args)

        return self._collect(case, lambda change: _plug_in(_running(changed(change)), role))

    def arguments(self, case: str | Case, role: Role = "forward") -> Callable[[ArgumentsChange], ArgumentsChange]:
        """`change(arguments)`: what runs the graph reads something else."""

        def changed(change: ArgumentsChange) -> RunChange:
            return lambda run: lambda *args: run(*change(list(args)))

        return self._collect(case, lambda change: _plug_in(_running(changed(change)), role))

    def compiler(self, case: str | Case, role: Role = "forward") -> Callable[[CompilerChange], CompilerChange]:
        """`change(compiler)` makes another compiler; it may keep what it compiled."""
        return self._collect(case, lambda change: _plug_in(change(interpret), role))

    def _collect(
        self, case: str | Case, planter: Callable[[Any], PlugIn], dynamic: bool = False
    ) -> Callable[[AnyChange], AnyChange]:
        def add(change: AnyChange) -> AnyChange:
            def plug_in(planted: bool) -> PlugIn:
                return planter(change) if planted else _plug_in(interpret, "both")

            description = (change.__doc__ or "").splitlines()[0]
            self.faults.append(Fault(change.__name__, self.name, description, _case(case), plug_in, dynamic))
            return change

        return add


def own(function: Callable[..., Any], inputs: Callable[[Inputs], tuple[Any, ...]]) -> Case:
    """A case for one fault, where none of the zoo's would show it."""
    return Case(function.__name__, lambda device: function, inputs)


def interpret(gm: GraphModule, example_inputs: Sequence[Any]) -> Run:
    """The right compiler: runs the graph as it is."""
    return lambda *args: list(gm(*args))


def rewritten(change: GraphChange) -> GraphCompiler:
    """A compiler that changes the graph and runs it.

    Raises:
        NotPlanted: the graph stays as it was.
    """

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Run:
        before = gm.code
        change(gm)
        gm.graph.lint()
        gm.recompile()
        if gm.code == before:
            raise NotPlanted(f"{change.__name__} changes nothing in:\n{before}")
        return interpret(gm, example_inputs)

    return compile_graph


def _plug_in(compiler: GraphCompiler, role: Role) -> PlugIn:
    forward = interpret if role == "backward" else compiler
    backward = interpret if role == "forward" else compiler
    return PlugIn(Backend(forward, backward), get_partitioner("default"))


def _running(change: RunChange) -> GraphCompiler:
    return lambda gm, example_inputs: change(interpret(gm, example_inputs))


def _cut_wrongly(change: PartsChange) -> Any:
    def partition(joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any) -> Any:
        forward, backward = get_partitioner("default")(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        before = forward.code, backward.code
        change(forward, backward, num_fwd_outputs)
        for gm in (forward, backward):
            gm.graph.lint()
            gm.recompile()
        if (forward.code, backward.code) == before:
            raise NotPlanted(f"{change.__name__} changes nothing in:\n{before[0]}")
        return forward, backward

    return partition


def _case(case: str | Case) -> Case:
    return case if isinstance(case, Case) else next(c for c in CASES if c.name == case)
