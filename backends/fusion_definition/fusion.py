"""One compiled fusion: inputs of one layout in, outputs of the strides that the graph promises out."""

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.backends.fusion_definition.builder import Builder, Declined, dtype_of
from aotkit.backends.fusion_definition.table import TABLE, declining, text_of
from aotkit.errors import CompileError

Layout = tuple[tuple[Sequence[int], Sequence[int]], ...]

# nvFuser defines a fusion under a guard of the process; equal ones in use are one.
_LOCK = threading.Lock()
_FUSIONS: WeakValueDictionary[Any, "Fusion"] = WeakValueDictionary()


class Fusion:
    """A FusionDefinition and how its results become the graph's.

    Args:
        inputs: sizes and strides of each input.

    Raises:
        CompileError: nvFuser does not take the graph; the message names the node.
    """

    def __init__(self, nvfuser: Any, gm: GraphModule, inputs: Layout, device: torch.device) -> None:
        self._results: list[Node] = list(gm.graph.output_node().args[0])  # type: ignore[arg-type]
        self._promised = [r.meta["val"].stride() for r in self._results]
        self._device = device
        self._run = threading.Lock()
        self._wrong: list[int] | None = None
        self.definition = _define(nvfuser, gm, inputs, device)

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        """Run it on inputs of its layout: one list of new tensors, none of which shares memory with another."""
        with self._run:  # nvFuser's own caches are not for several threads
            outputs: list[Tensor] = self.definition.execute(inputs, device=self._device)
        if self._wrong is None:
            self._wrong = self._to_copy(inputs, outputs)
        for i in self._wrong:
            copy = outputs[i].new_empty_strided(outputs[i].shape, self._promised[i])
            outputs[i] = copy.copy_(outputs[i])
        return outputs

    def _to_copy(self, inputs: list[Tensor], outputs: list[Tensor]) -> list[int]:
        """Outputs of other strides than promised, and those that share memory: nvFuser makes no copies of its own.

        Which ones depends on the definition alone.
        """
        taken = {x.untyped_storage().data_ptr() for x in inputs}
        wrong = []
        for i, (output, promised) in enumerate(zip(outputs, self._promised, strict=True)):
            place = output.untyped_storage().data_ptr()
            strides = zip(output.shape, output.stride(), promised, strict=True)
            if place in taken or any(size > 1 and got != want for size, got, want in strides):
                wrong.append(i)
            taken.add(place)
        return wrong


def fusion_of(nvfuser: Any, gm: GraphModule, inputs: Layout, device: torch.device) -> Fusion:
    """The fusion of a graph for inputs of these sizes and strides: one that is in use, if there is an equal one."""
    key = id(nvfuser), _text(gm), inputs, device
    with _LOCK:
        if (fusion := _FUSIONS.get(key)) is None:
            _FUSIONS[key] = fusion = Fusion(nvfuser, gm, inputs, device)
    return fusion


def _text(gm: GraphModule) -> str:
    names: dict[Node, str] = {}
    lines = []
    for node in gm.graph.nodes:
        if node.op == "output":
            results = [(names[n], n.meta["val"].stride()) for n in node.args[0]]
            lines.append(f"return {results}")
            break
        names[node] = f"%{len(names)}"
        value = node.meta["val"]
        lines.append(f"{value.dtype} {value.device}" if node.op == "placeholder" else text_of(node, names))
    return "\n".join(lines)


def _define(nvfuser: Any, gm: GraphModule, inputs: Layout, device: torch.device) -> Any:
    declines: Callable[[Node], str | None] = declining(device.type)
    failure: Exception | None = None
    layouts = iter(inputs)
    plain = all(_is_row_major(*layout) for layout in inputs)
    with nvfuser.FusionDefinition() as fd:
        builder = Builder(nvfuser, fd)
        try:  # inside: an exception that leaves the block is printed
            for node in gm.graph.nodes:
                if node.op == "placeholder":
                    builder.put(node, _input(builder, fd, node, next(layouts), device))
                elif node.op == "output":
                    for result in node.args[0]:
                        fd.add_output(_output(builder, result, plain))
                elif (reason := declines(node)) is not None:
                    raise Declined(reason)
                else:
                    builder.put(node, TABLE[node.target](builder, node, *node.args, **node.kwargs))
        except Exception as e:
            failure = e
    if failure is not None:
        raise CompileError(f"nvFuser does not take {node.format_node()}: {failure}") from failure
    return fd


def _input(builder: Builder, fd: Any, node: Node, layout: Any, device: torch.device) -> Any:
    sizes, strides = layout
    on_cpu = node.meta["val"].device.type == "cpu" and device.type != "cpu"
    dtype = builder.type(dtype_of(node))
    return fd.define_tensor(sizes=list(sizes), strides=list(strides), dtype=dtype, static_sizes=True, is_cpu=on_cpu)


def _output(builder: Builder, node: Node, plain: bool) -> Any:
    """A result in the graph's type and order of strides; nvFuser's own choice follows the inputs."""
    value, promised = builder.stored(node), node.meta["val"]
    if promised.dim() == 0 or (plain and _is_row_major(promised.shape, promised.stride())):
        return value
    slowest_first = sorted(range(promised.dim()), key=lambda d: (-promised.stride(d), d))
    order = [promised.dim() - 1 - slowest_first.index(d) for d in range(promised.dim())]
    return builder.ops.stride_order(value, order)


def _is_row_major(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    kept = [stride for size, stride in zip(sizes, strides, strict=True) if size > 1]
    return kept == sorted(kept, reverse=True)
