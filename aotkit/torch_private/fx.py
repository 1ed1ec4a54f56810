"""Graph modules whose Python code is generated when somebody asks for it, or runs them.

To generate and compile the code of a graph takes as long as to change it, and most graphs of a compilation are copied
and changed several times before anything runs them. fx has such modules too, which TorchScript cannot script.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.nn import Module

aten = torch.ops.aten
# What the same operator is called by in Python: that takes a third of the time until its kernel runs.
BINDINGS: dict[Any, Any] = {
    aten.addmm.default: torch.addmm,
    aten.baddbmm.default: torch.baddbmm,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.clone.default: torch.clone,
    aten.detach.default: torch.detach,
    aten.embedding.default: torch.embedding,
    aten.expand.default: torch.Tensor.expand,
    aten.mm.default: torch.mm,
    aten.permute.default: torch.permute,
    aten.select.int: torch.select,
    aten.squeeze.dim: torch.squeeze,
    aten.t.default: torch.t,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: torch.reshape,
}
GENERATED = ("_code", "_lineno_map", "_prologue_start")  # attributes that `recompile` sets


class _CodeWhenAsked(GraphModule):
    """Each instance has a class of its own, in which `recompile` puts `forward` when there is code."""

    @property
    def graph(self) -> Graph:
        return self._graph

    @graph.setter
    def graph(self, graph: Graph) -> None:
        self._graph = graph
        graph.owning_module = self
        if has_code(self):
            self.recompile()
        else:
            type(self).forward = _Forward(self)  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name in GENERATED:
            self.recompile()
            return self.__dict__[name]
        return super().__getattr__(name)

    def __reduce__(self) -> Any:
        if not has_code(self):  # fx looks at the attributes first, and generates code then
            self.recompile()
        return super().__reduce__()


class _Forward:
    """In place of a module's `forward`, and of its class's, as tracers look for it there."""

    def __init__(self, gm: GraphModule) -> None:
        self._module = weakref.ref(gm)

    def __get__(self, gm: GraphModule | None, owner: type[GraphModule]) -> Any:
        module = self._module()
        assert module is not None
        module.recompile()
        return owner.forward if gm is None else gm.forward


def graph_module(root: Module | dict[str, Any], graph: Graph) -> GraphModule:
    """`GraphModule(root, graph)`, whose code is generated when it is asked for."""
    return _CodeWhenAsked(root, graph)


def scriptable(gm: GraphModule) -> GraphModule:
    """The graph of a lazy module of fx in one that TorchScript can script; other modules as they are."""
    if not isinstance(gm, _LazyGraphModule):
        return gm
    made = graph_module(gm, gm.graph)
    made.meta.update(gm.meta)
    return made


def has_code(gm: GraphModule) -> bool:
    """Whether the code of a module has been generated."""
    return "_code" in gm.__dict__


def renew_code(gm: GraphModule) -> None:
    """After a change of a module's graph: generate its code anew, if it has any."""
    if has_code(gm):
        gm.recompile()


def boxed(gm: GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    """Run the graph as it is, from one list that it empties, so that each input is freed after its last use.

    Some kernels give other strides than PyTorch's trace takes them to, as batch norm does on a CPU for a transposed
    input. What the trace takes for a view of such a result is then a copy.
    """
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.target = BINDINGS.get(node.target, node.target)
    graph.set_codegen(torch.fx.graph._BoxedCodeGen())
    run = graph_module(gm, graph).forward
    call: Callable[[list[Any]], Sequence[Any]] = lambda args: run(args)  # noqa: E731  (methods take no attributes)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def operator_name(operator: Any) -> tuple[str, ...] | None:
    """Where below `torch` another process finds an operator that pickle cannot find; None for anything else."""
    if isinstance(operator, torch._ops.OpOverload):
        return ("ops", *operator._schema.name.split("::"), operator._overloadname)
    if isinstance(operator, torch._ops.OpOverloadPacket):
        return ("ops", *operator._qualified_op_name.split("::"))
    if isinstance(operator, torch._ops.HigherOrderOperator):
        return "ops", operator.namespace or "higher_order", operator.__name__
    if isinstance(operator, FunctionType) and "<locals>" in operator.__qualname__:  # as `max_pool2d`
        found = next((name for name, value in vars(torch.nn.functional).items() if value is operator), None)
        return ("nn", "functional", found) if found else None
    return None


def operator_named(name: tuple[str, ...]) -> Any:
    """The operator of this name."""
    return functools.reduce(getattr, name, torch)
