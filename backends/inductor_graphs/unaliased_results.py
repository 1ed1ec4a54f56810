"""Results in memory of their own stay so where Inductor's passes drop what computes them.

`x + torch.zeros(3)` is `x` to them. Returned itself, whoever changes the result in place changes the input, too (torch
2.13, under torch.compile).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import GraphModule

from aotkit.passes import copied, storage_of, views_behind
from aotkit.torch_private.dispatch import tree_leaves
from aotkit.torch_private.fx import renew_code

OTHERS = ("grad_of", "mutated_input")  # what descriptions of gradients, and of new values of inputs, have


@contextmanager
def results_apart(gm: GraphModule) -> Iterator[None]:
    """While passes run: copy outputs that have come to share memory with an input, or with an earlier output."""
    before = _sharing(gm)
    yield
    output = gm.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    if joined := _sharing(gm) - before:
        inputs_end = next(node for node in gm.graph.nodes if node.op != "placeholder")
        for i in joined:
            node = results[i]
            results[i] = copied(node, inputs_end if node.op == "placeholder" else node.next)  # in the forward pass
        output.args = (tuple(results),)
        renew_code(gm)


def _sharing(gm: GraphModule) -> set[int]:
    output = gm.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    descriptions = dict(enumerate(tree_leaves(output.meta.get("desc", ()))))
    seen = {storage_of(node) for node in gm.graph.find_nodes(op="placeholder")} - {None}
    found = set()
    for i, node in enumerate(results):
        if any(hasattr(descriptions.get(i), name) for name in OTHERS) or storage_of(node) is None:
            continue
        storage = storage_of(views_behind(node)[0])  # a view that a pass made may have a note of another
        if storage in seen:
            found.add(i)
        seen.add(storage)
    return found
