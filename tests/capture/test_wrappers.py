"""Tensors around one other tensor, as DTensors are: a call hands their parts to the graph, and wraps its results."""

import torch
from torch.utils._pytree import tree_map_only

import aotkit
from aotkit.compiled.modules import function_of


class Wrapper(torch.Tensor):
    """Of one tensor with twice as many rows as itself."""

    @staticmethod
    def __new__(cls, part):
        shape = (part.shape[0] // 2, *part.shape[1:])
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=part.dtype, requires_grad=part.requires_grad)

    def __init__(self, part):
        self.part = part

    def __tensor_flatten__(self):
        return ["part"], None

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Wrapper(parts["part"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(Wrapper, lambda t: t.part, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapper, function(*args, **kwargs))


def test_calls_take_the_way_of_wrapped_tensors():
    x = Wrapper(torch.arange(8.0).view(4, 2))

    def scaled(x):
        return x * 2 + 1

    fast = aotkit.compile(scaled, backend="nop", capture="dynamo", check=False)
    assert torch.equal(fast(x).part, x.part * 2 + 1)
    (piece,) = function_of(fast).captured
    assert "subclass around others" in piece.way_in.detour
