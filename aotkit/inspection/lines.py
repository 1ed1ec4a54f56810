"""A graph as lines of text: one operation each, under the source line that it comes from."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

from aotkit.inspection.nodes import dtype_name, type_name
from aotkit.inspection.saved import SavedValue, recomputation_costs, recomputed_views, saved_placeholders
from aotkit.passes import operator_name, output_nodes, placeholders, source_line
from aotkit.text import printable

if TYPE_CHECKING:
    from aotkit.inspection.graphs import Graphs


@dataclass(frozen=True)
class Line:
    """A line of a listing. `role` is "source", "saved", "recomputed", "view again", "heading" or "" for the others."""

    text: str
    role: str = ""


def forward_lines(graphs: "Graphs") -> list[Line]:
    """The forward graph; inputs carry the user's names, the last lines say what is returned and what is saved."""
    names = input_labels(graphs)
    labels = {node: f"input {names.get(node.name, '')}".rstrip() for node in placeholders(graphs.forward)}
    heading = "forward" if graphs.backward is not None else "forward (no gradients: inference graph)"
    returned = [_argument(node) for node in output_nodes(graphs.forward)]
    lines = [Line(heading), *_graph_lines(graphs.forward, labels, {})]
    lines.append(Line(f"return {', '.join(returned[: graphs.num_outputs])}".rstrip()))
    if returned[graphs.num_outputs :]:
        lines.append(Line(f"save for backward {', '.join(returned[graphs.num_outputs :])}", "saved"))
    return lines


def backward_lines(graphs: "Graphs") -> list[Line]:
    """The backward graph; placeholders say what was saved, operations that forward had done already what that costs."""
    if graphs.backward is None:
        return []
    names = input_labels(graphs)
    saved = saved_placeholders(graphs)
    labels = {
        node: f"saved {value_label(saved[node], names)}" if node in saved else "tangent"
        for node in placeholders(graphs.backward)
    }
    marks = {node: Line(f"recomputed: {cost}", "recomputed") for node, cost in recomputation_costs(graphs).items()}
    marks |= dict.fromkeys(recomputed_views(graphs), Line("view again", "view again"))
    returned = ", ".join(_argument(node) for node in output_nodes(graphs.backward))
    return [Line("backward"), *_graph_lines(graphs.backward, labels, marks), Line(f"return {returned}")]


def input_labels(graphs: "Graphs") -> dict[str, str]:
    """The user's name for each input, by the name of its placeholder in the forward graph."""
    named = zip(placeholders(graphs.forward), graphs.input_names, strict=False)
    return {node.name: printable(name) for node, name in named}


def value_label(value: SavedValue, names: dict[str, str]) -> str:
    """`activation`, or for what the caller holds anyway which one it is: `input x`, `view of input layer.weight`."""
    return f"{value.kind} {names[value.storage]}" if value.storage in names else value.kind


def _graph_lines(gm: GraphModule, labels: dict[Node, str], marks: dict[Node, Line]) -> Iterator[Line]:
    previous = ""
    subgraphs: list[tuple[str, GraphModule]] = []
    for node in gm.graph.nodes:
        if node.op == "output":
            continue
        if node.op == "get_attr" and isinstance(getattr(gm, str(node.target), None), GraphModule):
            subgraphs.append((str(node.target), getattr(gm, str(node.target))))
            continue
        source = source_line(node) if node.op != "placeholder" else None
        comment = f"# {source}  {source.code}".rstrip() if source is not None else ""
        if comment and comment != previous:
            yield Line(comment, "source")
        previous = comment or previous
        text = f"{node.name}: {type_name(node.meta.get('val'))} = {labels.get(node) or expression(node)}"
        yield Line(f"{text}  ~ {marks[node].text}", marks[node].role) if node in marks else Line(text)
    for name, subgraph in subgraphs:
        returned = ", ".join(_argument(node) for node in output_nodes(subgraph))
        yield Line(f"subgraph {name}")
        yield from (Line("  " + line.text, line.role) for line in _graph_lines(subgraph, {}, {}))
        yield Line(f"  return {returned}")


def expression(node: Node, name: Callable[[Node], str] = lambda node: node.name) -> str:
    """What a node does, as text: `add(x, 1)`, `constant w`. `name` is what to call the nodes that it reads."""
    if node.op == "get_attr":
        return f"constant {node.target}"
    if node.op == "placeholder":
        return "input"
    if operator_name(node) == "getitem":
        return f"{_argument(node.args[0], name)}[{_argument(node.args[1], name)}]"
    arguments = [_argument(argument, name) for argument in node.args]
    arguments += [f"{key}={_argument(value, name)}" for key, value in node.kwargs.items()]
    return f"{operator_name(node)}({', '.join(arguments)})"


def _argument(argument: Any, name: Callable[[Node], str] = lambda node: node.name) -> str:
    if isinstance(argument, Node):
        return name(argument)
    if isinstance(argument, (list, tuple)):
        return "[" + ", ".join(_argument(entry, name) for entry in argument) + "]"
    if isinstance(argument, torch.dtype):
        return dtype_name(argument)
    if isinstance(argument, (torch.device, torch.layout, torch.memory_format)):
        return str(argument).removeprefix("torch.")
    return printable(re.sub(r"\s+", " ", repr(argument)))
