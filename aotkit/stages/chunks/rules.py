"""What each operator is for some rows: functions of a node and what is known."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.fx import Node

from aotkit.passes import is_pointwise
from aotkit.stages.chunks.rows import Known, NotByRows, Rows, Step, is_fixed, plainly, sizes_of

aten, prims = torch.ops.aten, torch.ops.prims
ELEMENTWISE = {
    aten.clone.default, aten._to_copy.default, prims.convert_element_type.default, aten.full_like.default,
    aten.zeros_like.default, aten.ones_like.default, aten.alias.default, aten.detach.default,
    aten.masked_fill.Scalar, aten.masked_fill.Tensor,
}  # fmt: skip
VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims,
}  # fmt: skip
FULL = {aten.full.default, aten.zeros.default, aten.ones.default}
PERMUTATIONS = {aten.permute.default, aten.t.default, aten.transpose.int}
ALONG: dict[Any, int] = {  # operators that work along one dimension -> the place of that among their arguments
    aten.gather.default: 1, aten.scatter.value: 1, aten.scatter.src: 1, aten.scatter_add.default: 1,
    aten.slice_scatter.default: 2, aten._softmax.default: 1, aten._log_softmax.default: 1,
    aten._softmax_backward_data.default: 2, aten._log_softmax_backward_data.default: 2,
}  # fmt: skip
REDUCTIONS = {
    aten.mean.dim, aten.amax.default, aten.amin.default, aten.any.dim, aten.any.dims, aten.argmax.default,
    aten.argmin.default, aten.logsumexp.default, aten.prod.dim_int,
}  # fmt: skip
SUMS = {aten.sum.default, aten.sum.dim_IntList}
PRODUCTS: dict[Any, int] = {aten.mm.default: 0, aten.mm.dtype: 0, aten.addmm.default: 1}  # -> the first matrix


def step_of(node: Node, known: Known) -> Step | None:
    """What an operation is in a chunk, or None if it is nothing that is done for some rows at a time."""
    if node.op != "call_function" or not is_fixed(node):
        return None
    rule = next((rule for operators, rule in _RULES if node.target in operators), None)
    if rule is None and is_pointwise(node) and node.target.namespace in ("aten", "prims"):  # type: ignore[union-attr]
        rule = _elementwise
    try:
        return None if rule is None else rule(node, known)
    except NotByRows:
        return None


def _elementwise(node: Node, known: Known) -> Step:
    """Each element of the result is computed of one of each operand, which may be broadcast."""
    sizes = sizes_of(node)
    found = known.wanted
    for x in node.all_input_nodes:
        if found is None and x in known.rows:
            found = known.rows[x].moved(len(sizes) - len(sizes_of(x)))
    if found is None:
        raise NotByRows
    return Step(found, plainly(node), known.agreed({x: _rows_of(x, found, sizes) for x in node.all_input_nodes}))


def _rows_of(x: Node, found: Rows, sizes: Sequence[int]) -> Rows | None:
    """The rows of an operand of a result of these sizes, and with such rows; None if it is the same for all."""
    if not is_fixed(x):
        raise NotByRows
    more = len(sizes) - len(sizes_of(x))
    own = sizes_of(x)[max(found.first - more, 0) : max(found.end - more, 0)]
    if own == [*sizes[found.first : found.end]]:
        return found.moved(-more)
    # In a chunk there is one dimension of rows: of several that are 1, the rest would be too many.
    if len(own) > 1 or prod(own) != 1:
        raise NotByRows
    return None


def _view(node: Node, known: Known) -> Step:
    x: Any = node.args[0]
    sizes = sizes_of(node)
    if x in known.rows:
        own = known.rows[x]
        found = known.wanted or _split(sizes_of(x), own, sizes, known.groups)
    elif known.wanted is not None and is_fixed(x):
        found = known.wanted
        own = _split(sizes, found, sizes_of(x), known.groups)
    else:
        raise NotByRows
    return Step(found, lambda n: (aten.view.default, (x, found.part(sizes, n, known.groups)), {}), {x: own})


def _split(sizes: Sequence[int], rows: Rows, into: Sequence[int], groups: int) -> Rows:
    """Which dimensions of other sizes of the same elements are the rows."""
    before = prod(sizes[: rows.first])
    for first in range(len(into)):
        if prod(into[:first]) == before and into[first] != 1:
            for end in range(first + 1, len(into) + 1):
                if prod(into[first:end]) % groups == 0:
                    return Rows(first, end - first)
    raise NotByRows


def _expand(node: Node, known: Known) -> Step:
    step, sizes = _elementwise(node, known), sizes_of(node)
    assert step.rows is not None
    part = step.rows.part
    return Step(
        step.rows, lambda n: (aten.expand.default, (node.args[0], part(sizes, n, known.groups)), {}), step.operands
    )


def _full(node: Node, known: Known) -> Step:
    if (wanted := known.wanted) is None:
        raise NotByRows
    sizes, rest, options = sizes_of(node), node.args[1:], dict(node.kwargs)
    return Step(wanted, lambda n: (node.target, (wanted.part(sizes, n, known.groups), *rest), options))


def _permute(node: Node, known: Known) -> Step:
    x: Any = node.args[0]
    own, rank = known.of(x), len(sizes_of(x))
    order = _order(node, rank)
    first = order.index(own.first)
    if order[first : first + own.dims] != [*range(own.first, own.end)]:
        raise NotByRows
    in_chunk = [own.first if d == own.first else own.dim(d, rank) for d in order if not own.first < d < own.end]
    return Step(Rows(first, own.dims), lambda _: (aten.permute.default, (x, in_chunk), {}), {x: own})


def _order(node: Node, rank: int) -> list[int]:
    args: Any = node.args
    order = [*range(rank)]
    if node.target is aten.permute.default:
        return [order[d] for d in args[1]]
    a, b = args[1:] if node.target is aten.transpose.int else (0, -1)
    order[a], order[b] = order[b], order[a]
    return order


def _slice(node: Node, known: Known) -> Step:
    x, *given = node.args
    rest: Any = given or [0]
    own = known.of(x)
    dim = own.dim(rest[0], len(sizes_of(node)))
    return Step(own, lambda _: (node.target, (x, dim, *rest[1:]), {}), {x: own})  # type: ignore[dict-item]


def _select(node: Node, known: Known) -> Step:
    args: Any = node.args
    x, place, index = args
    own, rank = known.of(x), len(sizes_of(x))
    dim = own.dim(place, rank)
    found = own.moved(-1 if place % rank < own.first else 0)
    return Step(found, lambda _: (node.target, (x, dim, index), {}), {x: own})


def _select_scatter(node: Node, known: Known) -> Step:
    args: Any = node.args
    x, given, place, index = args
    rank = len(sizes_of(node))
    found = known.wanted or known.rows.get(x)
    if found is None:
        found = known.of(given)
        found = found.moved(1 if place % rank <= found.first else 0)
    dim = found.dim(place, rank)
    operands = known.agreed({x: found, given: found.moved(-1 if place % rank < found.first else 0)})
    return Step(found, lambda _: (node.target, (x, given, dim, index), {}), operands)


def _pad(node: Node, known: Known) -> Step:
    args: Any = node.args
    x, amounts, *value = args
    own = known.of(x)
    behind = 2 * (len(sizes_of(x)) - own.end)
    if any(amounts[behind:]):
        raise NotByRows
    return Step(own, lambda _: (node.target, (x, amounts[:behind], *value), {}), {x: own})


def _along(node: Node, known: Known) -> Step:
    """What is done along one dimension, of tensors that have as many dimensions and rows."""
    args: Any = node.args
    read, at, sizes = node.all_input_nodes, ALONG[node.target], sizes_of(node)
    found = known.wanted or next((known.rows[x] for x in read if x in known.rows), None)
    if found is None or any(len(sizes_of(x)) != len(sizes) for x in read):
        raise NotByRows
    if any(found.number(sizes_of(x)) != found.number(sizes) for x in read):
        raise NotByRows
    dim = found.dim(args[at] if len(args) > at else 0, len(sizes))
    in_chunk = (*args[:at], dim, *args[at + 1 :])
    return Step(found, lambda _: (node.target, in_chunk, dict(node.kwargs)), known.agreed(dict.fromkeys(read, found)))


def _reduction(node: Node, known: Known) -> Step:
    args: Any = node.args
    x, is_sum, rank = args[0], node.target in SUMS, len(sizes_of(args[0]))
    given = args[1] if len(args) > 1 else None
    is_list = isinstance(given, list | tuple)
    listed: Any = given if is_list else [given]
    dims = [*range(rank)] if given in (None, []) else [d % rank for d in listed]
    keeps = bool(args[2]) if len(args) > 2 else bool(node.kwargs.get("keepdim", False))
    own = known.rows.get(x) or _before_reduction(known, sizes_of(x), [] if keeps else dims)
    options = {key: value for key, value in node.kwargs.items() if key != "keepdim"}
    over = set(dims).intersection(range(own.first, own.end))
    if over and (len(over) < own.dims or not is_sum):
        raise NotByRows
    in_chunk: Any = sorted({own.first if d in over else own.dim(d, rank) for d in dims})
    if not is_list and not is_sum:
        (in_chunk,) = in_chunk
    target = aten.sum.dim_IntList if is_sum else node.target
    found = own if keeps else own.moved(-sum(d < own.first for d in dims))
    call: Callable[[int], Any] = lambda _: (target, (x, in_chunk, keeps, *args[3:]), options)  # noqa: E731
    return Step(None if over else found, call, {x: own}, "sum" if over else "rows")


def _before_reduction(known: Known, sizes: Sequence[int], gone: Sequence[int]) -> Rows:
    """Which dimensions of what is reduced are the rows of the result, which lacks some dimensions."""
    if known.wanted is None:
        raise NotByRows
    own = [d for d in range(len(sizes)) if d not in gone][known.wanted.first : known.wanted.end]
    found = Rows(own[0], len(own))
    if own != [*range(found.first, found.end)] or found.number(sizes) % known.groups:
        raise NotByRows
    return found


def _product(node: Node, known: Known) -> Step:
    """Of two matrices: of rows and what is the same for all; or over all rows, as the gradient of a weight is."""
    args: Any = node.args
    at = PRODUCTS[node.target]
    added, a, b = args[:at], args[at], args[at + 1]
    if a is b:
        raise NotByRows
    if known.rows.get(a) == Rows(1) and not added:
        return Step(None, lambda _: (None, (a, b), {}), known.agreed({a: Rows(1), b: Rows(0)}), "product")
    if (known.wanted or known.rows.get(a)) != Rows(0) or b in known.rows:
        raise NotByRows
    operands = {a: Rows(0), b: None} | {x: _rows_of(x, Rows(0), sizes_of(node)) for x in added}
    return Step(Rows(0), plainly(node), known.agreed(operands))


_RULES: Sequence[tuple[Any, Callable[[Node, Known], Step]]] = (
    (ELEMENTWISE, _elementwise),
    (VIEWS, _view),
    ({aten.expand.default}, _expand),
    (FULL, _full),
    (PERMUTATIONS, _permute),
    ({aten.slice.Tensor}, _slice),
    ({aten.select.int}, _select),
    ({aten.select_scatter.default}, _select_scatter),
    ({aten.constant_pad_nd.default}, _pad),
    (ALONG, _along),
    (REDUCTIONS | SUMS, _reduction),
    (PRODUCTS, _product),
)
