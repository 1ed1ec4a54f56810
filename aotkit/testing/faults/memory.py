"""Wrong places in memory: strides, offsets, tails, shared and reused buffers, inputs written to."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.testing.case import Case, Inputs
from aotkit.testing.faults.planting import Run, Subject

aten = torch.ops.aten
faults = Subject("memory")


def pointwise(inputs: Callable[[Inputs], tuple[Any, ...]]) -> Case:
    return Case.of("pointwise", lambda x, y: (x * y).sin(), inputs)


def without_tail(x: Tensor) -> Tensor:
    """Zero beyond a multiple of 16 elements."""
    flat = x.flatten().clone()
    flat[flat.numel() // 16 * 16 :] = 0
    return flat.view_as(x)


odd_size = pointwise(lambda new: (new.normal(5, 7), new.normal(5, 7)))
faults.results(odd_size).add(
    "tail_zeroed",
    "What an output has beyond a multiple of 16 elements is zero.",
    lambda r: [without_tail(r[0]), *r[1:]],
)


@faults.results(odd_size)
def last_element_of_the_neighbour(results: list[Any]) -> list[Any]:
    """The last element is written one place too early, over its neighbour, and stays what it was."""
    flat = results[0].flatten().clone()
    flat[-2] = flat[-1]
    return [flat.view_as(results[0]), *results[1:]]


faults.arguments(pointwise(lambda new: (new.normal(4, 6).t(), new.normal(6, 4)))).add(
    "strides_ignored",
    "A transposed input is read as if it were contiguous.",
    lambda a: [x.as_strided(x.shape, torch.empty(x.shape).stride()) for x in a],
)
faults.arguments(pointwise(lambda new: (new.values(9, 4)[3:], new.normal(6, 4)))).add(
    "storage_offset_ignored",
    "An input that begins in the middle of its storage is read from its start.",
    lambda a: [x.as_strided(x.shape, x.stride(), 0) for x in a],
)
faults.arguments(pointwise(lambda new: (new.values(6, 8)[:, ::2], new.normal(6, 4)))).add(
    "stride_of_two_ignored",
    "Of an input with every other column of a matrix, neighbouring columns are read.",
    lambda a: [x.as_strided(x.shape, (x.stride(0), 1)) for x in a],
)
faults.results(odd_size).add("wrong_device", "The output is on another device.", lambda r: [r[0].to("meta"), *r[1:]])
faults.results(odd_size).add("wrong_shape", "The output has its dimensions exchanged.", lambda r: [r[0].t(), *r[1:]])
faults.operator(Case.of("times_one", lambda x: x * 1, lambda new: (new.normal(5),)), aten.mul).add(
    "input_returned", "x * 1 is x itself, in the same memory.", lambda x, one: x
)
faults.results(Case.of("equal_outputs", lambda x: (x.sin(), x.sin()), lambda new: (new.values(5),))).add(
    "one_memory_for_two_outputs", "Two outputs with the same values share their memory.", lambda r: [r[0], r[0]]
)
faults.arguments(odd_size).add(
    "input_overwritten",
    "An intermediate value is stored in an input.",
    lambda a: [a[0].detach().mul_(a[1]), torch.ones_like(a[1])],
)


@faults.run(odd_size)
def input_overwritten_by_a_kernel(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """An input is scratch memory of a kernel, which autograd does not notice."""
    results = run(*arguments)
    arguments[1].data.zero_()
    return results


@faults.run("mutates_an_input")
def mutation_lost(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """An input that the function changes in place stays as it was."""
    return [arguments[0].clone(), *run(*arguments)[1:]]


@faults.run("updates_a_running_mean")
def buffer_not_updated(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """A running mean, of which no output depends on the new value, is not updated."""
    return mutation_lost(run, arguments, kept)


scattered = Case.of(
    "scattered",
    lambda x, index: torch.zeros(7, 4, dtype=x.dtype).index_put((index,), x * 2),
    lambda new: (new.normal(5, 4), new.integers(7, 5)),
)


@faults.run(scattered)
def uninitialised_memory(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """What a scatter does not write to is what was in memory before."""
    output, *others = run(*arguments)
    return [torch.where(written(arguments[1]), output, 1.7e-3), *others]


def written(index: Tensor) -> Tensor:
    return torch.zeros(7, 1, dtype=torch.bool).index_fill(0, index, True)
