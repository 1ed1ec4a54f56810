"""Inductor's kernels for the random words of `aotkit.random`: a few operations for each element, without memory.

Words are computed where they are read, as everything pointwise is. Each draw has a key, two 32-bit numbers made of the
seed in 64-bit arithmetic. On a GPU it is a scalar in each kernel that reads the draw. A loop on a CPU would compute it
anew for each vector, because whatever it stores might be the seed: there the keys of all draws of a graph are a small
tensor, made first.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from sympy import Integer  # type: ignore[import-untyped]
from torch._inductor.ir import Pointwise
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.virtualized import V, ops

# Graph -> node of a seed -> number of a draw -> name of the tensor with its key.
_keys: WeakKeyDictionary[Any, dict[Any, dict[int, str]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Number:
    """An integer of a kernel, with the operators of an integer tensor."""

    value: Any
    dtype: torch.dtype

    def _with(self, operation: Callable[..., Any], other: "Number | int") -> "Number":
        value = ops.constant(other, self.dtype) if isinstance(other, int) else other.value
        return Number(operation(self.value, value), self.dtype)

    def __add__(self, other: "Number | int") -> "Number":
        return self._with(ops.add, other)

    def __mul__(self, other: "Number | int") -> "Number":
        return self._with(ops.mul, other)

    def __xor__(self, other: "Number | int") -> "Number":
        return self._with(ops.bitwise_xor, other)

    def __and__(self, other: "Number | int") -> "Number":
        return self._with(ops.bitwise_and, other)

    def __rshift__(self, other: "Number | int") -> "Number":
        return self._with(ops.bitwise_right_shift, other)

    def to(self, dtype: torch.dtype) -> "Number":
        return Number(ops.to_dtype(self.value, dtype, src_dtype=self.dtype), dtype)


def lower_random_words(operator: Any, key: Callable[..., Any], hashed: Callable[..., Any], index_type: Any) -> None:
    """Teach Inductor an operator `(seed, number, size, device)`.

    Args:
        key: (seed, number) -> the two parts of a key, of tensors or of what has their operators.
        hashed: (index, *key) -> words, likewise.
        index_type: number of elements -> type of an element's index.
    """
    if operator in lowerings:
        return

    @register_lowering(operator, type_promotion_kind=None)
    def lowered(seed: Any, number: int, size: Sequence[Any], device: torch.device) -> Any:
        dtype = index_type(V.graph.current_node.meta["val"].numel())
        seed.realize()
        load = (_key_in_memory if stores_keys(device) else _key_in_kernel)(seed, number, key)

        def word(index: Sequence[Any]) -> Any:
            element = sum((i * math.prod(size[d + 1 :]) for d, i in enumerate(index)), Integer(0))
            return hashed(Number(ops.index_expr(element, dtype), dtype), *load()).value

        return Pointwise.create(device=device, dtype=torch.int32, inner_fn=word, ranges=[*size])


def stores_keys(device: torch.device) -> bool:
    return device.type == "cpu"


def _key_in_kernel(seed: Any, number: int, key: Callable[..., Any]) -> Callable[[], Sequence[Number]]:
    load = seed.make_loader()
    return lambda: key(Number(load(()), torch.int64), number)


def _key_in_memory(seed: Any, number: int, key: Callable[..., Any]) -> Callable[[], Sequence[Number]]:
    node = V.graph.current_node
    known = _keys.setdefault(V.graph, {})
    if node.args[0] not in known:
        draws = [n for n in node.graph.find_nodes(op="call_function", target=node.target) if n.args[0] is node.args[0]]
        known[node.args[0]] = _keys_of(seed, sorted({n.args[1] for n in draws}), key)
    load = V.graph.get_buffer(known[node.args[0]][number]).make_loader()
    return lambda: [Number(load((Integer(half),)), torch.int32) for half in (0, 1)]


def _keys_of(seed: Any, numbers: Sequence[int], key: Callable[..., Any]) -> dict[int, str]:
    """The names of tensors that have the keys of draws, two numbers each.

    They are copies of what one loop computes: a kernel that reads one has nothing in it that tells which draw it is,
    so that equal layers of a network have one kernel.
    """
    load, step = seed.make_loader(), math.gcd(*(n - numbers[0] for n in numbers)) or 1

    def part(index: Sequence[Any]) -> Any:
        draw, half = index
        number = Number(ops.index_expr(Integer(numbers[0]) + draw * step, torch.int64), torch.int64)
        # Inductor does arithmetic on indices by itself, and knows no overflow; what is not an index, it leaves alone.
        low, high = key(Number(load(()), torch.int64), number ^ 0)
        first = ops.eq(ops.index_expr(half, torch.int64), ops.constant(0, torch.int64))
        return ops.where(first, low.value, high.value)

    keys = _in_memory(part, [(numbers[-1] - numbers[0]) // step + 1, 2])

    def copied(place: Any) -> str:
        return str(_in_memory(lambda index: keys.make_loader()((place, *index)), [2]).get_name())

    return {number: copied(Integer((number - numbers[0]) // step)) for number in numbers}


def _in_memory(compute: Callable[[Sequence[Any]], Any], size: Sequence[int]) -> Any:
    """A small tensor of numbers on the CPU."""
    found = Pointwise.create(device=torch.device("cpu"), dtype=torch.int32, inner_fn=compute, ranges=size)
    found.realize()
    return found
