"""A compiled region: what an engine computes, and what remains for ATen."""

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.backends.fusion_definition.draws import lift_numbers, shape_indices
from aotkit.backends.fusion_definition.engine import Around, Engine
from aotkit.backends.fusion_definition.fusion import Fusion, Strides, fusion_of
from aotkit.backends.fusion_definition.open_sizes import OpenRegion, open_numbers
from aotkit.backends.fusion_definition.shapes import VIEWS
from aotkit.errors import CompileError
from aotkit.stages import Kernel, Operators, computing, places_read
from aotkit.torch_private.fx import boxed

MOST_LAYOUTS = 8


class Region:
    """A graph of operators that an engine takes, as a callable.

    One fusion computes every result of the device, except inputs and views, which are the inputs' and the fusion's own
    tensors again, as in ATen. Inputs of other strides than the first ones, such as gradients that are expanded, get a
    fusion of their own; their sizes are the graph's.

    Attributes:
        source: all that decides what it computes, besides the graph.
    """

    _boxed_call = True

    def __init__(self, engine: Engine, gm: GraphModule, fused: GraphModule, computed: list[Node]) -> None:
        inputs = gm.graph.find_nodes(op="placeholder")
        results: Sequence[Any] = gm.graph.output_node().args[0]  # type: ignore[assignment]
        self._operations = [n.name for n in fused.graph.nodes if n.op == "call_function"]
        self._reads = places_read(inputs, fused)
        self._numbers = lift_numbers(fused.graph)
        device = computed[0].meta["val"].device
        # Not of `self`, which would keep itself, and with it its fusions.
        self._fusion = lru_cache(MOST_LAYOUTS)(lambda strides: fusion_of(engine, fused, strides, device))
        first = _strides([n.meta["val"] for n in fused.graph.find_nodes(op="placeholder")])
        self._last: tuple[Strides, Fusion] = first, self._fusion(first)
        self._is_all = list(results) == computed
        self._keeps = places_read(inputs, computing(gm, [*computed, *inputs], results))
        self._rest = _Rest(gm, [*computed, *map(inputs.__getitem__, self._keeps)], results)
        self.source = engine.version()

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        inputs = self._inputs(args)
        strides, fusion = self._last
        if (found := _strides(inputs)) != strides:
            fusion = self._fusion(found)
            self._last = found, fusion
        kept = [*map(args.__getitem__, self._keeps)]
        args.clear()  # so that what the fusion is the last to read is its own
        values = fusion(inputs)
        return values if self._is_all else self._rest(values + kept)

    def _inputs(self, args: Sequence[Any]) -> list[Tensor]:
        return [*map(args.__getitem__, self._reads), *self._numbers]

    def data(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Nothing: it is made of its graph again, and what was built of that is kept by its code."""
        return {}, {}

    def kernels(self, inputs: Sequence[Tensor]) -> list[Kernel]:
        """Those of the fusion, by its engine, and what remains for ATen."""
        read = self._inputs(inputs)
        return [*self._fusion(_strides(read)).kernels(read, self._operations), *self._rest.apart.kernels(())]

    def observed(self, inputs: list[Any], around: Around) -> Sequence[Any]:
        """A call, in two parts: the fusion, then the rest."""
        read, kept = self._inputs(inputs), [*map(inputs.__getitem__, self._keeps)]
        inputs.clear()
        count = 0

        def counted(i: int) -> AbstractContextManager[Any]:
            nonlocal count
            count = max(count, i + 1)
            return around(i)

        values = [*self._fusion(_strides(read)).observed(read, counted), *kept]
        return self._rest.apart.observed(self._rest.read(values), lambda i: around(count + i))


class _Rest:
    """What is left of a graph where some of its nodes are computed: views, and what is computed of numbers alone.

    Args:
        known: nodes whose values are given to a call, in order.
    """

    def __init__(self, gm: GraphModule, known: Sequence[Node], results: Sequence[Any]) -> None:
        part = computing(gm, known, results)
        self._reads = places_read(known, part)
        computes = any(n.op == "call_function" for n in part.graph.nodes)
        self._order = None if computes else _order(known, results)
        self._run, self.apart = boxed(part), Operators(part)

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        """It empties the list."""
        if self._order is not None:
            values.append(None)
            return list(map(values.__getitem__, self._order))
        read = self.read(values)
        values.clear()
        return self._run(read)

    def read(self, values: Sequence[Any]) -> list[Any]:
        """Those of the given ones that it reads."""
        return [values[i] for i in self._reads]


def _order(known: Sequence[Node], results: Sequence[Any]) -> list[int] | None:
    """Where results are in a list of these nodes' values and None; None if there are others."""
    at: dict[Any, int] = {node: i for i, node in enumerate(known)} | {None: len(known)}
    return [at[r] for r in results] if all(r in at for r in results) else None


def compile_region(engine: Engine, gm: GraphModule, device_type: str) -> Callable[..., Any]:
    """A callable for the graph; where nothing is computed from a tensor on the device, the graph itself.

    Raises:
        CompileError: the engine does not take the graph.
    """
    if any(map(open_numbers, gm.graph.nodes)):
        if (sized := engine.of_open_sizes) is None:
            raise CompileError(f"{engine.name} compiles graphs of fixed sizes only; compile with dynamic=False")
        return OpenRegion(engine.name, gm, lambda fixed: compile_region(sized, fixed, device_type))
    inputs = gm.graph.find_nodes(op="placeholder")
    shape_indices(gm.graph)
    results = filter(None, map(_computed, gm.graph.output_node().all_input_nodes))
    computed = [n for n in dict.fromkeys(results) if n.meta["val"].device.type == device_type]
    fused = computing(gm, inputs, computed)
    if not fused.graph.find_nodes(op="placeholder"):
        gm.recompile()
        return gm
    return Region(engine, gm, fused, computed)


def _computed(node: Node) -> Node | None:
    """The node whose memory a result is in, unless that is an input."""
    while node.target in VIEWS or (node.target is operator.getitem and node.all_input_nodes[0].target in VIEWS):
        node = node.all_input_nodes[0]
    return node if node.op == "call_function" else None


def _strides(tensors: list[Tensor]) -> Strides:
    return tuple(map(Tensor.stride, tensors))
