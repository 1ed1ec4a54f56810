"""torch.distributed: who belongs to a group, where ranks leave each other messages, and what wraps a module."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import nn


def is_running() -> bool:
    """Whether this process is one of several."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _group(group: Any) -> Any:
    from torch.distributed import distributed_c10d

    resolve: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
    return resolve(group) if isinstance(group, str) else group


def size_and_rank(group: Any) -> tuple[int, int]:
    """How many ranks a group has, and which of them this one is.

    Args:
        group: the group, or its name.
    """
    found = _group(group)
    return found.size(), found.rank()


def ranks_of(group: Any) -> list[int]:
    """The ranks of a group, by their numbers in the default one."""
    return torch.distributed.get_process_group_ranks(_group(group))


class Store:
    """Where ranks leave each other messages: the store by which they found each other."""

    def __init__(self) -> None:
        from torch.distributed.distributed_c10d import _get_default_store

        self._store: Any = _get_default_store()

    @property
    def timeout(self) -> timedelta:
        """How long ranks wait for each other, as `init_process_group` was told."""
        return self._store.timeout  # type: ignore[no-any-return]

    def leave(self, key: str, message: str) -> None:
        """Leave a message."""
        self._store.set(key, message)

    def found(self, key: str) -> str | None:
        """A message; None as long as there is none. This does not wait."""
        return self._store.get(key).decode() if self._store.check([key]) else None


def groups_around(fn: Any) -> list[list[int]]:
    """The ranks of each group that trains what a call of `fn` belongs to: those of DDP around it, or of FSDP in it.

    DDP counts where the backward pass of this call is going to reduce gradients.
    """
    found = []
    around: Any = nn.parallel.DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if around is not None and around.require_backward_grad_sync and torch.is_grad_enabled():
        found.append(ranks_of(around.process_group))
    module = getattr(fn, "__self__", fn)
    if isinstance(module, nn.Module):
        found += [mesh.mesh.flatten().tolist() for mesh in _fsdp_meshes(module)]
    return found


def _fsdp_meshes(module: nn.Module) -> Iterator[Any]:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    states = _states()
    for part in module.modules():
        if isinstance(part, fsdp.FSDPModule) and part in states and (state := states[part]()) is not None:
            groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.11 has one at most
            for group in groups if groups is not None else [state._fsdp_param_group]:
                if group is not None:
                    yield group.mesh_info.mesh


def share_state(module: nn.Module, other: nn.Module) -> None:
    """Have torch take `other` for `module`, whose attributes it shares: FSDP keeps a table of modules."""
    states = _states()
    if (state := states.get(module)) is not None:
        states[other] = state


def _states() -> Any:
    """Modules -> references to what FSDP and its like know of them; empty until one of these is used."""
    table = sys.modules.get("torch.distributed._composable_state")
    return {} if table is None else table._module_state_mapping
