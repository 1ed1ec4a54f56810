"""Small changes to FX graphs, of which faults are made."""

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule, Node


class NotPlanted(Exception):
    """The graph has no place for a fault: the suite is wrong, not the plug-in."""


def calls(gm: GraphModule, operator: Any) -> list[Node]:
    """The nodes that call an operator such as `torch.ops.aten.mul`, of any overload.

    Raises:
        NotPlanted: there are none.
    """
    found = [n for n in gm.graph.nodes if getattr(n.target, "overloadpacket", None) is operator]
    if not found:
        raise NotPlanted(f"no {operator} in:\n{gm.code}")
    return found


def batch_norm(gm: GraphModule) -> Node:
    """The first batch norm; torch's versions have different operators for it."""
    found: list[Node] = [n for n in gm.graph.nodes if "batch_norm" in str(n.target)]
    return found[0]


def set_argument(node: Node, name: str, value: Any) -> None:
    """Change an argument of an operator."""
    position = [a.name for a in node.target._schema.arguments].index(name)  # type: ignore[union-attr]
    if position < len(node.args):
        node.update_arg(position, value)
    else:
        node.update_kwarg(name, value)


def alter(node: Node, function: Callable[..., Any], *others: Any) -> None:
    """Let all users read `function(node, *others)`."""
    with node.graph.inserting_after(node):
        altered = node.graph.call_function(function, (node, *others))
    node.replace_all_uses_with(altered, delete_user_cb=lambda user: user is not altered)


def inputs_of(gm: GraphModule) -> list[Node]:
    """The placeholders."""
    return list(gm.graph.find_nodes(op="placeholder"))


def results_of(gm: GraphModule) -> list[Any]:
    """What the graph returns: nodes, and None."""
    return list(gm.graph.output_node().args[0])  # type: ignore[arg-type]


def set_results(gm: GraphModule, results: list[Any]) -> None:
    """Return these nodes."""
    gm.graph.output_node().args = (tuple(results),)


def swap_results(gm: GraphModule, i: int, j: int) -> None:
    """Return two results in each other's place."""
    results = results_of(gm)
    results[i], results[j] = results[j], results[i]
    set_results(gm, results)
