"""What a process asks of its helper: a graph, how to compile it, and what surrounds its call."""

import os
import pickle
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aotkit.capture.recipe import Randomness, Recipe
from aotkit.capture.sent_graph import NotSendable
from aotkit.registry import AUTO, BACKENDS, PARTITIONERS
from aotkit.torch_private.aotautograd import settings_now
from aotkit.torch_private.switches import environment


@dataclass(frozen=True)
class Request:
    """A graph to compile, by what recipe, and what surrounds the call.

    Attributes:
        graph: as `sent_graph.packed` has it.
        backend, partition: names that every process knows; "auto" is the same backend there.
        environment: that of `switches.environment`.
        autocast: for each device on which it is on, what to.
        settings: those of torch's compilers.
        variables: of the operating system's environment.
    """

    graph: bytes
    name: str
    backend: str
    partition: str
    random: Randomness
    environment: tuple[Hashable, ...]
    grad: bool
    autocast: dict[str, torch.dtype]
    default_dtype: torch.dtype
    deterministic: tuple[bool, bool]
    precision: str
    threads: int
    device: int | None
    settings: Mapping[str, Mapping[str, Any]]
    variables: dict[str, str]


def request_for(graph: bytes, recipe: Recipe) -> bytes:
    """What the helper is to do for a graph that is called now.

    Raises:
        NotSendable: the backend or the partitioner lives in this process only.
    """
    backend, partition = recipe.asked_for, recipe.partition_name
    if not (backend == AUTO or backend.startswith("dynamo:") or BACKENDS.is_installed(backend)):
        raise NotSendable(f"only this process knows the backend {backend!r}")
    if not PARTITIONERS.is_installed(partition):
        raise NotSendable(f"only this process knows the partitioner {partition!r}")
    request = Request(
        graph, recipe.name, backend, partition, recipe.random, environment(), torch.is_grad_enabled(),
        {d: torch.get_autocast_dtype(d) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)},
        torch.get_default_dtype(),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        torch.get_float32_matmul_precision(), torch.get_num_threads(),
        _device(), settings_now(), dict(os.environ),
    )  # fmt: skip
    try:
        return pickle.dumps(request)
    except Exception as e:  # as many kinds as there are objects
        raise NotSendable(f"{type(e).__name__}: {e}") from e


def _device() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
