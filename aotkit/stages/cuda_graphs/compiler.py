"""CUDA graphs around any backend: the kernels of a whole graph are launched at once, from fixed places in memory."""

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.interfaces import Backend, GraphCompiler
from aotkit.passes import IS_NEW_STORAGE, copy_graph, is_symbol, results_of, tensors_of
from aotkit.runtime import if_on_cpu
from aotkit.stages.calls import Product, boxed_call
from aotkit.stages.cuda_graphs.replay import Replayed, pays
from aotkit.stages.graph_launches import Kernel, explained, launches_of
from aotkit.torch_private.aotautograd import part_of_graph

_log = logging.getLogger("aotkit")
# Operators with these tags wait for the device, or draw numbers that a replay would have to draw anew.
ILLEGAL = {
    torch.Tag.data_dependent_output: "reads a value from the device",
    torch.Tag.dynamic_output_shape: "has as many results as its values say",
    torch.Tag.nondeterministic_seeded: "draws from torch's generator",
}


def with_cuda_graphs(backend: Backend) -> Backend:
    """The same backend, whose compiled graphs are recorded as CUDA graphs on their second run, and replayed from then.

    A graph that cannot be recorded runs as usual, and the log of `aotkit` says why. So does one whose launches take the
    host no longer than a replay would.
    """
    return replace(
        backend,
        fw_compiler=Recorder(backend.fw_compiler),
        bw_compiler=Recorder(backend.bw_compiler or backend.fw_compiler),
        inference_compiler=Recorder(backend.inference_compiler or backend.fw_compiler),
        unavailable=functools.partial(_unavailable, backend.unavailable),
    )


def _unavailable(why_not: Callable[[], str | None]) -> str | None:
    return why_not() or (None if torch.cuda.is_available() else "CUDA graphs need a CUDA device, and torch finds none.")


@dataclass(frozen=True)
class Recorder:
    """A graph compiler that has what another one compiles recorded."""

    compiler: GraphCompiler

    @property
    def __name__(self) -> str:
        return str(getattr(self.compiler, "__name__", type(self.compiler).__name__))

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        if reason := why_not(gm):
            _log.warning("A graph of %d operations runs without CUDA graphs: %s.", len(gm.graph.nodes), reason)
            return self.compiler(gm, example_inputs)
        device = next(x.device for x in example_inputs if x.is_cuda)
        passed = passed_on(gm)
        # A kernel would get the value of a number on the CPU as it was when it was recorded.
        moved, inputs = scalars_on(device, gm, example_inputs)
        numbers = [i for i, (before, x) in enumerate(zip(example_inputs, inputs, strict=True)) if before is not x]
        kept = copy_graph(moved)
        compiled = self.compiler(moved, inputs)
        if pays(launches := launches_of(compiled), len(numbers)):
            return Replayed(boxed_call(compiled), passed, device, explained(Product(compiled, kept)), launches)
        if not numbers:
            return compiled
        with part_of_graph():  # AOTAutograd has been told of the strides of the results
            on_cpu = self.compiler(copy_graph(gm), example_inputs)
        unrecorded = Unrecorded(Product(on_cpu, gm), Product(compiled, kept), numbers, device)
        run = if_on_cpu(boxed_call(on_cpu), unrecorded.on_device, numbers)
        run.kernels, run.observed = unrecorded.kernels, unrecorded.observed
        return run  # type: ignore[no-any-return]


class Unrecorded:
    """A graph that is not recorded, but may get numbers that a recording has left on the device.

    Args:
        product: for numbers on the CPU.
        moved: for numbers on the device.
        numbers: of these inputs.
    """

    def __init__(self, product: Product, moved: Product, numbers: Sequence[int], device: torch.device) -> None:
        self._run_moved = boxed_call(moved.run)
        self._explained = explained(product), explained(moved)
        self._numbers, self._device = numbers, device

    def on_device(self, args: list[Any]) -> Sequence[Any]:
        """A call where a number is there."""
        self._place(args)
        return self._run_moved(args)

    def kernels(self, inputs: Sequence[Tensor]) -> Sequence[Kernel]:
        """Those of a call with these inputs."""
        inputs = list(inputs)
        return self._explained[self._place(inputs)].kernels(inputs)

    def observed(self, inputs: list[Any], around: Callable[[int], AbstractContextManager[None]]) -> Sequence[Any]:
        """The same kernels, one after the other."""
        return self._explained[self._place(inputs)].observed(inputs, around)

    def _place(self, inputs: list[Any]) -> bool:
        """Whether a number is on the device; then all are now."""
        is_moved = not all(inputs[i].is_cpu for i in self._numbers)
        if is_moved:
            for i in self._numbers:
                inputs[i] = inputs[i].to(self._device)
        return is_moved


def why_not(gm: GraphModule) -> str | None:
    """Why a graph cannot be recorded; None if it can.

    Numbers on the CPU that are inputs, such as the seed of a call, and what is computed from them alone can be on the
    device as well.
    """
    devices, movable = set[torch.device](), set[Node]()
    for node in gm.graph.nodes:
        tensors = tensors_of(node)
        if is_symbol(node) or any(_is_open(t) for t in tensors):
            return f"{node.name} has open sizes"
        if all(t.device.type == "cpu" for t in tensors) and _is_movable(node, tensors, movable):
            movable.add(node)
        elif not all(t.is_cuda for t in tensors):
            return f"{node.name} is not on a CUDA device"
        else:
            devices |= {t.device for t in tensors}
        for tag, reason in ILLEGAL.items():
            if tag in getattr(node.target, "tags", ()):
                return f"{node.name} ({node.target}) {reason}"
        if node.target is torch.ops.aten.copy_.default and _is_input(node.args[0]):
            return f"{node.name} writes into an input"
        if IS_NEW_STORAGE in node.meta:
            return f"{node.name} is given to an input, which keeps its memory"
    return None if len(devices) == 1 else f"it is on {len(devices)} CUDA devices"


def _is_movable(node: Node, tensors: Sequence[Tensor], movable: set[Node]) -> bool:
    if _is_input(node):
        return all(t.dim() == 0 for t in tensors)
    return bool(node.all_input_nodes) and movable.issuperset(node.all_input_nodes) and "device" not in node.kwargs


def _is_open(tensor: Tensor) -> bool:
    return any(isinstance(n, torch.SymInt) for n in (*tensor.shape, *tensor.stride()))


def _is_input(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "placeholder"


def passed_on(gm: GraphModule) -> dict[int, int]:
    """The results that are inputs: number of the result -> number of the input."""
    number = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    return {i: number[result] for i, result in enumerate(results_of(gm)) if result in number}


def scalars_on(device: torch.device, gm: GraphModule, inputs: Sequence[Tensor]) -> tuple[GraphModule, list[Tensor]]:
    """A copy of a graph that takes its 0-dimensional inputs on a device, and what stands for all of its inputs then.

    The graph itself stays as it is: what is noted of its inputs is also that of the backward graph, which may share it.
    """
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    copy, fakes = copy_graph(gm), list(inputs)
    if moving := [i for i, x in enumerate(inputs) if x.dim() == 0 and x.device != device]:
        fake_mode: Any = inputs[0].fake_mode  # type: ignore[attr-defined]
        with fake_mode:
            for i in moving:
                fakes[i] = torch.empty_strided((), (), dtype=inputs[i].dtype, device=device)
        FakeTensorProp(copy, fake_mode).propagate_dont_convert_inputs(*fakes)
    return copy, fakes
