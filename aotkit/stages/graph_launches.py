"""What a compiled graph launches, whether its compiler tells or not."""

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch.fx import GraphModule, Interpreter, Node

from aotkit.interfaces import Boxed
from aotkit.passes import changes_inputs, description, graph_data, is_operation, is_view, operator_name
from aotkit.stages.calls import Product, boxed_call

Around = Callable[[int], AbstractContextManager[None]]
BLACK_BOX = "its compiler does not tell what it launches"


@dataclass(frozen=True)
class Kernel:
    """What a compiled graph launches at once.

    Attributes:
        name: as its code or a profiler has it.
        operations: names of the graph's nodes that it computes. One that several kernels compute stands in each.
        language: that it is written in; "ATen" for an operator of a library.
        code: its source, if there is any.
        launches: on the device; None: its compiler does not tell.
        why: why it is not fused with others, a few words.
    """

    name: str
    operations: tuple[str, ...]
    language: str
    code: str = ""
    launches: int | None = 1
    why: str = ""


@runtime_checkable
class Explained(Protocol):
    """A compiled graph that tells what it launches: what a `GraphCompiler` returns may have these methods."""

    def kernels(self, inputs: Sequence[Any], /) -> Sequence[Kernel]:
        """In the order in which they run; for inputs of the graph, which are tensors now."""
        ...

    def observed(self, inputs: list[Any], around: Around, /) -> Sequence[Any]:
        """Compute what a call does, kernel number `i` inside of `around(i)`; what cannot be told apart in no such.

        It may clear the list, where a call frees its inputs early.
        """
        ...


def explained(product: Product) -> Explained:
    """What runs, as something that tells what it launches."""
    run = product.run
    if isinstance(run, GraphModule):
        return Operators(run)
    return run if isinstance(run, Explained) else BlackBox(product)


def data_of(product: Product) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """What a graph was compiled to, as data and files; None if that does not tell."""
    if isinstance(product.run, GraphModule):
        graph = graph_data(product.run)
        return None if graph is None else ({"by": None, "graph": graph}, {})
    tell = getattr(product.run, "data", None)
    return None if tell is None else tell()


def source_of(product: Product) -> str | None:
    """All that decides what was compiled computes, besides the graph; None where a compiler does not tell that."""
    run = product.run
    if isinstance(run, GraphModule):
        return description(run)
    # What wraps another function has the attributes of that, and code of its own.
    return None if hasattr(run, "__wrapped__") else getattr(run, "source", None)


def launches_of(run: Any) -> float:
    """How many launches from Python a call of what a compiler returned costs the host; infinity if it does not tell."""
    if isinstance(run, GraphModule):
        return len(Operators(run).kernels(()))
    tell = getattr(run, "launches", None)
    return math.inf if tell is None else float(tell())


def computes(node: Node) -> bool:
    """Whether a node is an operation that computes something, instead of viewing what there is."""
    return is_operation(node) and (changes_inputs(node) or not is_view(node))


class Operators:
    """A graph that runs as it is: one operator of ATen's after the other."""

    def __init__(self, gm: GraphModule) -> None:
        self._gm = gm
        self._numbers = {node: i for i, node in enumerate(filter(computes, gm.graph.nodes))}

    def kernels(self, inputs: Sequence[Any]) -> list[Kernel]:
        return [Kernel(_full_name(node), (node.name,), "ATen") for node in self._numbers]

    def observed(self, inputs: list[Any], around: Around) -> Sequence[Any]:
        return _Observed(self._gm, self._numbers, around).boxed_run(inputs)  # type: ignore[no-any-return]


def _full_name(node: Node) -> str:
    return str(node.target) if hasattr(node.target, "overloadpacket") else operator_name(node)


class _Observed(Interpreter):
    def __init__(self, gm: GraphModule, numbers: dict[Node, int], around: Around) -> None:
        super().__init__(gm)
        self._numbers, self._around = numbers, around

    def run_node(self, n: Node) -> Any:
        if n not in self._numbers:
            return super().run_node(n)
        with self._around(self._numbers[n]):
            return super().run_node(n)


