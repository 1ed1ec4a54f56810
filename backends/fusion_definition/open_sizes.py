"""Regions whose sizes are open: for those of a call, the same graph with numbers in their places, and its fusion.

So engines and lowerings know fixed sizes alone. What is planned for sizes stays for as long as they come again; what
fusions of several sizes have in common is the engine's matter.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from aotkit.backends.fusion_definition.sizes import (
    Evaluation,
    Sizes,
    UnknownSizeError,
    follows_from_sizes,
    hint,
    is_open,
)
from aotkit.errors import CompileError, is_out_of_memory
from aotkit.interfaces import Boxed
from aotkit.passes import copy_graph
from aotkit.stages import Around, Kernel, Product, boxed_call, explained
from aotkit.torch_private.dispatch import tree_leaves
from aotkit.torch_private.fake_tensors import fake_mode, like_meta
from aotkit.torch_private.fx import graph_module

MOST_SIZES = 64
_log = logging.getLogger("aotkit")


def open_numbers(node: Node) -> list[Any]:
    """The symbolic numbers of a node's values."""
    leaves = tree_leaves(node.meta.get("val"))
    numbers = [n for x in leaves for n in ((*x.shape, *x.stride()) if isinstance(x, Tensor) else (x,))]
    return list(filter(is_open, numbers))


def with_hints(node: Node) -> Node | None:
    """A node like this one, whose sizes are those while tracing; None if they were not known."""
    numbers = [n for x in (node, *node.all_input_nodes) for n in open_numbers(x)]
    if not numbers:
        return node
    if not all(map(follows_from_sizes, numbers)):
        return None
    graph, copies = Graph(), dict[Node, Any]()
    fixed = _Fixed(hint)
    for given in node.all_input_nodes:
        copies[given] = fixed.value(given) if is_open(given.meta["val"]) else graph.placeholder(given.name)
        fixed.describe(given, copies[given])
    copied = graph.node_copy(node, copies.__getitem__)
    fixed.describe(node, copied)
    return copied


