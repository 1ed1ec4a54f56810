"""Requirements on what a backend makes of one graph, seen by standing between aotkit and the backend."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from aotkit.interfaces import Backend, GraphCompiler
from aotkit.passes import copy_graph, storages
from aotkit.testing.case import Case
from aotkit.testing.conformance.calls import inputs, mlp, normalized
from aotkit.testing.conformance.compare import assert_each, differentiable, equals_eager, gradients
from aotkit.testing.conformance.requirements import Requirements, Subject

CONTRACT = Requirements("contract")


@dataclass
class Run:
    """One run of one graph by the backend.

    Attributes:
        graph: a copy of what the backend was given to compile.
        before: copies of the inputs, made before the run.
        inputs: the inputs themselves.
        versions: how often each input had been mutated before.
    """

    role: str
    graph: GraphModule
    before: list[Any]
    inputs: list[Any]
    versions: list[int]
    results: Sequence[Any]


def watched(backend: Backend, name: str, runs: list[Run]) -> Backend:
    """A backend that does the same under this name, and adds each run to the list."""

    def watching(role: str, compiler: GraphCompiler) -> GraphCompiler:
        def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
            graph = copy_graph(gm)
            run = compiler(gm, example_inputs)

            def call(*args: Any) -> Any:
                before = [_copy(a) for a in args]
                versions = [_version(a) for a in args]
                results = run(list(args)) if getattr(run, "_boxed_call", False) else run(*args)
                runs.append(Run(role, graph, before, list(args), versions, results))
                return results

            return call

        compile_graph.__name__ = name
        return compile_graph

    return dataclasses.replace(
        backend,
        fw_compiler=watching("forward", backend.fw_compiler),
        bw_compiler=watching("backward", backend.bw_compiler or backend.fw_compiler),
        inference_compiler=watching("inference", backend.inference_compiler or backend.fw_compiler),
    )


def run_once(compiled: Callable[..., Any], args: Sequence[Tensor]) -> None:
    """One call, and a backward pass if there is one."""
    if roots := differentiable(compiled(*args)):
        gradients(roots, [a for a in args if a.requires_grad])


def watched_runs(subject: Subject, function: Callable[..., Any], *args: Tensor) -> list[Run]:
    """Runs of the forward and the backward graph of `function`, or of its inference graph."""
    runs: list[Run] = []
    run_once(subject.compile(function, backend=watched(subject.plug_in(), subject.name, runs)), args)
    return runs


def _copy(value: Any) -> Any:
    """A copy with the same strides."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


FUNCTIONS: list[Callable[..., Any]] = [
    mlp,
    normalized,
    lambda x, w: (x.sin(), w.cos(), x.exp(), w.square()),
    lambda x, w: (x.clone(), x * 1, w + 0, w.clone().view(-1)),
    lambda x, w: (x.index_put((torch.tensor([0, 1], device=x.device),), x[2:4]), w.cumsum(0)),
]


def _all_runs(subject: Subject) -> list[Run]:
    own = subject.plug_in()
    return _cached_runs(subject, own.fw_compiler, own.bw_compiler, own.inference_compiler)


@functools.lru_cache(maxsize=1)
def _cached_runs(subject: Subject, *compilers: Any) -> list[Run]:
    """Several requirements look at the same runs; the compilers are there to tell plug-ins of one name apart."""
    runs = []
    for is_training in (True, False):
        with torch.set_grad_enabled(is_training):
            runs += [run for function in FUNCTIONS for run in watched_runs(subject, function, *inputs(subject))]
    return runs


def _promised(run: Run) -> Sequence[Any]:
    return run.graph.graph.output_node().args[0]  # type: ignore[return-value]


@CONTRACT
def number_of_outputs(subject: Subject) -> None:
    """A compiled graph returns a list or tuple with as many values as the graph returns."""
    for run in _all_runs(subject):
        assert isinstance(run.results, list | tuple), f"{run.role} graph returned {type(run.results).__name__}"
        got, want = len(run.results), len(_promised(run))
        assert got == want, f"{run.role} graph returned {got} values, it has {want} outputs"


@CONTRACT
def order_of_outputs(subject: Subject) -> None:
    """Each output is the one that the graph has in that place: what interpreting the graph gives."""
    for run in _all_runs(subject):
        assert_each(run.results, Interpreter(run.graph).run(*run.before), f"output of the {run.role} graph")


@CONTRACT
def none_outputs(subject: Subject) -> None:
    """Where the graph returns None, the compiled graph does."""
    x, w = inputs(subject)
    for run in watched_runs(subject, lambda x, w, u: (mlp(x, w.detach()), u * 2), x, w, w):
        got, want = ([i for i, v in enumerate(values) if v is None] for values in (run.results, _promised(run)))
        assert got == want, f"the graph has None at {want}, the compiled one at {got}"
    frozen = watched_runs(subject, mlp, x, w.detach())
    assert any(None in run.results for run in frozen if run.role == "backward"), "no gradient was None"


@CONTRACT
def mutates_no_input(subject: Subject) -> None:
    """A compiled graph leaves its inputs as they are: the graphs are functional."""
    for run in _all_runs(subject):
        for i, (after, before, version) in enumerate(zip(run.inputs, run.before, run.versions, strict=True)):
            if not isinstance(after, Tensor):
                continue
            mutated = _version(after) != version or not torch.equal(after, before)
            assert not mutated, f"running the {run.role} graph changed its input {i}"


@CONTRACT
def outputs_have_memory_of_their_own(subject: Subject) -> None:
    """Outputs share memory with inputs, and with each other, only where the graph says so."""
    for run in _all_runs(subject):
        placeholders = run.graph.graph.find_nodes(op="placeholder")
        owners = {_address(v): n for v, n in zip(run.inputs, placeholders, strict=True) if _address(v)}
        for i, (value, node) in enumerate(zip(run.results, _promised(run), strict=True)):
            address = _address(value)
            if not address or not isinstance(node, Node):
                continue
            owner = owners.setdefault(address, node)
            shared = owner is node or storages(owner).keys() & storages(node).keys()
            assert shared, f"output {i} of the {run.role} graph shares memory with {owner.name!r}; in the graph not"


def _address(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else 0


def _constants(x: Tensor) -> Any:
    table = torch.tensor([1.5, -2.0, 0.5], device=x.device)
    return x * table + torch.tensor(3.0, device=x.device), table * 2


SMALL = {
    "only_inputs": (lambda x, y: (y, x), "returns its inputs, and nothing else"),
    "returns_its_input": (lambda x, y: x, "returns one of its inputs"),
    "repeated_outputs": (lambda x, y: (z := x * y, z, y.sin(), z), "returns one value several times"),
    "views_of_one_value": (lambda x, y: ((z := x * y).view(3, 4), z.t(), z[0]), "returns several views of one value"),
    "constants": (lambda x, y: _constants(x[:, :3]), "holds tensors as constants"),
    "outputs_of_no_input": (lambda x, y: (torch.ones(3, device=x.device), x * 2), "returns what depends on no input"),
    "many_inputs_and_outputs": (lambda *xs: tuple(x * i for i, x in enumerate(xs)), "has many inputs and outputs"),
}

for _name, (_function, _says) in SMALL.items():
    _count = 40 if _name.startswith("many") else 2
    CONTRACT.add_cases(
        f"A function that {_says} gives eager's values.",
        [Case.of(_name, _function, lambda new, count=_count: tuple(new.normal(4, 3) for _ in range(count)))],  # type: ignore[misc]
        equals_eager,
    )
