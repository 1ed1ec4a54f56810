"""Products of matrices whose rows take odd numbers of bytes: of padded matrices, and cut.

cuBLAS has no fast kernels for those, whatever the strides. On an H200, in bfloat16, [8192, 768] @ [768, 50257], with
the vocabulary of GPT-2, takes 6.7 ms, and with 50264 columns 0.9; its two gradients 4.5 and 4.3 ms, and 0.8; the
scores of ViT's 197 patches take 58 us, and with 200 columns 20. The zeros cost little where a kernel writes the matrix
anyway.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from aotkit.backends.fusion_definition.table import TABLE
from aotkit.passes import flops, size_hint, views_behind
from aotkit.torch_private.fx import renew_code

aten = torch.ops.aten
# Each with the place of its first matrix among its arguments; before that, there is what is added.
PRODUCTS: dict[Any, int] = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.baddbmm.default: 1}
PERMUTATIONS: dict[Any, Callable[..., Sequence[int]]] = {
    aten.t.default: lambda count: range(count)[::-1],
    aten.transpose.int: lambda count, a, b: _swapped(count, a, b),
    aten.permute.default: lambda count, dims: [d % count for d in dims],
}
Amounts = tuple[int, ...]
ALIGNMENT = 16  # bytes
FLOPS_PER_BYTE = 256  # what an H100 or H200 computes in 16-bit types, while it reads or writes a byte
# What an odd product takes longer than an even one: times what it computes, and times what it reads and writes.
# Measured on an H200, with 13 shapes: 4 or more of the one where that takes longer, else 0.3 to 3 of the other.
COMPUTING, MOVING = 4, 0.5
LEAST = 8 << 20  # bytes whose time a pass pays off from: what two more kernels cost


def pad_products(gm: GraphModule) -> None:
    """Pad matrices in place, where that is faster. Results keep their shapes, and those of the graph their strides."""
    padding = _Padding(gm.graph)
    for node in list(gm.graph.nodes):
        if (product := _product(node)) is not None and padding.pays(product):
            padding.replace(product)
    _refresh_views(gm.graph, padding.cut)
    renew_code(gm)


@dataclass(frozen=True)
class _Product:
    """One that is odd.

    Attributes:
        added: what is added to it, in a tuple; without that, the tuple is empty.
        rows, between, columns: how many zeros to add: of the first matrix, of what is summed over, of the second one.
    """

    node: Node
    added: tuple[Node, ...]
    first: Node
    second: Node
    rows: int
    between: int
    columns: int

    def operands(self) -> Iterator[tuple[Node, Amounts]]:
        """Each matrix, and how many zeros to add to each of its dimensions."""
        for node, more in (
            *((node, (self.rows, self.columns)) for node in self.added),
            (self.first, (self.rows, self.between)),
            (self.second, (self.between, self.columns)),
        ):
            sizes = node.meta["val"].shape
            by_dim = (*[0] * len(sizes), *more)[-len(sizes) :] if sizes else ()
            yield node, tuple(0 if n == 1 else m for n, m in zip(sizes, by_dim, strict=True))


def _product(node: Node) -> _Product | None:
    """A product in a 16-bit type on a GPU, if rows of a matrix, as they lie in memory, take an odd number of bytes."""
    if node.target not in PRODUCTS:
        return None
    value, operands = node.meta["val"], node.args[: PRODUCTS[node.target] + 2]
    *added, first, second = (x for x in operands if isinstance(x, Node))
    if value.device.type != "cuda" or value.dtype.itemsize != 2 or not value.is_floating_point():
        return None
    sizes = (*first.meta["val"].shape[-2:], second.meta["val"].shape[-1])
    if any(n == 1 for n in sizes):  # of a matrix and a vector
        return None
    along = {2, _along(first.meta["val"]), 1 + _along(second.meta["val"])}
    even = ALIGNMENT // value.dtype.itemsize
    more = [-n % even if dim in along and isinstance(n, int) else 0 for dim, n in enumerate(sizes)]
    return _Product(node, tuple(added), first, second, *more) if any(more) else None


def _along(matrix: Tensor) -> int:
    """Which of the last two dimensions lies in memory without gaps: cuBLAS reads a copy where neither does."""
    return 0 if matrix.stride(-2) == 1 and matrix.stride(-1) != 1 else 1


class _Padding:
    """Matrices of a graph, padded, and products that were cut from larger ones.

    Attributes:
        cut: those of which a reader sees other strides.
    """

    def __init__(self, graph: Graph) -> None:
        self.cut: list[Node] = []
        self._graph = graph
        self._padded: dict[Any, Node] = {}

    def pays(self, product: _Product) -> bool:
        """Whether it is worth what is written for it."""
        matrices = [product.node, product.first, product.second]
        gain = COMPUTING * flops(product.node) / FLOPS_PER_BYTE + MOVING * sum(map(_bytes, matrices))
        cost = sum(self._cost(node, amounts) for node, amounts in product.operands() if any(amounts))
        if product.columns and _is_seen(product.node):
            cost += 2 * _bytes(product.node)
        return gain > cost + LEAST

    def _cost(self, node: Node, amounts: Amounts) -> int:
        """Bytes that are read and written to pad a matrix: none if a kernel writes it for products alone."""
        base, amounts = _unpermuted(node, amounts)
        if (base, amounts) in self._padded:
            return 0
        if views_behind(base)[0].target not in TABLE:
            return 2 * _bytes(base)
        return 0 if _is_for_products(base) else _bytes(base)

    def replace(self, product: _Product) -> None:
        """A padded product in place of one."""
        node = product.node
        operands = [self._with_zeros(x, amounts, node) for x, amounts in product.operands()]
        with self._graph.inserting_before(node):
            made = self._added(node, node.target, *operands, *node.args[len(operands) :], **node.kwargs)
            is_apart = product.columns or node.meta["val"].dim() > 2  # what is cut, in memory
            if is_apart and _is_seen(node):  # a copy, for which a fuser has a kernel
                made = self._added(node, aten.constant_pad_nd.default, made, [0, -product.columns, 0, -product.rows])
            else:
                made = self._cut(node, made, product)
        node.replace_all_uses_with(made)
        self._erase(node)

    def _cut(self, node: Node, made: Node, product: _Product) -> Node:
        """A view of a padded product."""
        for dim, more in ((-2, product.rows), (-1, product.columns)):
            if more:
                dim += node.meta["val"].dim()
                made = self._added(node, aten.slice.Tensor, made, dim, 0, node.meta["val"].shape[dim])
        if made.meta["val"].stride() != node.meta["val"].stride():
            self.cut.append(made)
        return made

    def _add_up(self, node: Node, amounts: Amounts) -> None:
        """Let sums over other dimensions, as the gradient of a bias is one, read what is padded, as the products do."""
        for user in filter(_is_sum, [*node.users]):
            over: list[int] = [d % len(amounts) for d in user.args[1]]  # type: ignore
            if any(amounts[d] for d in over) or _is_seen(user):
                continue
            with self._graph.inserting_before(user):
                made = self._added(user, user.target, self._padded[node, amounts], *user.args[1:], **user.kwargs)
                for dim, size in enumerate(user.meta["val"].shape):
                    if made.meta["val"].shape[dim] != size:
                        made = self._added(user, aten.slice.Tensor, made, dim, 0, size)
            if made.meta["val"].stride() != user.meta["val"].stride():
                self.cut.append(made)
            user.replace_all_uses_with(made)
            self._graph.erase_node(user)

    def _erase(self, node: Node) -> None:
        """Take out what nothing reads any more."""
        read = node.all_input_nodes
        self._graph.erase_node(node)
        for permutation in [i for i in read if i.target in PERMUTATIONS and not i.users]:
            self._erase(permutation)

    def _with_zeros(self, node: Node, amounts: Amounts, reader: Node) -> Node:
        if not any(amounts):
            return node
        if node.target in PERMUTATIONS:
            padded = self._with_zeros(*_permuted(node, amounts), reader)
            with self._graph.inserting_before(reader):
                return self._added(node, node.target, padded, *node.args[1:])
        if (node, amounts) not in self._padded:
            zeros = [n for amount in reversed(amounts) for n in (0, amount)]
            with _after(node):
                credit = node if node.op == "call_function" else reader
                self._padded[node, amounts] = self._added(credit, aten.constant_pad_nd.default, node, zeros)
            self._add_up(node, amounts)
        return self._padded[node, amounts]

    def _added(self, credit: Node, target: Any, *args: Any, **keywords: Any) -> Node:
        """A new node, which has the notes of another one."""
        made = self._graph.call_function(target, args, keywords)
        made.meta = {**credit.meta, "val": _value(made)}
        made.meta.pop("tensor_meta", None)
        return made


def _after(node: Node) -> Any:
    """Where what is computed of a node comes: after all inputs, if it is one of them."""
    if node.op == "placeholder":
        node = node.graph.find_nodes(op="placeholder")[-1]
    return node.graph.inserting_after(node)


def _unpermuted(node: Node, amounts: Amounts) -> tuple[Node, Amounts]:
    """What a node permutes, through other permutations, with what belongs to each of its dimensions."""
    while node.target in PERMUTATIONS:
        node, amounts = _permuted(node, amounts)
    return node, amounts


def _permuted(node: Node, amounts: Amounts) -> tuple[Node, Amounts]:
    """What a permutation is of, with what belongs to each of its dimensions."""
    order = PERMUTATIONS[node.target](len(amounts), *node.args[1:])
    before = dict(zip(order, amounts, strict=True))
    return node.args[0], tuple(before[dim] for dim in range(len(amounts)))  # type: ignore[return-value]


def _swapped(count: int, a: int, b: int) -> list[int]:
    order = list(range(count))
    order[a], order[b] = order[b], order[a]
    return order


def _is_for_products(node: Node) -> bool:
    """Whether only products read a node, or permutations of it; sums can read what is padded."""
    return all(
        user.target in PRODUCTS or _is_sum(user) or (user.target in PERMUTATIONS and _is_for_products(user))
        for user in node.users
    )


def _is_sum(node: Node) -> bool:
    return node.target is aten.sum.dim_IntList and bool(node.args[1])


def _is_seen(node: Node) -> bool:
    """Whether something reads a value, or a view of it, that may count on its strides."""
    for user in node.users:
        if _is_view(user) or user.target is getitem:
            if user.target is aten.as_strided.default or _is_seen(user):
                return True
        elif user.target not in TABLE and user.target not in PRODUCTS:
            return True
    return False


def _is_view(node: Node) -> bool:
    return getattr(node.target, "is_view", False) or node.target is aten._unsafe_view.default


def _refresh_views(graph: Graph, cut: Sequence[Node]) -> None:
    """Note the strides of views of what was cut; where none is possible, it is of a copy."""
    changed = set(cut)
    for node in graph.nodes:
        if changed.isdisjoint(node.all_input_nodes) or not (_is_view(node) or node.target is getitem):
            continue
        try:
            node.meta["val"] = _value(node)
        except (RuntimeError, ValueError):
            (viewed,) = changed.intersection(node.all_input_nodes)
            with graph.inserting_before(node):
                copy = graph.call_function(aten.clone.default, (viewed,), {"memory_format": torch.contiguous_format})
            copy.meta = {**viewed.meta, "val": viewed.meta["val"].clone(memory_format=torch.contiguous_format)}
            node.replace_input_with(viewed, copy)
            node.meta["val"] = _value(node)
        else:
            changed.add(node)


def _value(node: Node) -> Any:
    """What an operator gives for what is noted of its inputs."""
    args, keywords = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return node.target(*args, **keywords)  # type: ignore[operator]


def _bytes(node: Node) -> int:
    value = node.meta["val"]
    return prod(size_hint(n) or 1 for n in value.shape) * int(value.dtype.itemsize)
