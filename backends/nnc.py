"""TorchScript with the NNC fuser, the compiler of functorch's tutorial.

NNC fuses pointwise operations and reductions. functorch's own `ts_compile` scripts the Python code that torch.fx
prints, which fails on devices, factory functions and infinite constants; here each graph is written in TorchScript.
"""

import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from functorch.compile import default_decompositions
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.interfaces import Backend
from aotkit.random import random_state
from aotkit.stages import Kernel
from aotkit.torch_private.torchscript import nnc_fuser, nnc_fuses_on_cpu

_GROUP = re.compile(r"prim::TensorExprGroup_\d+")
_OPERATOR = re.compile(r"= (aten::\w+)\(.*# <string>:(\d+):(\d+)")
# The first run records shapes, the second compiles what it saw, the third runs the kernels.
WARM_UP_RUNS = 3


def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """A callable that fuses the graph on its first inputs.

    Raises:
        ValueError: the graph has symbolic sizes, for which NNC makes no kernels, or is on a device that it cannot use.
    """
    if any(not isinstance(x, Tensor) for x in example_inputs):
        raise ValueError("nnc compiles graphs of fixed sizes only; compile with dynamic=False")
    if not nnc_fuses_on_cpu() and any(x.device.type == "cpu" and x.dim() for x in example_inputs):
        raise ValueError("nnc fuses CPU code only in PyTorch builds with LLVM; move the inputs to the CUDA device")
    return FusedGraph(gm)


class FusedGraph:
    """A graph that NNC compiles on its first call.

    Attributes:
        source: the graph in TorchScript.
        optimized_graph: what TorchScript made of it; each fused kernel is a `prim::TensorExprGroup`.
    """

    def __init__(self, gm: GraphModule) -> None:
        results: Sequence[Any] = gm.graph.output_node().args[0]  # type: ignore[assignment]
        self._are_tensors = [r is not None for r in results]  # TorchScript returns tensors only
        self._constants = [getattr(gm, str(n.target)) for n in gm.graph.find_nodes(op="get_attr")]
        self.source = torchscript(gm)
        with _quiet():
            self._scripted = torch.jit.CompilationUnit(self.source).graph
        self.optimized_graph = ""

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor | None]:
        if not any(self._are_tensors):
            return [None] * len(self._are_tensors)
        inputs = (*inputs, *self._constants)
        if not self.optimized_graph:
            self._fuse(inputs)
        values = iter(self._scripted(*inputs))
        return [next(values) if is_tensor else None for is_tensor in self._are_tensors]

    def kernels(self, inputs: Sequence[Tensor]) -> list[Kernel]:
        """What TorchScript runs: each group is a kernel of NNC's, the rest are operators."""
        if not self.optimized_graph:
            self(*inputs)
        return _kernels(self.optimized_graph, self.source)

    def observed(self, inputs: Sequence[Tensor], around: Callable[[int], Any]) -> Sequence[Tensor | None]:
        """A call; where TorchScript runs several kernels, they cannot be told apart."""
        with around(0) if len(self.kernels(inputs)) == 1 else nullcontext():
            return self(*inputs)

    def _fuse(self, inputs: Sequence[Tensor]) -> None:
        # Warming up draws random numbers that the function itself does not draw.
        with random_state(), _quiet(), torch.no_grad(), nnc_fuser():
            for _ in range(WARM_UP_RUNS):
                self._scripted(*inputs)
            self.optimized_graph = str(self._scripted.graph_for(*inputs))


def _kernels(optimized: str, source: str) -> list[Kernel]:
    """The kernels of an optimized graph, each line of which says from where in the source it comes.

    What TorchScript took apart, as it does `addmm`, comes from another source: at no place of ours is there a call.
    """
    calls = {}
    for number, line in enumerate(source.splitlines(), 1):
        name, equals, _ = line.partition(" = ")
        calls[number, len(name + equals)] = name.strip()
    graph, *groups = optimized.split("\nwith ")
    code = {group.partition(" ")[0]: group.partition(" = ")[2] for group in groups}

    def operations(text: str) -> tuple[str, ...]:
        places = [(int(line), int(column)) for _, line, column in _OPERATOR.findall(text)]
        return tuple(calls[place] for place in places if place in calls)

    found = []
    for line in graph.splitlines():
        if (group := _GROUP.search(line)) is not None:
            text = code[group[0]]
            found.append(Kernel(group[0], operations(text), "TorchScript", text))
        elif (operator := _OPERATOR.search(line)) is not None:
            found.append(Kernel(operator[1], operations(line), "ATen", why="NNC does not take it"))
    return found


def torchscript(gm: GraphModule) -> str:
    """The graph as a TorchScript function named `graph`; constants of the module are its last parameters."""
    parameters, constants, lines = [], [], []
    for node in gm.graph.nodes:
        match node.op:
            case "placeholder":
                parameters.append(node.name)
            case "get_attr":
                constants.append(node.name)
            case "output":
                results = [r.name for r in node.args[0] if r is not None]
                lines.append(f"return ({', '.join(results)},)")
            case "call_function":
                lines.append(f"{node.name} = {_call(node)}")
    body = "\n    ".join(lines)
    return f"def graph({', '.join([*parameters, *constants])}):\n    {body}\n"


def _call(node: Node) -> str:
    if node.target is operator.getitem:
        return f"{_text(node.args[0])}[{node.args[1]}]"
    target: Any = node.target
    if not hasattr(target, "overloadpacket"):
        raise ValueError(f"nnc knows operators of torch.ops only, not {target}")
    namespace, name = target.name().split("::")
    is_cast = target is torch.ops.aten._to_copy.default and set(node.kwargs) == {"dtype"}
    if is_cast and node.meta["val"].dtype != node.all_input_nodes[0].meta["val"].dtype:
        name = "to"  # the fuser knows this one, which copies only to convert
    arguments = [_text(a) for a in node.args] + [f"{k}={_text(v)}" for k, v in node.kwargs.items()]
    return f"torch.ops.{namespace}.{name.partition('.')[0]}({', '.join(arguments)})"


def _text(value: Any) -> str:
    match value:
        case Node():
            return value.name
        case list() | tuple() if not value:
            return "torch.jit.annotate(List[int], [])"
        case list() | tuple():
            return f"[{', '.join(map(_text, value))}]"
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case torch.device():
            return f'torch.device("{value}")'
        case torch.dtype() | torch.layout() | torch.memory_format():
            return str(value)
        case _:
            return repr(value)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        # TorchScript as a whole is deprecated; whoever asks for NNC has chosen it.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def unavailable() -> str | None:
    """NNC needs a CUDA device, or LLVM."""
    if torch.cuda.is_available() or nnc_fuses_on_cpu():
        return None
    return "NNC fuses CPU code only in PyTorch builds with LLVM, which this one is not, and there is no CUDA device."


backend = Backend(
    fw_compiler=compile_graph, decompositions=default_decompositions, fixed_sizes=True, unavailable=unavailable
)
