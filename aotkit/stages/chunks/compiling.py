"""What runs what is computed in chunks: the graph of a chunk goes to the same compiler as the rest."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.interfaces import Backend, Boxed, GraphCompiler
from aotkit.passes import bodies_of, copy_graph, gathered, graph_of, is_in_chunks, placeholders, results_of
from aotkit.stages.calls import Product, boxed_call
from aotkit.stages.graph_launches import Around, Kernel, data_of, explained, source_of
from aotkit.stages.regions import Choice, Load, Options, RegionCompiler, load, loads_of

CHUNKS = "chunks"  # what parts of a graph, and of its data, are called that are computed in chunks
Files = Mapping[str, Path]


def compile_with_chunks(
    backend: Backend | None, name: str, compiler: GraphCompiler, gm: GraphModule, example_inputs: Sequence[Tensor]
) -> Callable[..., Any]:
    """Have a graph compiled, in parts if some of it is computed in chunks.

    Args:
        backend, name: that it is for; without one, chunks go to the compiler.
        compiler: of the backend's, the one for this graph.
    """
    if getattr(compiler, "runs_chunks", False) or not any(map(is_in_chunks, gm.graph.nodes)):
        return compiler(gm, example_inputs)
    rest: Sequence[Choice] = [Choice(name, compiler, None)]
    options = Options()
    if isinstance(compiler, RegionCompiler):
        rest, options = compiler.choices, compiler.options
    compile_chunk = compiler if (other := of_chunks(backend)) is None else other.fw_compiler
    chunks = Choice(CHUNKS, functools.partial(_compiled, compile_chunk), _declined)
    return RegionCompiler((chunks, *rest), options)(gm, example_inputs)


def load_with_chunks(backend: Backend, data: Mapping[str, Any], files: Files) -> Boxed:
    """What a compiled graph's `data()` tells of, if some of it is computed in chunks."""
    assert backend.load is not None
    makers = {part["by"] for part in data.get("parts", [data] if "by" in data else [])}
    if CHUNKS not in makers:
        return backend.load(data, files)
    rest: Mapping[str, Load] = loads_of(backend.load) or dict.fromkeys(makers, backend.load)
    load_chunk = backend.load if (other := of_chunks(backend)) is None else other.load
    assert load_chunk is not None
    return load({**rest, CHUNKS: functools.partial(_loaded, load_chunk)}, data, files)


def of_chunks(backend: Backend | None) -> Backend | None:
    """The backend that compiles the graphs of chunks for this one."""
    other = None if backend is None or backend.chunks is None else backend.chunks()
    return None if other is None or other.unavailable() is not None else other


def _declined(op: Node) -> str | None:
    return None if is_in_chunks(op) else "it is computed of all rows at once"


def _compiled(compiler: GraphCompiler, gm: GraphModule, example_inputs: Sequence[Tensor]) -> "InChunks":
    (node,) = filter(is_in_chunks, gm.graph.nodes)
    products = []
    for body in bodies_of(node):
        graph = copy_graph(body)
        products.append(Product(compiler(body, [x.meta["val"] for x in placeholders(body)]), graph))
    return InChunks(gm, node, products)


def _loaded(load_body: Load, data: Mapping[str, Any], files: Files) -> Boxed:
    gm = graph_of(data["graph"])
    (node,) = filter(is_in_chunks, gm.graph.nodes)
    products = []
    for body, (kept, names) in zip(bodies_of(node), data["bodies"], strict=True):
        run = load_body(kept, {name: files[file] for name, file in names.items()})
        products.append(Product(run, body))
    return InChunks(gm, node, products)


class InChunks:
    """A graph of one operation that is computed in chunks, whose bodies are compiled.

    Args:
        products: of the body, and of that for the rows that are left over.
    """

    _boxed_call = True

    def __init__(self, gm: GraphModule, node: Node, products: Sequence[Product]) -> None:
        self._how: Any = node.args[2:6]
        operands = node.args[6:]
        self._node, self._products = node, products
        self._runs = [boxed_call(product.run) for product in products]
        inputs = placeholders(gm)
        self._operands = [inputs.index(x) for x in operands]  # type: ignore[arg-type]
        self._given: list[Any] = [item.args[1] for item in results_of(gm)]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self._run(inputs, lambda body, args: self._runs[body](args))

    def _run(self, inputs: list[Any], run: Callable[[int, list[Any]], Sequence[Any]]) -> list[Any]:
        operands = [inputs[i] for i in self._operands]
        inputs.clear()
        groups, size, along, results = self._how
        values = gathered(run, groups, size, along, results, operands)
        return [values[i] for i in self._given]

    @property
    def source(self) -> str | None:
        """That of the bodies."""
        sources = [source_of(product) for product in self._products]
        return None if None in sources else str(sources)

    def data(self) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """What `load_with_chunks` takes; None where a body is no data."""
        bodies: list[Any] = []
        files: dict[str, bytes] = {}
        for n, product in enumerate(self._products):
            if (found := data_of(product)) is None:
                return None
            data, contents = found
            bodies.append([data, {name: f"{n}.{name}" for name in contents}])
            files |= {f"{n}.{name}": content for name, content in contents.items()}
        return {"bodies": bodies}, files

    def kernels(self, inputs: Sequence[Any]) -> list[Kernel]:
        """Those of each chunk. Products that are added up of all chunks are not among them."""
        found: list[Kernel] = []

        def run(body: int, args: list[Any]) -> Sequence[Any]:
            found.extend(self._of_body(body, [*args]))
            return self._runs[body](args)

        self._run([*inputs], run)
        return found

    def observed(self, inputs: list[Any], around: Around) -> Sequence[Any]:
        first = 0

        def run(body: int, args: list[Any]) -> Sequence[Any]:
            nonlocal first
            start, told = first, explained(self._products[body])
            first += len(told.kernels([*args]))
            return told.observed(args, lambda i: around(start + i))

        return self._run(inputs, run)

    def _of_body(self, body: int, args: list[Any]) -> list[Kernel]:
        kernels = explained(self._products[body]).kernels(args)
        return [Kernel(k.name, (self._node.name,), k.language, k.code, k.launches, k.why) for k in kernels]
