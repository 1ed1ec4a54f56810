"""Which dimensions of a tensor are the rows, and what each operation does with them.

Rows come in groups, of which a chunk has some: of one row each, or one for each sequence, where something is done along
those. In a chunk, the dimensions that are rows are one: of logits of [4, 2048, 32000], the first two; with groups that
are sequences the first one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from aotkit.passes import is_pointwise, is_tensor

aten, prims = torch.ops.aten, torch.ops.prims


class Rows(NamedTuple):
    """Dimensions of a tensor that are its rows, one next to the other."""

    first: int
    count: int = 1

    @property
    def end(self) -> int:
        """The dimension after them."""
        return self.first + self.count

    def number(self, sizes: Sequence[int]) -> int:
        """How many a tensor has."""
        return prod(sizes[self.first : self.end])

    def part(self, sizes: Sequence[int], groups: int, of: int) -> list[int]:
        """The sizes that a tensor has in a chunk of some of its groups."""
        return [*sizes[: self.first], self.number(sizes) * groups // of, *sizes[self.end :]]

    def dim(self, dim: int, rank: int) -> int | None:
        """The same dimension in a chunk; None for one that is rows."""
        dim %= rank
        if dim < self.first:
            return dim
        return dim - self.count + 1 if dim >= self.end else None


@dataclass(frozen=True)
class Step:
    """What an operation is in a chunk.

    Attributes:
        rows: of its result; None: it is over all rows.
        call: of the number of groups: the operator and its arguments, with the nodes of the graph.
        operands: the tensors that it reads, and which of their dimensions are rows; None: the same for all.
        how: "rows", or what is done over all rows.
    """

    rows: Rows | None
    call: Callable[[int], tuple[Any, tuple[Any, ...], dict[str, Any]]]
    operands: Mapping[Node, Rows | None] = field(default_factory=dict)
    how: str = "rows"


Known = Mapping[Node, Rows]
ELEMENTWISE = {
    aten.clone.default, aten._to_copy.default, prims.convert_element_type.default, aten.full_like.default,
    aten.zeros_like.default, aten.ones_like.default, aten.alias.default, aten.detach.default,
    aten.masked_fill.Scalar, aten.masked_fill.Tensor,
}  # fmt: skip
VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims,
}  # fmt: skip
ALONG = {  # operators that work along one dimension -> the place of that among their arguments
    aten.gather.default: 1, aten.scatter.value: 1, aten.scatter.src: 1, aten.scatter_add.default: 1,
    aten._softmax.default: 1, aten._log_softmax.default: 1,
    aten._softmax_backward_data.default: 2, aten._log_softmax_backward_data.default: 2,
}  # fmt: skip
REDUCTIONS = {
    aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.any.dim, aten.any.dims,
    aten.argmax.default, aten.argmin.default, aten.logsumexp.default, aten.prod.dim_int,
}  # fmt: skip
SUMS = {aten.sum.default, aten.sum.dim_IntList}
PRODUCTS = {aten.mm.default: 0, aten.mm.dtype: 0, aten.addmm.default: 1}


def sizes_of(node: Node) -> list[int]:
    """The sizes of a node's tensor."""
    return [*node.meta["val"].shape]


def is_fixed(node: Node) -> bool:
    """Whether a node's value is one tensor whose sizes are known."""
    return is_tensor(node) and all(isinstance(n, int) for n in node.meta["val"].shape)


def step_of(node: Node, known: Known, groups: int, wanted: Rows | None = None) -> Step | None:
    """What an operation is in a chunk, or None if it is nothing that is done for some rows at a time.

    Args:
        known: the rows of those that it reads, as far as these are computed for each chunk.
        groups: how many there are.
        wanted: the rows of its result, where nothing is known of what it reads.
    """
    if node.op != "call_function" or not is_fixed(node):
        return None
    if node.target in PRODUCTS:
        return _product(node, known, groups, wanted)
    rule = next((rule for kinds, rule in _RULES if node.target in kinds), None)
    if rule is None and is_pointwise(node):
        rule = _elementwise
    return None if rule is None else rule(node, known, groups, wanted)


