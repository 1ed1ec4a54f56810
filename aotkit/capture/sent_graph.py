"""A graph that TorchDynamo captured, apart from TorchDynamo and from the process: to be compiled later, or elsewhere.

Who makes it anew gets the same nodes and fake inputs as everybody else who does, so that what a compiler keeps for one
of them serves the others.
"""

import enum
import io
import pickle
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from aotkit.capture.captured_graph import assigned_data, strides_of_captured
from aotkit.passes import strides_of
from aotkit.torch_private.fake_tensors import fixed_fake_mode
from aotkit.torch_private.fx import graph_module, operator_name, operator_named

MARK = "dynamo_compile_id"  # on a graph module: AOTAutograd then looks which inputs are static


class NotSendable(Exception):
    """A graph needs what is known, or lives, only where it was captured."""


class _Ref(NamedTuple):
    """In place of a node, in the arguments of another one."""

    name: str


class _Node(NamedTuple):
    """A node without its neighbours.

    Attributes:
        static: how TorchDynamo says that an input stays in its place.
        strides: those of a result in eager, where they are known.
        shape: its shape.
    """

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any
    trace: str | None
    static: Any = None
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Input:
    """What a fake tensor is made of."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    elements: int  # of its storage
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    is_parameter: bool


def packed(gm: GraphModule, inputs: Sequence[Any]) -> bytes:
    """A graph that TorchDynamo captured, and its inputs, which may be fake.

    Raises:
        NotSendable: it has open sizes, inputs that share memory or others than plain tensors, assigns `.data`, or calls
            what cannot be found by its name.
    """
    # Their own list keeps each alive, so that its identity tells it from the others.
    storages = [x.untyped_storage() for x in inputs if isinstance(x, Tensor) and x.layout is torch.strided]
    if len({id(storage) for storage in storages}) < len(inputs):
        raise NotSendable("inputs share memory, or are no plain tensors")
    if assigned_data(gm):
        raise NotSendable("it assigns data")
    nodes = _nodes(gm)
    results: Any = gm.graph.output_node().args[0]
    known = {r.name: s for r, s in zip(results, strides_of_captured(gm), strict=True) if isinstance(r, Node) and s}
    for i, node in enumerate(nodes):
        if node.name in known:
            strides = tuple(known[node.name] or ())
            shape = next(tuple(r.meta["example_value"].shape) for r in results if getattr(r, "name", "") == node.name)
            nodes[i] = node._replace(shape=shape, strides=strides)
    return _pickled((nodes, [_input(x) for x in inputs]))


def unpacked(data: bytes) -> tuple[GraphModule, list[Tensor], Any]:
    """The graph, fake inputs for it, and the mode that these are of."""
    nodes, described = _unpickled(data)
    mode = fixed_fake_mode()
    with mode, torch.enable_grad():
        inputs = [_fake(x) for x in described]
        # What is known of results are their strides.
        results = {n.name: torch.empty_strided(n.shape, n.strides) for n in nodes if n.strides is not None}
    gm: Any = _module(nodes)
    gm.meta[MARK] = None
    gm._param_name_to_source = {}
    for node in gm.graph.nodes:
        if node.name in results:
            node.meta["example_value"] = results[node.name]
    return gm, inputs, mode


def _is_open(value: Any) -> bool:
    if isinstance(value, Tensor):
        return strides_of([value]) == [None] or not all(type(n) is int for n in (*value.shape, *value.stride()))
    if isinstance(value, tuple | list):
        return any(map(_is_open, value))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _nodes(gm: GraphModule) -> list[_Node]:
    found = []
    for node in gm.graph.nodes:
        target = node.target
        if _is_open(node.meta.get("example_value")):
            raise NotSendable("it has open sizes")
        if node.op == "get_attr":
            value = getattr(gm, str(target), None)
            if not isinstance(value, GraphModule):
                raise NotSendable(f"it holds {target}")
            target = (target, _nodes(value))
        elif node.op == "call_module":
            raise NotSendable(f"it calls the module {target}")
        args, kwargs = (map_arg(given, lambda n: _Ref(n.name)) for given in (node.args, node.kwargs))
        static = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
        found.append(_Node(node.op, node.name, target, args, kwargs, node.meta.get("stack_trace"), static))
    return found


def _module(nodes: Sequence[_Node]) -> GraphModule:
    graph, made, root = Graph(), dict[str, Node](), nn.Module()

    def resolved(given: Any) -> Any:
        if isinstance(given, _Ref):
            return made[given.name]
        if isinstance(given, tuple):
            values = tuple(map(resolved, given))
            return type(given)(*values) if hasattr(given, "_fields") else values
        if isinstance(given, list):
            return [*map(resolved, given)]
        if isinstance(given, dict):
            return {key: resolved(value) for key, value in given.items()}
        if isinstance(given, slice):
            return slice(*map(resolved, (given.start, given.stop, given.step)))
        return given

    for sent in nodes:
        target = sent.target
        if sent.op == "get_attr":
            target, value = target
            setattr(root, target, _module(value))
        node = graph.create_node(sent.op, target, resolved(sent.args), resolved(sent.kwargs), sent.name)
        made[sent.name] = node
        if sent.trace is not None:
            node.meta["stack_trace"] = sent.trace
        if sent.op == "placeholder":
            node._dynamo_source = None
            node.meta["tensor_dict"] = {"_dynamo_static_input_type": sent.static}
    return graph_module(root, graph)


def _input(x: Tensor) -> _Input:
    if x.is_inference() or x.is_conj() or x.is_neg() or _is_open(x):
        raise NotSendable("an input is no plain tensor")
    elements = x.untyped_storage().nbytes() // x.element_size()
    return _Input(
        tuple(x.shape), x.stride(), int(x.storage_offset()), elements, x.dtype, x.device, x.requires_grad, x.is_leaf,
        isinstance(x, nn.Parameter),
    )  # fmt: skip


def _fake(x: _Input) -> Tensor:
    storage = torch.empty(x.elements, dtype=x.dtype, device=x.device).untyped_storage()
    made = torch.empty(0, dtype=x.dtype, device=x.device).set_(storage, x.offset, x.shape, x.strides)
    if x.is_parameter:
        return nn.Parameter(made, requires_grad=x.requires_grad)
    made.requires_grad_(x.requires_grad)
    inner: Any = _Inner
    return made if x.is_leaf else inner.apply(made)


class _Inner(torch.autograd.Function):
    """A tensor that autograd has computed, in the same memory layout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


# All else may have a state that a copy would not share, as a random generator has.
_PLAIN = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, types.ModuleType, enum.Enum, slice, type(...), list, dict, tuple, complex,
    torch.dtype, torch.device, torch.layout, torch.memory_format, _Input,
)  # fmt: skip


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return operator_name(obj)

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, _PLAIN):
            raise NotSendable(f"it holds a {type(obj).__name__}")
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, name: Any) -> Any:
        return operator_named(name)


def _pickled(what: Any) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file).dump(what)
    except Exception as e:  # as many kinds as there are objects
        raise NotSendable(f"{type(e).__name__}: {e}") from e
    return file.getvalue()


def _unpickled(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()
