"""A number that is not known when rows are computed: it is taken out, and results are multiplied with it.

The gradient of a loss is one. Gradients of rows are computed in the forward pass, as for a gradient of 1, if all that
depends on the number is in proportion to it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node

from aotkit.passes import is_tensor
from aotkit.stages.chunks.finding import Part, descendants
from aotkit.stages.chunks.rules import PRODUCTS, SUMS, VIEWS

aten, prims = torch.ops.aten, torch.ops.prims
# Operators in proportion to their first argument, whatever the others are.
TO_FIRST = {
    *VIEWS, *SUMS, aten.neg.default, aten.div.Tensor, aten.div.Scalar, aten.expand.default, aten.permute.default,
    aten.t.default, aten.transpose.int, aten.slice.Tensor, aten.gather.default, aten.mean.dim, aten.clone.default,
    aten._to_copy.default, prims.convert_element_type.default, aten.alias.default, aten.detach.default,
    aten.mul.Scalar, aten._softmax_backward_data.default, aten._log_softmax_backward_data.default, aten.select.int,
}  # fmt: skip
# In proportion to the first one, if this argument is zero.
WITH_ZERO = {aten.masked_fill.Scalar: 2, aten.scatter.value: 3}
# In proportion to these together; those that are zero may be left out.
TOGETHER: dict[Any, tuple[int, ...]] = {
    aten.add.Tensor: (0, 1), aten.sub.Tensor: (0, 1), aten.where.self: (1, 2), aten.select_scatter.default: (0, 1),
    aten.slice_scatter.default: (0, 1), aten.scatter.src: (0, 3), aten.scatter_add.default: (0, 3),
}  # fmt: skip
ZEROS = {aten.zeros.default, aten.zeros_like.default}
FILLED = {aten.full.default: 1, aten.full_like.default: 1, aten.scalar_tensor.default: 0}


def late_values(part: Part, tangents: list[Node]) -> set[Node]:
    """What is known when the rows have been computed."""
    results = [user for node in part.results for user in node.users if user not in part.steps]
    return descendants([*tangents, *results]).difference(part.steps)


def factor(part: Part, late: set[Node]) -> Node | str | None:
    """The number that all late operands are in proportion to; None if there are none; or why there is none."""
    operands = [x for x in part.operands if x in late]
    if not operands:
        return None
    if isinstance(found := _common(operands, late), str):
        return found
    depends = descendants(operands).intersection(part.steps)
    for node in part.steps:
        if node in depends and not in_proportion(node, lambda x: x in late or x in depends):
            return f"{node} is not in proportion to {found}, which is known when all rows are"
    return found


def _common(operands: list[Node], late: set[Node]) -> Node | str:
    """The number nearest to the operands; if these have several, the one that those have in common."""
    numbers = list(dict.fromkeys(number for x in operands for number in _numbers(x, late)))
    while len(numbers) > 1:
        numbers.sort()
        last = numbers.pop()
        before = [i for i in last.all_input_nodes if i in late]
        if not before or not in_proportion(last, late.__contains__):
            break
        numbers = list(dict.fromkeys([*numbers, *(number for x in before for number in _numbers(x, late))]))
    if len(numbers) == 1 and is_tensor(numbers[0]) and numbers[0].meta["val"].dim() == 0:
        return numbers[0]
    return f"{operands[0]} is known when all rows are, and is no multiple of a number"


def _numbers(x: Node, late: set[Node]) -> list[Node]:
    """The numbers that a late value is in proportion to, nearest to it; or a value that is none."""
    before = [i for i in x.all_input_nodes if i in late]
    if not is_tensor(x) or x.meta["val"].dim() == 0 or not before or not in_proportion(x, late.__contains__):
        return [x]
    return [number for i in before for number in _numbers(i, late)]


def in_proportion(node: Node, varies: Callable[[Node], bool]) -> bool:
    """Whether a node is in proportion to those of its operands that vary, taken together."""
    target, args = node.target, node.args
    varying = [isinstance(x, Node) and varies(x) for x in args]
    if sum(varying) < sum(map(varies, set(node.all_input_nodes))):  # others are in lists, or named
        return False
    if target is aten.mul.Tensor or PRODUCTS.get(target) == 0:
        return sum(varying) == 1
    if target in TO_FIRST:
        return not any(varying[1:])
    if target in WITH_ZERO:
        return varying[0] and bool(args[WITH_ZERO[target]] == 0)
    if target is aten.constant_pad_nd.default:
        return len(args) < 3 or bool(args[2] == 0)
    places = TOGETHER.get(target, ())
    alone = [x for i, x in enumerate(args) if i not in places and varying[i]]
    return bool(places) and not alone and all(varying[i] or is_zero(args[i]) for i in places)


def is_zero(x: Any) -> bool:
    """Whether a value is zero everywhere."""
    if not isinstance(x, Node):
        return bool(x == 0)
    if x.target in FILLED:
        return bool(x.args[FILLED[x.target]] == 0)
    return x.target in ZEROS or (x.target in VIEWS | {aten.expand.default} and is_zero(x.args[0]))


def read_with(number: Node, operands: Iterable[Node]) -> list[Node]:
    """What the copies of `with_ones` read that is not copied."""
    after = descendants([number])
    stack, found = [x for x in operands if x in after and x is not number], set[Node]()
    while stack:
        for i in stack.pop().all_input_nodes:
            if i in after and i is not number:
                stack.append(i)
            elif i is not number:
                found.add(i)
    return [*found]


def with_ones(node: Node, number: Node, copies: dict[Node, Node]) -> Node:
    """A copy of a late value for a number of 1, at the graph's current place; and of those that it is computed of.

    Args:
        copies: of nodes that have one.
    """
    if node not in copies:
        graph = node.graph
        if node is number:
            value = number.meta["val"]
            made = graph.call_function(aten.full.default, ([], 1), {"dtype": value.dtype, "device": value.device})
        else:
            parts: Mapping[Node, Node] = {i: with_ones(i, number, copies) for i in _varying(node, number)}
            made = graph.node_copy(node, lambda i: parts.get(i, i))
        made.meta = {**node.meta}
        copies[node] = made
    return copies[node]


def _varying(node: Node, number: Node) -> list[Node]:
    after = descendants([number])
    return [i for i in node.all_input_nodes if i in after]
