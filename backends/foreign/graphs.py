"""A graph for a compiler from elsewhere: what it gets of it, what it is given, what is made of its results."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.backends.foreign.spelling import respell
from aotkit.interfaces import GraphCompiler
from aotkit.passes import results_of, views_behind
from aotkit.stages import boxed_call, computing, places_read

Execute = Callable[[list[Tensor]], Sequence[Tensor]]
Build = Callable[[GraphModule], Callable[[], Execute]]
ALIGNMENT = 64  # bytes; what the importers of dlpack ask for that copy nothing, and what torch's allocators give


def compiling(build: Build) -> GraphCompiler:
    """A graph compiler.

    Args:
        build: compiles a graph, and returns a function that makes what runs it. The graph has tensors as inputs, each
            of which it reads, and as results, each once, none of them an input; its operators are spelled as in
            `spelling.py`. What runs it gets contiguous tensors on addresses that are multiples of 64, and returns
            contiguous ones. It serves one call at a time: calls of several threads get one each.
    """

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        return ForeignGraph(gm, build)

    return compile_graph


class ForeignGraph:
    """A graph, of which a compiler computes what depends on tensors that it is given.

    The rest is left to ATen: results that are inputs, that come twice or that are constants, and None.
    """

    _boxed_call = True

    def __init__(self, gm: GraphModule, build: Build) -> None:
        sources = [n for n in gm.graph.nodes if n.op in ("placeholder", "get_attr")]
        self._constants = [getattr(gm, str(n.target)) for n in sources if n.op == "get_attr"]
        computed = _computed(gm, sources)
        part = computing(gm, sources, computed)
        self._reads = places_read(sources, part)
        respell(part)
        self._make = build(part) if computed else None
        self._free: list[Execute] = []
        self._are_shared: list[bool] | None = None  # for each result, whether it is in memory of something else
        self._strides = [None if v.is_contiguous() else v.stride() for v in (n.meta["val"] for n in computed)]
        rest = computing(gm, [*computed, *sources], results_of(gm))
        self._rest = boxed_call(rest)
        self._rest_reads = places_read([*computed, *sources], rest)
        self._is_all = [*results_of(gm)] == computed

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        given = [*args, *self._constants]
        args.clear()
        values = self._run([_ready(given[i]) for i in self._reads]) if self._make is not None else []
        if self._is_all:
            return values
        known = [*values, *given]
        return self._rest([known[i] for i in self._rest_reads])

    def _run(self, inputs: list[Tensor]) -> list[Tensor]:
        try:
            execute = self._free.pop()
        except IndexError:
            assert self._make is not None
            execute = self._make()
        results = execute(inputs)
        self._free.append(execute)
        if self._are_shared is None:  # once: what a program returns is decided when it is compiled
            self._are_shared = _shared(inputs, results)
        copied = (x.clone() if shared else x for x, shared in zip(results, self._are_shared, strict=True))
        return [*map(_laid_out, copied, self._strides)]


def _computed(gm: GraphModule, sources: Sequence[Node]) -> list[Node]:
    """What the results are views of, as far as it is computed of tensors, each once."""
    depends = set(sources)
    for node in gm.graph.nodes:
        if not depends.isdisjoint(node.all_input_nodes):
            depends.add(node)
    bases = dict.fromkeys(_base(r) for r in results_of(gm) if isinstance(r, Node))
    return [base for base in bases if base in depends.difference(sources)]


def _base(node: Node) -> Node:
    """The tensor that a node is a view of, or the node itself."""
    return next(n for n in views_behind(node) if isinstance(n.meta.get("val"), Tensor))


def _ready(x: Tensor) -> Tensor:
    """The tensor itself where a compiler can read its memory, else a copy."""
    x = (x.detach() if x.requires_grad else x).contiguous()
    return x.resolve_neg() if x.data_ptr() % ALIGNMENT == 0 else x.clone()


def _shared(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> list[bool]:
    """For each result, whether it is in the memory of an input or of an earlier result: compilers leave copies out."""
    taken = [_memory(x) for x in inputs]
    found = []
    for x in results:
        start, end = _memory(x)
        found.append(any(start < other_end and other < end for other, other_end in taken))
        taken.append((start, end))
    return found


def _memory(x: Tensor) -> tuple[int, int]:
    return x.data_ptr(), x.data_ptr() + x.nbytes


def _laid_out(x: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """A result as the graph has it in memory: what else is in the graph was traced with that. None: contiguous."""
    if strides is None:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)