def _elementwise(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    """Each element of the result is computed of one of each operand, which may be broadcast."""
    sizes = sizes_of(node)
    found = wanted or _broadcast_rows(node, known)
    if found is None or found.number(sizes) % groups:
        return None
    operands: dict[Node, Rows | None] = {}
    for x in node.all_input_nodes:
        of_x = _operand_rows(x, found, sizes)
        if of_x is False or (x in known and known[x] != of_x):
            return None
        operands[x] = of_x or None
    return Step(found, lambda _: (node.target, node.args, dict(node.kwargs)), operands)


def _broadcast_rows(node: Node, known: Known) -> Rows | None:
    for x in node.all_input_nodes:
        if x in known:
            more = len(sizes_of(node)) - len(sizes_of(x))
            return Rows(known[x].first + more, known[x].count)
    return None


def _operand_rows(x: Node, found: Rows, result: Sequence[int]) -> "Rows | None | bool":
    """The rows of an operand of a broadcast result with such rows; None if it is the same for all; False if neither."""
    if not is_fixed(x):
        return False
    sizes = sizes_of(x)
    more = len(result) - len(sizes)
    own = sizes[max(found.first - more, 0) : max(found.end - more, 0)]
    if own == [*result[found.first : found.end]]:
        return Rows(found.first - more, found.count)
    # In a chunk there is one dimension of rows: of several that are 1, the rest would be too many.
    return None if len(own) <= 1 and prod(own) == 1 else False


def _view(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    x: Any = node.args[0]
    sizes = sizes_of(node)
    own = known.get(x) or (wanted and _split(sizes, wanted, sizes_of(x), groups))
    found = wanted or (own and _split(sizes_of(x), own, sizes, groups))
    if own is None or found is None:
        return None
    return Step(found, lambda n: (aten.view.default, (x, found.part(sizes, n, groups)), {}), {x: own})


def _split(sizes: Sequence[int], rows: Rows, into: Sequence[int], groups: int) -> Rows | None:
    """Which dimensions of other sizes of the same elements are the rows."""
    before = prod(sizes[: rows.first])
    for first in range(len(into)):
        if prod(into[:first]) == before and into[first] != 1:
            for end in range(first + 1, len(into) + 1):
                if prod(into[first:end]) % groups == 0:
                    return Rows(first, end - first)
    return None


def _expand(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    if (step := _elementwise(node, known, groups, wanted)) is None or step.rows is None:
        return None
    found, sizes = step.rows, sizes_of(node)
    call = lambda n: (aten.expand.default, (node.args[0], found.part(sizes, n, groups)), {})  # noqa: E731
    return Step(found, call, step.operands)


def _full(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    if wanted is None:
        return None
    sizes, rest = sizes_of(node), node.args[1:]
    call = lambda n: (node.target, (wanted.part(sizes, n, groups), *rest), dict(node.kwargs))  # noqa: E731
    return Step(wanted, call)


def _permute(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    x: Any = node.args[0]
    if x not in known:
        return None
    rank, own = len(sizes_of(x)), known[x]
    order = _order(node, rank)
    first = order.index(own.first)
    if order[first : first + own.count] != [*range(own.first, own.end)]:
        return None
    in_chunk = [own.first if d == own.first else own.dim(d, rank) for d in order if not own.first < d < own.end]
    return Step(Rows(first, own.count), lambda _: (aten.permute.default, (x, in_chunk), {}), {x: own})


def _order(node: Node, rank: int) -> list[int]:
    if node.target is aten.permute.default:
        return [d % rank for d in node.args[1]]  # type: ignore
    order = [*range(rank)]
    a, b = (node.args[1:] if node.target is aten.transpose.int else (0, -1)) if rank > 1 else (0, 0)
    order[a], order[b] = order[b], order[a]  # type: ignore
    return order


def _slice(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    x, *rest = node.args
    if x not in known:
        return None
    own: Rows = known[x]  # type: ignore
    dim = own.dim(rest[0] if rest else 0, len(sizes_of(x)))  # type: ignore
    return None if dim is None else Step(own, lambda _: (node.target, (x, dim, *rest[1:]), {}), {x: own})  # type: ignore


def _slice_scatter(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    """Zeros, or the like, of which a slice is replaced."""
    x, given, *rest = node.args
    found = wanted or known.get(given) or known.get(x)  # type: ignore
    dim = None if found is None else found.dim(rest[0] if rest else 0, len(sizes_of(node)))  # type: ignore
    if found is None or dim is None or any(known.get(i, found) != found for i in (x, given)):  # type: ignore
        return None
    args = (x, given, dim, *rest[1:])
    return Step(found, lambda _: (node.target, args, {}), {x: found, given: found})  # type: ignore


def _select(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    x, dim, index = node.args
    if x not in known:
        return None
    own: Rows = known[x]  # type: ignore
    rank = len(sizes_of(x))  # type: ignore
    in_chunk = own.dim(dim, rank)  # type: ignore
    if in_chunk is None:
        return None
    found = Rows(own.first - (dim % rank < own.first), own.count)  # type: ignore
    return Step(found, lambda _: (node.target, (x, in_chunk, index), {}), {x: own})  # type: ignore


def _select_scatter(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    x, given, dim, index = node.args
    rank = len(sizes_of(node))
    place = dim % rank  # type: ignore
    found = wanted or known.get(x)  # type: ignore
    if found is None and given in known:
        found = Rows(known[given].first + (place <= known[given].first), known[given].count)  # type: ignore
    if found is None or (in_chunk := found.dim(place, rank)) is None:
        return None
    of_given = Rows(found.first - (place < found.first), found.count)
    operands: dict[Any, Rows | None] = {x: found, given: of_given}
    if any(known.get(i, r) != r for i, r in operands.items()):
        return None
    return Step(found, lambda _: (node.target, (x, given, in_chunk, index), {}), operands)


def _pad(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    x, amounts, *value = node.args
    if x not in known:
        return None
    own: Rows = known[x]  # type: ignore
    behind = 2 * (len(sizes_of(x)) - own.end)  # type: ignore
    if any(amounts[behind:]):  # type: ignore
        return None
    return Step(own, lambda _: (node.target, (x, amounts[:behind], *value), {}), {x: own})  # type: ignore


def _along(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    """What is done along one dimension, for tensors of as many dimensions."""
    found = wanted or next((known[x] for x in node.all_input_nodes if x in known), None)
    place, rank = ALONG[node.target], len(sizes_of(node))
    if found is None or any(len(sizes_of(x)) != rank or known.get(x, found) != found for x in node.all_input_nodes):
        return None
    if any(found.number(sizes_of(x)) != found.number(sizes_of(node)) for x in node.all_input_nodes):
        return None
    if (dim := found.dim(node.args[place], rank)) is None:  # type: ignore
        return None
    args = (*node.args[:place], dim, *node.args[place + 1 :])
    return Step(found, lambda _: (node.target, args, dict(node.kwargs)), dict.fromkeys(node.all_input_nodes, found))


def _reduction(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    x: Any = node.args[0]
    rank = len(sizes_of(x))
    given = node.args[1] if len(node.args) > 1 else None
    is_list = isinstance(given, list | tuple)
    dims = [d % rank for d in (given if is_list else [given])] if given not in (None, []) else [*range(rank)]  # type: ignore
    keeps = bool(node.args[2]) if len(node.args) > 2 else bool(node.kwargs.get("keepdim", False))
    own = known.get(x) or (wanted and _before_reduction(wanted, sizes_of(x), groups, [] if keeps else dims))
    if own is None:
        return None
    options = {k: v for k, v in node.kwargs.items() if k != "keepdim"}
    over = set(dims).intersection(range(own.first, own.end))
    if over and (len(over) < own.count or node.target not in SUMS):
        return None
    in_chunk = sorted({own.first if d in over else own.dim(d, rank) for d in dims})  # type: ignore
    dims_or_dim = in_chunk if is_list or node.target in SUMS else in_chunk[0]
    if not is_list and node.target not in SUMS and len(in_chunk) > 1:
        return None
    target = aten.sum.dim_IntList if node.target in SUMS else node.target
    first = own.first if keeps else own.first - sum(d < own.first for d in dims)
    call = lambda _: (target, (x, dims_or_dim, keeps, *node.args[3:]), options)  # noqa: E731
    return Step(None if over else Rows(first, own.count), call, {x: own}, "sum" if over else "rows")


def _before_reduction(rows: Rows, sizes: Sequence[int], groups: int, gone: Sequence[int]) -> Rows | None:
    """Which dimensions of what is reduced are the rows of the result, which lacks some dimensions."""
    left = [d for d in range(len(sizes)) if d not in gone]
    own = left[rows.first : rows.end]
    is_one = own == [*range(own[0], own[0] + rows.count)] and prod(sizes[d] for d in own) % groups == 0
    return Rows(own[0], rows.count) if is_one else None


def _product(node: Node, known: Known, groups: int, wanted: Rows | None) -> Step | None:
    """Of two matrices: of rows and what is the same for all; or over all rows."""
    at = PRODUCTS[node.target]
    added, (a, b) = node.args[:at], node.args[at : at + 2]
    if not (isinstance(a, Node) and isinstance(b, Node)) or a is b:
        return None
    left, right = known.get(a), known.get(b)
    if left == Rows(1) and not added:  # the gradient of a weight
        is_of_rows = right == Rows(0) or (right is None and sizes_of(b)[0] % groups == 0)
        return Step(None, lambda _: (None, (a, b), {}), {a: left, b: Rows(0)}, "product") if is_of_rows else None
    if right is not None or (wanted or left) != Rows(0) or sizes_of(a)[0] % groups:
        return None
    operands: dict[Node, Rows | None] = {a: Rows(0), b: None}
    for x in added:
        of_x = _operand_rows(x, Rows(0), sizes_of(node)) if isinstance(x, Node) else False
        if of_x is False or known.get(x, of_x) != of_x:  # type: ignore
            return None
        operands[x] = of_x or None  # type: ignore
    return Step(Rows(0), lambda _: (node.target, node.args, dict(node.kwargs)), operands)


_RULES: Sequence[tuple[Any, Callable[[Node, Known, int, Rows | None], Step | None]]] = (
    (ELEMENTWISE, _elementwise),
    (VIEWS, _view),
    ({aten.expand.default}, _expand),
    ({aten.full.default, aten.zeros.default, aten.ones.default}, _full),
    ({aten.permute.default, aten.t.default, aten.transpose.int}, _permute),
    ({aten.slice.Tensor}, _slice),
    ({aten.slice_scatter.default}, _slice_scatter),
    ({aten.select.int}, _select),
    ({aten.select_scatter.default}, _select_scatter),
    ({aten.constant_pad_nd.default}, _pad),
    (ALONG, _along),
    (REDUCTIONS | SUMS, _reduction),
)
