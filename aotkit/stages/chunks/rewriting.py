"""Part of a graph in place of which there is one operation, which computes it of some rows at a time."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from aotkit.passes import Result, in_chunks
from aotkit.stages.chunks.finding import Part, descendants
from aotkit.stages.chunks.late import read_with, with_ones
from aotkit.stages.chunks.rows import Rows, sizes_of
from aotkit.torch_private.fake_tensors import mode_of
from aotkit.torch_private.fx import graph_module, renew_code

aten, prims = torch.ops.aten, torch.ops.prims


def put_in_chunks(gm: GraphModule, part: Part, late: set[Node], number: Node | None, size: int) -> None:
    """Compute a part of a graph `size` groups of rows at a time, in place.

    Args:
        late: values that are known when the part has been computed; its operands among them are multiples of `number`.
    """
    first_reader = min(user for node in part.results for user in node.users if user not in part.steps)
    operands, bodies = part.operands, Bodies(part)
    graphs = [bodies.of(groups) for groups in (size, part.groups % size) if groups]
    early = [x for x in operands if x not in late]
    _move_before(first_reader, early + ([] if number is None else read_with(number, operands)))
    with gm.graph.inserting_before(first_reader):
        ones: dict[Node, Node] = {}
        given = [with_ones(x, number, ones) if x in late and number is not None else x for x in operands]
        flat = [_flattened(x, rows) for x, rows in zip(given, operands.values(), strict=True)]
        held = [_held(gm, graph) for graph in graphs]
        along = tuple(None if rows is None else rows.first for rows in operands.values())
        node = gm.graph.call_function(
            in_chunks, (*held, *[None] * (2 - len(held)), part.groups, size, along, bodies.results, *flat)
        )
        node.meta = _notes(next(iter(part.steps)))
        node.meta["val"] = tuple(bodies.values)
        items = [gm.graph.call_function(operator.getitem, (node, i)) for i in range(len(part.results))]
    depends = descendants([x for x in operands if x in late])
    for item, value, result in zip(items, bodies.values, part.results, strict=True):
        item.meta = {**_notes(result), "val": value}
        place = result if result in depends and result > first_reader else first_reader
        with gm.graph.inserting_before(place), mode_of([value]):
            found = _as_was(item, result, number if result in depends else None)
        result.replace_all_uses_with(found, lambda user: user not in part.steps)
    for done in (*reversed(part.steps), *reversed(part.constants)):
        if not done.users:
            gm.graph.erase_node(done)
    renew_code(gm)


def _notes(node: Node) -> dict[str, Any]:
    return {key: value for key, value in node.meta.items() if key != "tensor_meta"}


def _move_before(place: Node, nodes: Sequence[Node]) -> None:
    """Compute nodes, and what they are computed of, before another one, which they do not depend on."""
    stack, found = list(nodes), set[Node]()
    while stack:
        node = stack.pop()
        if node > place and node not in found:
            found.add(node)
            stack += node.all_input_nodes
    for node in sorted(found):
        place.prepend(node)


def _flattened(x: Node, rows: Rows | None) -> Node:
    """An operand whose rows are one dimension."""
    if rows is None or rows.dims == 1:
        return x
    made = x.graph.call_function(aten.view.default, (x, rows.part(sizes_of(x), 1, 1)))
    made.meta = {**_notes(x), "val": _flat_value(x, rows)}
    return made


def _flat_value(x: Node, rows: Rows | None) -> Any:
    value = x.meta["val"]
    return value if rows is None or rows.dims == 1 else aten.view.default(value, rows.part(sizes_of(x), 1, 1))


def _as_was(item: Node, result: Node, number: Node | None) -> Node:
    """What others read in place of a result: of the same sizes and type, and a multiple of the number."""
    was = result.meta["val"]

    def add(target: Any, *args: Any) -> Node:
        made = item.graph.call_function(target, args)
        values = map_arg(args, lambda n: n.meta["val"])
        made.meta = {**_notes(result), "val": target(*values)}
        return made

    if sizes_of(item) != sizes_of(result):
        item = add(aten.view.default, item, sizes_of(result))
    if number is not None:
        item = add(aten.mul.Tensor, item, number)
    if item.meta["val"].dtype != was.dtype:
        item = add(prims.convert_element_type.default, item, was.dtype)
    return item


def _held(gm: GraphModule, body: GraphModule) -> Node:
    """A node for a graph that another one calls."""
    name = next(name for i in range(len(gm.graph.nodes)) if not hasattr(gm, name := f"rows_{i}"))
    setattr(gm, name, body)
    return gm.graph.get_attr(name)


class Bodies:
    """Graphs of a part for some rows.

    Raises:
        RuntimeError, ValueError, TypeError, IndexError: from `of`: an operator does not take some of its rows.

    Attributes:
        results: what is made of what they give.
        values: fake tensors of that.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._mode = mode_of([node.meta["val"] for node in part.steps])
        self.outputs: list[Node] = []
        with self._mode:
            found = [self._result(node) for node in part.results]
        self.results = tuple(tuple(result) for result, _ in found)
        self.values = [value for _, value in found]

    def _result(self, node: Node) -> tuple[Result, Any]:
        step, value = self._part.steps[node], node.meta["val"]
        if step.how == "product":
            _, (a, b), _ = step.call(0)
            second = self._place(b) if b in self._part.steps else -1 - [*self._part.operands].index(b)
            return Result("product", self._place(a), 0, second, value.dtype), value.new_empty(value.shape)
        if step.rows is None:
            wide = torch.float32 if value.dtype.itemsize == 2 and value.is_floating_point() else value.dtype
            return Result("sum", self._place(node), 0, 0, wide), value.new_empty(self._sizes(node), dtype=wide)
        sizes = step.rows.part(sizes_of(node), 1, 1)
        return Result("rows", self._place(node), step.rows.first), value.new_empty(sizes)

    def _place(self, node: Node) -> int:
        if node not in self.outputs:
            self.outputs.append(node)
        return self.outputs.index(node)

    def _sizes(self, node: Node) -> list[int]:
        """Of a sum, as a chunk has it: dimensions that are rows are one."""
        (x, rows), *_ = self._part.steps[node].operands.items()
        assert rows is not None
        sizes = sizes_of(node)
        return rows.part(sizes, 1, 1) if len(sizes) == len(sizes_of(x)) else sizes

    def of(self, count: int) -> GraphModule:
        """The graph for so many groups of rows."""
        with self._mode:
            return self._of(count)

    def _of(self, count: int) -> GraphModule:
        graph, copies = Graph(), dict[Node, Node]()
        for x, rows in self._part.operands.items():
            made = graph.placeholder(x.name)
            value = _flat_value(x, rows)
            if rows is not None:
                value = value.narrow(rows.first, 0, value.shape[rows.first] * count // self._part.groups)
            made.meta = {**_notes(x), "val": value}
            copies[x] = made
        for node in self._part.constants:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        for node, step in self._part.steps.items():
            if step.how == "product":
                continue
            target, args, kwargs = step.call(count)
            args, kwargs = map_arg((args, kwargs), copies.__getitem__)
            made = graph.create_node("call_function", target, args, kwargs, name=node.name)
            values, options = map_arg((args, kwargs), lambda n: n.meta["val"])
            made.meta = {**_notes(node), "val": target(*values, **options)}
            copies[node] = made
        graph.output(tuple(copies[n] for n in self.outputs))
        return graph_module({}, graph)