class _Fixed:
    """Values of nodes where sizes are numbers."""

    def __init__(self, evaluate: Evaluation) -> None:
        self._evaluate, self._mode = evaluate, fake_mode()

    def value(self, node: Node) -> Any:
        return map_aggregate(node.meta.get("val"), self._one)

    def _one(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return self._evaluate(value) if is_open(value) else value
        shape, stride = ([*map(self._evaluate, sizes)] for sizes in (value.shape, value.stride()))
        meta = torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")  # type: ignore[arg-type]
        return like_meta(meta, value.device, self._mode)

    def describe(self, node: Node, copy: Any) -> None:
        """Note on a copy of a node what its value is."""
        if isinstance(copy, Node):
            copy.meta = {**node.meta, "val": self.value(node)}


def _fixed(gm: GraphModule, numbers: dict[int, Any], evaluate: Evaluation) -> GraphModule:
    """A graph whose sizes are numbers. Its inputs stay what they are; of those that are numbers nothing is computed.

    Args:
        numbers: the values of these, by their places.
    """
    graph, copies = Graph(), dict[Node, Any]()
    fixed = _Fixed(evaluate)
    for i, node in enumerate(gm.graph.nodes):
        if node.op == "placeholder":
            copy = copies[node] = graph.placeholder(node.name)
            fixed.describe(node, copy)
            if i in numbers:
                copies[node] = numbers[i]
        elif node.op == "call_function" and is_open(node.meta["val"]):
            copies[node] = fixed.value(node)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            fixed.describe(node, copies[node])
    return graph_module(gm, graph)


class _Sized:
    """A region for certain sizes.

    Attributes:
        run: a function of a list of its inputs; the first time, what fails runs as ATen.
        product: what tells of it.
        why: it is ATen, not what the engine made of it.
    """

    def __init__(self, gm: GraphModule, compile_fixed: Callable[[], Product], what: str) -> None:
        self._gm, self._what = gm, what
        self.why = ""
        self.run: Boxed
        try:
            self.product = compile_fixed()
            self.compiled = boxed_call(self.product.run)
            self.run = self._first
        except CompileError as e:
            self._leave(str(e))

    def _leave(self, why: str) -> None:
        """Run it as it is."""
        _log.info("%s: %s", self._what, why)
        self.why, self.product, self.run = why, Product(self._gm, self._gm), boxed_call(copy_graph(self._gm))

    def _first(self, args: list[Any]) -> Sequence[Any]:
        given = list(args)
        try:
            results = self.compiled(args)
            self.run = self.compiled
        except Exception as e:
            if is_out_of_memory(e):
                raise
            self._leave(f"{type(e).__name__}: {e}")
            results = self.run(given)
        return results


def _free_strides(described: Sequence[Any], told: Sequence[Any]) -> list[tuple[int, int]]:
    """Which strides of inputs do not follow from sizes: input and dimension of each."""
    known = {n.node.expr for n in told if is_open(n)}
    tensors: list[tuple[int, Any]] = [(i, x) for i, x in enumerate(described) if isinstance(x, Tensor)]
    return [
        (i, d)
        for i, x in tensors
        for d, n in enumerate(x.stride())
        if is_open(n) and n.node.expr.is_Symbol and n.node.expr not in known
    ]


class OpenRegion:
    """A graph with open sizes, as a callable.

    Args:
        name: of the engine.
        compile_fixed: compiles a graph of fixed sizes.

    Raises:
        CompileError: the engine does not take it for the sizes of the trace. Others that it does not take run as ATen.
    """

    _boxed_call = True

    def __init__(self, name: str, gm: GraphModule, compile_fixed: Callable[[GraphModule], Any]) -> None:
        described = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
        numbers = [i for i, x in enumerate(described) if not isinstance(x, Tensor)]
        tensors = [i for i, x in enumerate(described) if isinstance(x, Tensor) and any(map(is_open, x.shape))]
        shapes = [described[i].shape for i in tensors]
        told = [*(n for shape in shapes for n in shape), *(described[i] for i in numbers)]
        strides = _free_strides(described, told)
        sizes = Sizes([*told, *(described[i].stride(d) for i, d in strides)])

        def fixed(key: tuple[Any, ...]) -> Product:
            shapes, values = key[: len(tensors)], key[len(tensors) :]
            evaluate = sizes([*(n for shape in shapes for n in shape), *values])
            try:
                graph = _fixed(gm, dict(zip(numbers, values, strict=False)), evaluate)
            except UnknownSizeError as e:
                raise CompileError(f"{name} does not know a size: {e}") from e
            return Product(compile_fixed(graph), graph)

        # Not of `self`, which would keep itself.
        self._sized = lru_cache(MOST_SIZES)(
            lambda key: _Sized(gm, lambda: fixed(key), f"{name} leaves a region of the sizes {key} as it is")
        )
        self._tensors, self._numbers, self._strides = tensors, numbers, strides
        alone = [*(described[i] for i in numbers), *(described[i].stride(d) for i, d in strides)]
        first = *(torch.Size(map(hint, shape)) for shape in shapes), *map(hint, alone)
        sized = self._sized(first)
        if sized.why:
            raise CompileError(sized.why)
        sized.run = sized.compiled  # if it fails, that is for who called the compiler to know
        self._last = first, sized

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        key, sized = self._last
        if (found := self._key(args)) != key:
            sized = self._sized(found)
            self._last = found, sized
        return sized.run(args)

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        key = *(args[i].shape for i in self._tensors), *(args[i] for i in self._numbers)
        return (*key, *(args[i].stride(d) for i, d in self._strides)) if self._strides else key

    def kernels(self, inputs: Sequence[Any]) -> list[Kernel]:
        """Those of what runs for these sizes."""
        sized = self._sized(self._key(inputs))
        kernels = explained(sized.product).kernels(inputs)
        return [replace(kernel, why=sized.why) if sized.why else kernel for kernel in kernels]

    def observed(self, inputs: list[Any], around: Around) -> Sequence[Any]:
        """A call for these sizes."""
        return explained(self._sized(self._key(inputs)).product).observed(inputs, around)
