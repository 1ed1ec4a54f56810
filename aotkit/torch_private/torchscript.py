"""TorchScript's NNC fuser."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def nnc_fuses_on_cpu() -> bool:
    """Whether this PyTorch was built with the LLVM that NNC generates CPU code with."""
    return bool(torch._C._llvm_enabled())


@contextmanager
def nnc_fuser() -> Iterator[None]:
    """TorchScript code that is compiled meanwhile is fused by NNC.

    `torch.jit.fuser("fuser1")` says the same, and warns about NVFuser, which it also sets.
    """
    switches: list[tuple[Any, Any]] = [
        (torch._C._jit_set_profiling_executor, torch._C._jit_set_profiling_executor(True)),
        (torch._C._get_graph_executor_optimize, torch._C._get_graph_executor_optimize(True)),
        (torch._C._jit_set_texpr_fuser_enabled, torch._C._jit_texpr_fuser_enabled()),
        (torch._C._jit_override_can_fuse_on_gpu, torch._C._jit_can_fuse_on_gpu()),
        (torch._C._jit_override_can_fuse_on_cpu, torch._C._jit_can_fuse_on_cpu()),
    ]
    torch._C._jit_set_texpr_fuser_enabled(True)
    torch._C._jit_override_can_fuse_on_gpu(True)
    torch._C._jit_override_can_fuse_on_cpu(nnc_fuses_on_cpu())
    try:
        yield
    finally:
        for switch, before in switches:
            switch(before)
