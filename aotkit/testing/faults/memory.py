"""Wrong places in memory: strides, offsets, tails, shared and reused buffers, inputs written to."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.testing.faults.planting import Run, Subject, own
from aotkit.testing.faults.rewriting import calls, skip

aten = torch.ops.aten
faults = Subject("memory")


def _pointwise(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sin()


odd_size = own(_pointwise, lambda new: (new.normal(5, 7), new.normal(5, 7)))


@faults.results(odd_size)
def tail_zeroed(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """What an output has beyond a multiple of 16 elements is zero."""
    flat = results[0].flatten().clone()
    flat[flat.numel() // 16 * 16 :] = 0
    return [flat.view_as(results[0]), *results[1:]]


@faults.results(odd_size)
def last_element_of_the_neighbour(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """The last element is written one place too early, over its neighbour, and stays what it was."""
    flat = results[0].flatten().clone()
    flat[-2] = flat[-1]
    return [flat.view_as(results[0]), *results[1:]]


@faults.arguments(own(_pointwise, lambda new: (new.normal(4, 6).t(), new.normal(6, 4))))
def strides_ignored(arguments: list[Any]) -> list[Any]:
    """A transposed input is read as if it were contiguous."""
    return [x.as_strided(x.shape, torch.empty(x.shape).stride()) for x in arguments]


@faults.arguments(own(_pointwise, lambda new: (new.values(9, 4)[3:], new.normal(6, 4))))
def storage_offset_ignored(arguments: list[Any]) -> list[Any]:
    """An input that begins in the middle of its storage is read from its start."""
    return [x.as_strided(x.shape, x.stride(), 0) for x in arguments]


@faults.arguments(own(_pointwise, lambda new: (new.values(6, 8)[:, ::2], new.normal(6, 4))))
def stride_of_two_ignored(arguments: list[Any]) -> list[Any]:
    """Of an input with every other column of a matrix, neighbouring columns are read."""
    return [x.as_strided(x.shape, (x.stride(0), 1)) for x in arguments]


@faults.results(odd_size)
def wrong_device(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """The output is on another device."""
    return [results[0].to("meta"), *results[1:]]


@faults.results(odd_size)
def wrong_shape(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """The output has its dimensions exchanged."""
    return [results[0].t(), *results[1:]]


def _times_one(x: Tensor) -> Tensor:
    return x * 1


@faults.graph(own(_times_one, lambda new: (new.normal(5),)))
def input_returned(gm: GraphModule) -> None:
    """x * 1 is x itself, in the same memory."""
    skip(calls(gm, aten.mul)[0])


def _equal_outputs(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.sin()


@faults.results(own(_equal_outputs, lambda new: (new.values(5),)))
def one_memory_for_two_outputs(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """Two outputs with the same values share their memory."""
    return [results[0], results[0]]


@faults.arguments(odd_size)
def input_overwritten(arguments: list[Any]) -> list[Any]:
    """An intermediate value is stored in an input."""
    return [arguments[0].detach().mul_(arguments[1]), torch.ones_like(arguments[1])]


@faults.results(odd_size)
def input_overwritten_by_a_kernel(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """An input is scratch memory of a kernel, which autograd does not notice."""
    arguments[1].data.zero_()
    return results


@faults.results("mutates_an_input")
def mutation_lost(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """An input that the function changes in place stays as it was."""
    return [arguments[0].clone(), *results[1:]]


@faults.results("updates_a_running_mean")
def buffer_not_updated(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """A running mean, of which no output depends on the new value, is not updated."""
    return [arguments[0].clone(), *results[1:]]


def _scattered(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(7, 4, dtype=x.dtype).index_put((index,), x * 2)


scattered = own(_scattered, lambda new: (new.normal(5, 4), new.integers(7, 5)))


@faults.run(scattered)
def uninitialised_memory(run: Run) -> Run:
    """What a scatter does not write to is what was in memory before."""

    def call(*arguments: Any) -> list[Any]:
        output, *others = run(*arguments)
        written = torch.zeros(7, 1, dtype=torch.bool).index_fill(0, arguments[1], True)
        return [torch.where(written, output, 1.7e-3), *others]

    return call
