"""Running compiled graphs on their own, forward and then backward, for the time and the memory of what they launch."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.inspection import Graphs
from aotkit.launches.allocations import Mark, most_between_marks
from aotkit.launches.stopwatch import Clock, Timing, clock_for
from aotkit.passes import size_hint
from aotkit.random import random_state
from aotkit.stages import BlackBox, Kernel, Product, boxed_call, explained
from aotkit.torch_private.autograd import is_profiling
from aotkit.torch_private.switches import without_autocast

ROUNDS = 5
WARM_UP_ROUNDS = 2


@dataclass
class Times:
    """Medians of a few rounds, in seconds.

    Attributes:
        device: of most of the inputs.
        told: "forward" and "backward" -> the kernels, as the compiler tells.
        kernels: "forward" and "backward" -> number of the kernel -> its time, if it could be told apart.
        seconds: "forward" and "backward" -> time of it all.
        peaks: "forward" and "backward" -> number of the kernel -> the most bytes held from the end of the one before to
            its own, if it could be told apart. What the graphs are given does not count.
        peak: the most of it all; None if that could not be measured.
        made_up: whether the inputs are stand-ins of the sizes that it was traced with.
        failure: why it was not timed.
    """

    device: torch.device
    told: dict[str, list[Kernel]] = field(default_factory=dict)
    kernels: dict[str, dict[int, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, dict[int, int]] = field(default_factory=dict)
    peak: int | None = None
    made_up: bool = False
    failure: str | None = None


def timed(graphs: Graphs, products: Mapping[str, Product], inputs: Sequence[Any]) -> Times:
    """Run the graphs a few times. Neither the inputs nor the states of random generators change."""
    given, made_up = _inputs(graphs.forward, inputs)
    times = Times(_device(given), made_up=made_up)
    with torch.no_grad(), without_autocast(), random_state():
        try:
            _time(times, graphs, products, given)
            if not is_profiling():
                _watch(times, graphs, products, given)
        except Exception as e:  # a compiled graph may take no other inputs than those of the call itself
            times.failure = f"{type(e).__name__}: {e}"
            times.kernels, times.seconds, times.peaks, times.peak = {}, {}, {}, None
            times.told |= {r: BlackBox(p).kernels(()) for r, p in products.items() if r not in times.told}
    return times


def _time(times: Times, graphs: Graphs, products: Mapping[str, Product], given: Sequence[Any]) -> None:
    clock = clock_for(times.device)
    seconds: dict[str, list[float]] = defaultdict(list)
    kernels: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for i in range(WARM_UP_ROUNDS + ROUNDS):
        inputs = given
        for role, product in products.items():
            if i == 0:
                times.told[role] = list(explained(product).kernels(_copies(inputs)))
            results, total, spans = _measured(clock, product, inputs)
            if i >= WARM_UP_ROUNDS:
                seconds[role].append(total)
                for number, span in spans.items():
                    kernels[role][number].append(span)
            if role == "forward" and graphs.backward is not None:
                inputs = _backward_inputs(graphs, results)
    times.seconds = {role: statistics.median(values) for role, values in seconds.items()}
    times.kernels = {
        role: {number: statistics.median(values) for number, values in found.items()} for role, found in kernels.items()
    }


def _watch(times: Times, graphs: Graphs, products: Mapping[str, Product], given: Sequence[Any]) -> None:
    """Run the graphs once more, each value freed as in a call, and note how much is held."""
    ended: list[tuple[str, int]] = []
    inputs = _copies(given)

    def step(mark: Mark) -> object:
        def run(role: str, inputs: list[Any]) -> Sequence[Any]:
            @contextmanager
            def around(number: int) -> Iterator[None]:
                yield
                ended.append((role, number))
                mark()

            return explained(products[role]).observed(inputs, around)

        results = run("forward", [*inputs])
        if graphs.backward is None:
            return results
        outputs, passed = results[: graphs.num_outputs], _backward_inputs(graphs, results)
        del results
        return outputs, run("backward", passed)

    peaks = most_between_marks(step, times.device)
    times.peak = max(peaks)
    if ended:
        *before, last, rest = peaks  # what follows the last kernel counts as a part of it
        for (role, number), peak in zip(ended, [*before, max(last, rest)], strict=True):
            times.peaks.setdefault(role, {})[number] = peak


def _measured(clock: Clock, product: Product, inputs: Sequence[Any]) -> Timing:
    """Run a graph as it runs in a call, and once more kernel by kernel: its results, its time, its kernels' times."""
    whole, apart = boxed_call(getattr(product.run, "unrecorded", product.run)), explained(product)
    given = _copies(inputs)
    _, total, _ = clock(lambda around: whole(given))
    given = _copies(inputs)
    results, _, spans = clock(lambda around: apart.observed(given, around))
    return results, total, spans


def _inputs(forward: GraphModule, inputs: Sequence[Any]) -> tuple[list[Any], bool]:
    """The inputs of the forward graph, and whether they had to be made up: it may have others than the function."""
    promised = forward.graph.find_nodes(op="placeholder")
    if len(promised) == len(inputs) and all(map(_fits, promised, inputs)):
        return [x.detach() for x in inputs], False
    return [_stand_in(node) for node in promised], True


def _fits(node: Node, given: Any) -> bool:
    value = node.meta.get("val")
    return (
        isinstance(value, Tensor)
        and (value.dtype, value.device) == (given.dtype, given.device)
        and [size_hint(n) for n in (*value.shape, *value.stride())] == [*given.shape, *given.stride()]
    )


def _stand_in(node: Node) -> Any:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return size_hint(value) if isinstance(value, torch.SymInt) else value
    shape, stride = ([size_hint(n) for n in sizes] for sizes in (value.shape, value.stride()))
    made = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)  # type: ignore[arg-type]
    return made.normal_() if value.is_floating_point() or value.is_complex() else made.zero_()


def _backward_inputs(graphs: Graphs, results: Sequence[Any]) -> list[Any]:
    """Saved values, numbers first, then tangents."""
    assert graphs.backward is not None
    saved = sorted(results[graphs.num_outputs :], key=lambda value: isinstance(value, Tensor))
    tangents = graphs.backward.graph.find_nodes(op="placeholder")[len(saved) :]
    return [*saved, *map(_stand_in, tangents)]


def _copies(values: Sequence[Any]) -> list[Any]:
    """A graph may write into its inputs; views of one memory stay such."""
    copied: dict[tuple[torch.device, int], Any] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        memory = value.untyped_storage()
        if (key := (memory.device, memory.data_ptr())) not in copied:
            copied[key] = memory.clone()  # type: ignore[no-untyped-call]
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(copied[key], value.storage_offset(), value.shape, value.stride())

    return [copy(value) for value in values]


def _device(inputs: Sequence[Any]) -> torch.device:
    """The one that most elements are on."""
    sizes = Counter[torch.device]()
    for value in inputs:
        if isinstance(value, Tensor):
            sizes[value.device] += value.numel()
    return max(sizes, key=sizes.__getitem__, default=torch.device("cpu"))