class BlackBox:
    """A graph whose compiler does not tell what it launches: all of it is one kernel, launched who knows how often."""

    def __init__(self, product: Product) -> None:
        self._run = boxed_call(product.run)
        self._operations = tuple(n.name for n in product.graph.graph.nodes if computes(n))

    def kernels(self, inputs: Sequence[Any]) -> list[Kernel]:
        return [Kernel("(all)", self._operations, "?", launches=None, why=BLACK_BOX)] if self._operations else []

    def observed(self, inputs: list[Any], around: Around) -> Sequence[Any]:
        if not self._operations:
            return self._run(inputs)
        with around(0):
            return self._run(inputs)


class Step(NamedTuple):
    """One of several graphs that run one after the other, over one list of values.

    Attributes:
        product: what its compiler made of it.
        run: the same to call.
        takes: where its inputs are.
        frees: which of these are done then.
        gives: where its outputs go.
    """

    product: Product
    run: Boxed
    takes: Sequence[int]
    frees: Sequence[int]
    gives: slice


class Sequential:
    """Graphs that run one after the other.

    Args:
        blank: as many as there are values, of which the first are the inputs.
        constants: follow them in the list.
        where: the results are in the list.
    """

    _boxed_call = True

    def __init__(
        self, steps: Sequence[Step], blank: Sequence[None], constants: Sequence[Any], where: Sequence[int]
    ) -> None:
        self._steps = steps
        self._places = [(step.takes, step.frees, step.gives) for step in steps]
        self._runs = [step.run for step in steps]
        self._explained = [explained(step.product) for step in steps]
        self._blank, self._constants, self._where = blank, constants, where
        self._counts: list[int] | None = None

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self._run(inputs, self._runs)

    @property
    def source(self) -> str | None:
        """That of all parts."""
        sources = [source_of(step.product) for step in self._steps]
        return None if None in sources else str(sources)

    def data(self) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """What `stages.regions.load` takes; None where a part is no data."""
        parts: list[dict[str, Any]] = []
        files: dict[str, bytes] = {}
        for n, step in enumerate(self._steps):
            if (found := data_of(step.product)) is None:
                return None
            part, contents = found
            places = {"takes": step.takes, "frees": step.frees, "gives": [step.gives.start, step.gives.stop]}
            parts.append({**part, **places, "files": {name: f"{n}.{name}" for name in contents}})
            files |= {f"{n}.{name}": content for name, content in contents.items()}
        return {"parts": parts, "constants": self._constants, "where": self._where, "values": len(self._blank)}, files

    def kernels(self, inputs: Sequence[Any]) -> list[Kernel]:
        found: list[list[Kernel]] = []

        def told(step: Explained, args: list[Any]) -> Sequence[Any]:
            found.append(list(step.kernels(args)))
            return step.observed(args, lambda _: nullcontext())

        self._run([*inputs], [functools.partial(told, step) for step in self._explained])
        self._counts = [len(kernels) for kernels in found]
        return [kernel for kernels in found for kernel in kernels]

    def observed(self, inputs: list[Any], around: Around) -> Sequence[Any]:
        if self._counts is None:
            self.kernels([*inputs])
        assert self._counts is not None

        def timed(step: Explained, first: int, args: list[Any]) -> Sequence[Any]:
            return step.observed(args, lambda i: around(first + i))

        firsts = [sum(self._counts[:i]) for i in range(len(self._counts))]
        return self._run(inputs, [functools.partial(timed, *at) for at in zip(self._explained, firsts, strict=True)])

    def _run(self, inputs: list[Any], runs: Sequence[Boxed]) -> list[Any]:
        values = [*inputs, *self._blank[len(inputs) :], *self._constants]
        inputs.clear()
        for run, (takes, frees, gives) in zip(runs, self._places, strict=True):
            args = [values[i] for i in takes]
            for i in frees:
                values[i] = None
            values[gives] = run(args)
        return [values[i] for i in self._where]
