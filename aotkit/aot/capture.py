"""Joint graphs over fake tensors, which have sizes and no memory, and how partitioners are run on them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from aotkit.aot.graphs import copy_graph
from aotkit.aot.tracing import settings


@dataclass(frozen=True)
class Joint:
    """A joint graph as AOTAutograd hands it to a partitioner.

    Attributes:
        inputs: (primals, tangents), fake tensors.
        keywords: `num_fwd_outputs`, and what this version of torch passes besides.
    """

    gm: GraphModule
    inputs: Any
    keywords: Mapping[str, Any]

    @property
    def num_outputs(self) -> int:
        """How many outputs of the forward graph are not saved values."""
        return int(self.keywords["num_fwd_outputs"])


def fake_tensors() -> AbstractContextManager[Any]:
    """Tensors that are made under this have shapes, strides and devices, but no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def partition_copy(partition: Callable[..., Any], joint: Joint) -> tuple[GraphModule, GraphModule]:
    """Run a partitioner as AOTAutograd would, on a copy of a joint graph."""
    return partition_as_traced(partition, replace(joint, gm=copy_graph(joint.gm)))


def partition_as_traced(partition: Callable[..., Any], joint: Joint) -> tuple[GraphModule, GraphModule]:
    """Run a partitioner as AOTAutograd would, on the joint graph itself."""
    from torch._guards import TracingContext, detect_fake_mode, tracing

    fake_mode = detect_fake_mode(joint.inputs)
    assert fake_mode is not None
    with tracing(TracingContext(fake_mode)), settings(), fake_mode, torch.no_grad():
        return partition(joint.gm, joint.inputs, **joint.keywords)  # type: ignore[no-any-return]


def memory_budget(fraction: float) -> AbstractContextManager[Any]:
    """torch's min-cut saves at most about this fraction of the bytes that it saves by default."""
    from torch._functorch import config

    return config.patch(activation_memory_budget=fraction)  # type: ignore[no-any-return]
