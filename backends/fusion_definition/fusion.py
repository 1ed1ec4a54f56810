"""One compiled fusion: inputs of one layout in, outputs of the strides that the graph promises out."""

import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.backends.fusion_definition.builder import Builder, Declined
from aotkit.backends.fusion_definition.engine import Around, Definition, Engine
from aotkit.backends.fusion_definition.table import lowered, text_of, unknown
from aotkit.errors import CompileError
from aotkit.stages import Kernel

Strides = tuple[tuple[int, ...], ...]

# nvFuser defines a fusion under a guard of the process; equal ones in use are one.
_LOCK = threading.Lock()
_FUSIONS: WeakValueDictionary[Any, "Fusion"] = WeakValueDictionary()


class Fusion:
    """A definition and how its results become the graph's.

    Args:
        strides: of each input; the sizes are the graph's.

    Raises:
        CompileError: the engine does not take the graph; the message names the node.
    """

    def __init__(self, engine: Engine, gm: GraphModule, strides: Strides, device: torch.device) -> None:
        results: list[Node] = list(gm.graph.output_node().args[0])  # type: ignore[arg-type]
        self._promised = [r.meta["val"].stride() for r in results]
        self._engine, self._device = engine, device
        self._run = threading.Lock()
        self._wrong: list[int] | None = None
        self._definition, self._values = _define(engine, gm, strides, device)
        self._execute = self._definition.execute

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        """Run it on inputs of its layout: one list of new tensors, none of which shares memory with another.

        The list of inputs is the engine's, which may write its results in the memory of those that nothing else has.
        """
        given = self._to_compare(inputs)
        with self._run:  # nvFuser's own caches are not for several threads
            outputs = self._execute(inputs, device=self._device)
        return outputs if self._wrong == [] else self._corrected(given, outputs)

    def kernels(self, inputs: list[Tensor], names: Sequence[str]) -> list[Kernel]:
        """What the engine launches; `names` are those of the graph's operations, in order."""
        operations = dict(zip(names, self._values, strict=True))
        with self._run:
            return self._engine.kernels(self._definition, inputs, self._device, operations)

    def observed(self, inputs: list[Tensor], around: Around) -> list[Tensor]:
        """What a call returns, kernel number `i` inside of `around(i)`."""
        given = self._to_compare(inputs)
        with self._run:
            outputs = self._engine.observed(self._definition, inputs, self._device, around)
        return self._corrected(given, outputs)

    def _to_compare(self, inputs: list[Tensor]) -> list[Tensor] | None:
        """The inputs, if it has yet to be seen whether results share their memory."""
        return list(inputs) if self._wrong is None else None

    def _corrected(self, given: list[Tensor] | None, outputs: list[Tensor]) -> list[Tensor]:
        if self._wrong is None:
            assert given is not None
            self._wrong = self._to_copy(given, outputs)
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


def fusion_of(engine: Engine, gm: GraphModule, strides: Strides, device: torch.device) -> Fusion:
    """The fusion of a graph for inputs of these strides: one that is in use, if there is an equal one."""
    key = engine, _text(gm), strides, device
    with _LOCK:
        if (fusion := _FUSIONS.get(key)) is None:
            _FUSIONS[key] = fusion = Fusion(engine, gm, strides, device)
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
        is_input = node.op == "placeholder"
        lines.append(f"{value.dtype} {value.device} {list(value.shape)}" if is_input else text_of(node, names))
    return "\n".join(lines)


def _define(
    engine: Engine, gm: GraphModule, strides: Strides, device: torch.device
) -> tuple[Definition, list[tuple[Any, ...]]]:
    """The definition, and its values of each operation of the graph."""
    failure: Exception | None = None
    layouts = iter(strides)
    plain = _are_row_major(gm, strides)
    values: list[tuple[Any, ...]] = []
    with engine.definition() as definition:
        builder = Builder(engine, definition)
        try:  # inside: an exception that leaves nvFuser's block is printed
            for node in gm.graph.nodes:
                if node.op == "placeholder":
                    builder.put(node, builder.input(node.meta["val"], next(layouts), device.type))
                elif node.op == "output":
                    for result in node.args[0]:
                        definition.add_output(_output(builder, result, plain))
                elif (reason := unknown(node, device.type, engine.name)) is not None:
                    raise Declined(reason)
                else:
                    builder.put(node, lowered(builder, node))
                    values.append(builder.values(node))
        except Exception as e:
            failure = e
    if failure is not None:
        error = CompileError(f"{engine.name} does not take {node.format_node()}: {failure}")
        error.operation, error.reason = node.name, str(failure)
        raise error from failure
    return definition, values


def _output(builder: Builder, node: Node, plain: bool) -> Any:
    """A result in the graph's type and order of strides; nvFuser's own choice follows the inputs."""
    value, promised = builder.stored(node), node.meta["val"]
    if promised.dim() == 0 or (plain and _is_row_major(promised.shape, promised.stride())):
        return value
    slowest_first = sorted(range(promised.dim()), key=lambda d: (-promised.stride(d), d))
    order = [promised.dim() - 1 - slowest_first.index(d) for d in range(promised.dim())]
    return builder.ops.stride_order(value, order)


def _are_row_major(gm: GraphModule, strides: Strides) -> bool:
    inputs = gm.graph.find_nodes(op="placeholder")
    return all(_is_row_major(n.meta["val"].shape, given) for n, given in zip(inputs, strides, strict=True))


def _is_row_major(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    kept = [stride for size, stride in zip(sizes, strides, strict=True) if size > 1]
    return kept == sorted(kept, reverse=True)
