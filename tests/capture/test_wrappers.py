"""Tensors around one other tensor: a call hands that to the graph, and wraps its results."""

import pytest
import torch
import torch.distributed as dist

import aotkit
from aotkit.compiled.modules import function_of


@pytest.fixture
def mesh():
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
def test_calls_take_the_way_of_wrapped_tensors(mesh):
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    x = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Replicate()])

    def scaled(x):
        return x * 2 + 1

    fast = aotkit.compile(scaled, backend="nop", capture="dynamo", check=False)
    result = fast(x)
    assert type(result) is DTensor
    assert torch.equal(result.to_local(), x.to_local() * 2 + 1)
    (piece,) = function_of(fast).captured
    assert "subclass around others" in piece.way_in.detour
