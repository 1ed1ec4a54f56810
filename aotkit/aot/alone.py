"""Compile and run one graph outside of AOTAutograd."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.aot.graphs import copy_graph, outside_fake_mode
from aotkit.aot.tracing import settings


def compile_alone(compiler: Callable[..., Any], gm: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Hand `gm` to a compiler as AOTAutograd would: each node with a fake tensor, and a tracing context in force.

    Args:
        inputs: real tensors like those that the graph is to run on.
    """
    from torch._guards import TracingContext, tracing

    fake_mode, fakes = propagate(gm, inputs)
    with tracing(TracingContext(fake_mode)), settings(), outside_fake_mode():
        return compiler(gm, fakes)  # type: ignore[no-any-return]


def part_of_graph() -> AbstractContextManager[Any]:
    """Parts of a graph are compiled under this: what compilers read and report of the whole graph is not theirs."""
    from torch._guards import TracingContext, tracing

    context = TracingContext.try_get()
    return tracing(TracingContext(context.fake_mode)) if context is not None else nullcontext()


def propagate(gm: GraphModule, inputs: Sequence[Tensor]) -> tuple[Any, list[Tensor]]:
    """Give each node of a graph a fake tensor, views over the memory of their bases; return (mode, fake inputs)."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    # Constants of a graph are real tensors.
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes: list[Tensor] = [fake_mode.from_tensor(x, static_shapes=True) for x in inputs]
    FakeTensorProp(gm, fake_mode).propagate_dont_convert_inputs(*fakes)
    return fake_mode, fakes


def without_autocast() -> AbstractContextManager[Any]:
    """Graphs run under this: they have the casts of autocast already."""
    return torch._C._DisableAutocast()


def random_states() -> list[Tensor]:
    """The states of torch's generators: the CPU's, then one for each CUDA device that is in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *cuda]


def set_random_states(states: Sequence[Tensor]) -> None:
    """Put generators back into the states that `random_states` gave."""
    cpu, *cuda = states
    torch.set_rng_state(cpu)
    torch.cuda.set_rng_state_all(cuda)


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
