"""A compiled region: what nvFuser computes, and what remains for ATen."""

import operator
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.backends.fusion_definition.draws import lift_numbers, shape_indices
from aotkit.backends.fusion_definition.fusion import Fusion, Layout, fusion_of
from aotkit.backends.fusion_definition.shapes import VIEWS
from aotkit.errors import CompileError
from aotkit.stages import Kernel, Operators, subgraph
from aotkit.torch_private.fx import boxed

MOST_LAYOUTS = 8
_CUDA_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\s*\(")


class Region:
    """A graph of operators that nvFuser takes, as a callable.

    One fusion computes every result of the device, except inputs and views, which are the inputs' and the fusion's own
    tensors again, as in ATen. Inputs of other strides than the first ones, such as gradients that are expanded, get a
    fusion of their own.
    """

    _boxed_call = True

    def __init__(self, nvfuser: Any, gm: GraphModule, fused: GraphModule, computed: list[Node]) -> None:
        inputs = gm.graph.find_nodes(op="placeholder")
        results: Sequence[Any] = gm.graph.output_node().args[0]  # type: ignore[assignment]
        rest = _computing(gm, [*computed, *inputs], results)
        self._reads = _indices(inputs, fused)
        self._kept = _indices([*computed, *inputs], rest)
        self._rest, self._apart = boxed(rest), Operators(rest)
        self._numbers = lift_numbers(fused.graph)
        self._fused, self._device = fused, (device := computed[0].meta["val"].device)
        # Not of `self`, which would keep itself, and with it its fusions.
        self._fusion = lru_cache(MOST_LAYOUTS)(lambda layout: fusion_of(nvfuser, fused, layout, device))
        first = _layout([n.meta["val"] for n in fused.graph.find_nodes(op="placeholder")])
        self._last: tuple[Layout, Fusion] = first, self._fusion(first)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        inputs = self._inputs(args)
        layout, fusion = self._last
        if (found := _layout(inputs)) != layout:
            fusion = self._fusion(found)
            self._last = found, fusion
        values = [*fusion(inputs), *args]
        args.clear()
        kept = [values[i] for i in self._kept]
        del inputs, values
        return self._rest(kept)

    def _inputs(self, args: Sequence[Any]) -> list[Tensor]:
        return [*(args[i] for i in self._reads), *self._numbers]

    def kernels(self, inputs: Sequence[Tensor]) -> list[Kernel]:
        """The fusion, of which nvFuser may make several CUDA kernels, and what remains for ATen."""
        cuda = self.cuda(*inputs)
        names = _CUDA_KERNEL.findall(cuda)
        code = f"{self.definition}\n\n{self.scheduled(*inputs)}\n\n{cuda}"
        fused = tuple(n.name for n in self._fused.graph.nodes if n.op == "call_function")
        fusion = Kernel(names[0] if len(names) == 1 else "fusion", fused, "nvFuser", code, len(names) or None)
        return [fusion, *self._apart.kernels(())]

    def observed(self, inputs: Sequence[Tensor], around: Callable[[int], Any]) -> Sequence[Any]:
        """A call, in two parts: the fusion, then the rest."""
        read = self._inputs(inputs)
        with around(0):
            values = [*self._fusion(_layout(read))(read), *inputs]
        return self._apart.observed([values[i] for i in self._kept], lambda i: around(1 + i))

    @property
    def definition(self) -> str:
        """The fusion as Python code of nvFuser's, which shows six digits of a number; for the last inputs' layout."""
        return repr(self._last[1].definition)

    def scheduled(self, *inputs: Tensor) -> str:
        """The fusion as nvFuser's scheduler lays it out, for the inputs of the region; it compiles if it has to."""
        return self._ask("get_scheduled_ir", inputs)

    def cuda(self, *inputs: Tensor) -> str:
        """The CUDA kernels for the inputs of the region; it compiles if it has to."""
        return self._ask("get_cuda_kernel", inputs)

    def _ask(self, question: str, inputs: Sequence[Tensor]) -> str:
        read = self._inputs(inputs)
        definition = self._fusion(_layout(read)).definition
        definition.execute(read, device=self._device)
        return str(getattr(definition.fec, question)(read))


def compile_region(nvfuser: Any, gm: GraphModule, device_type: str) -> Callable[..., Any]:
    """A callable for the graph; where nothing is computed from a tensor on the device, the graph itself.

    Raises:
        CompileError: nvFuser does not take the graph.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    if any(not isinstance(n.meta.get("val"), Tensor) for n in inputs):
        raise CompileError("nvfuser compiles graphs of fixed sizes only; compile with dynamic=False")
    shape_indices(gm.graph)
    results = filter(None, map(_computed, gm.graph.output_node().all_input_nodes))
    computed = [n for n in dict.fromkeys(results) if n.meta["val"].device.type == device_type]
    fused = _computing(gm, inputs, computed)
    if not fused.graph.find_nodes(op="placeholder"):
        gm.recompile()
        return gm
    return Region(nvfuser, gm, fused, computed)


def _computed(node: Node) -> Node | None:
    """The node whose memory a result is in, unless that is an input."""
    while node.target in VIEWS or (node.target is operator.getitem and node.all_input_nodes[0].target in VIEWS):
        node = node.all_input_nodes[0]
    return node if node.op == "call_function" else None


def _computing(gm: GraphModule, inputs: Sequence[Node], results: Sequence[Any]) -> GraphModule:
    """The part of a graph that computes these results from these nodes; its inputs are those nodes that it reads."""
    needed, known = {r for r in results if isinstance(r, Node)}, set(inputs)
    for node in reversed(gm.graph.nodes):
        if node in needed and node not in known:
            needed.update(node.all_input_nodes)
    return subgraph(gm, needed - known, [n for n in inputs if n in needed], results)


def _indices(inputs: Sequence[Node], part: GraphModule) -> list[int]:
    """Which of the inputs a part of the graph reads."""
    read = {n.name for n in part.graph.find_nodes(op="placeholder")}
    return [i for i, n in enumerate(inputs) if n.name in read]


def _layout(tensors: list[Tensor]) -> Layout:
    return tuple([(x.shape, x.stride()) for x in tensors])
