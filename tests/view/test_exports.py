"""Graphs in the formats of Graphviz, Mermaid and Model Explorer: what stands in them, and that names are no markup."""

import dataclasses
import json
import re

import pytest
import torch
from torch import nn

import aotkit
from aotkit.cli import main
from aotkit.view.formats import MOST_NODES, render_mermaid

HOSTILE = 'a"]; b\\ <b>`x`</b>\\N\n&lt; #60; $$ _e_ **f** [l](u) style:#x; end %% --> {x|y} \u2028'


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).sin().square()


@pytest.fixture(scope="module")
def graphs():
    model = nn.Sequential(Block(), Block())
    found = aotkit.extract(lambda x: model(x).sum(), torch.randn(2, 4), partition="min_cut")
    return dataclasses.replace(found, name=HOSTILE, input_names=[HOSTILE, *found.input_names[1:]])


def expected_edges(data):
    """(source, target, saved) by index."""
    read = {(source, i, False) for i, node in enumerate(data["nodes"]) for source in node["inputs"]}
    saved = {(v["node"], v["placeholder"], True) for v in data["saved"] if v["placeholder"] is not None}
    assert read
    assert saved
    return read | saved


def in_one_line(text):
    return "".join(c if c.isprintable() else " " for c in text)


# The grammar of DOT as far as it is used: statements of identifiers, quoted strings, attributes and subgraphs.
DOT_TOKEN = re.compile(r'\s*(?:"(?:[^"\\\n]|\\.)*"|[A-Za-z_]\w*|->|[{}\[\];,=])')


def dot_tokens(text):
    position, tokens = 0, []
    while text[position:].strip():
        match = DOT_TOKEN.match(text, position)
        assert match, text[position : position + 60]
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


def parse_dot(text):
    """Node -> (attributes, cluster), and edge -> attributes."""
    tokens = iter(dot_tokens(text))
    assert [next(tokens) for _ in range(3)] == ["digraph", "aotkit", "{"]
    nodes, edges, cluster, depth = {}, {}, None, 1
    for token in tokens:
        if token == "}":
            cluster, depth = None, depth - 1
        elif token == "subgraph":
            cluster, depth = next(tokens), depth + 1
            assert next(tokens) == "{"
        else:
            statement = [token]
            while (token := next(tokens)) != ";":
                statement.append(token)
            names, attributes = statement, {}
            if "[" in statement:
                assert statement[-1] == "]"
                at = statement.index("[")
                names, rest = statement[:at], statement[at + 1 : -1]
                assert rest[1::4] == ["="] * len(rest[1::4])
                assert rest[3::4] == [","] * len(rest[3::4])
                attributes = dict(zip(rest[::4], rest[2::4], strict=True))
            if "->" in names:
                edges[names[0], names[2]] = attributes
            elif names[0].startswith("n") and names[0][1:].isdecimal():
                nodes[names[0]] = attributes, cluster
    assert depth == 0
    return nodes, edges


def dot_lines(label):
    """What Graphviz shows of a quoted label."""
    assert set(re.findall(r"\\(.)", label)) <= {"n", '"', "\\"}, "\\N, for one, would be the node's name"
    parts = re.split(r"\\n", label[1:-1].replace("\\\\", "\0"))
    return [part.replace('\\"', '"').replace("&amp;", "&").replace("\0", "\\") for part in parts]


def test_dot_has_the_nodes_the_edges_and_the_names(graphs):
    data = graphs.json()
    nodes, edges = parse_dot(graphs.dot())
    found = {(int(a[1:]), int(b[1:]), attributes == {"style": '"dashed"'}) for (a, b), attributes in edges.items()}
    assert found == expected_edges(data)
    assert [cluster for _, cluster in nodes.values()] == [f"cluster_{node['graph']}" for node in data["nodes"]]
    for (attributes, _), node in zip(nodes.values(), data["nodes"], strict=True):
        lines = dot_lines(attributes["label"])
        assert lines[0] == (node["operator"] or node["role"])
        assert lines[-1] == node["type"]
        assert in_one_line(node["label"] or node["name"]) in lines


def mermaid_text(label):
    assert not re.search("[^A-Za-z0-9 ,#;]", label.replace("<br/>", "")), "what is no letter or digit is an entity"
    return re.sub(r"#(\d+);", lambda match: chr(int(match[1])), label.replace("<br/>", "\n"))


def test_mermaid_has_the_nodes_the_edges_and_the_names(graphs):
    data = graphs.json()
    heading, *lines = graphs.mermaid().splitlines()
    assert heading == "flowchart TD"
    nodes, edges, titles = {}, set(), []
    for line in lines:
        if match := re.fullmatch(r' {4}n(\d+)\["([^"]*)"\]', line):
            nodes[int(match[1])] = mermaid_text(match[2]).split("\n")
        elif match := re.fullmatch(r"  n(\d+) (-->|-\.->) n(\d+)", line):
            edges.add((int(match[1]), int(match[3]), match[2] == "-.->"))
        elif match := re.fullmatch(r'  subgraph (?:forward|backward)\["([^"]*)"\]', line):
            titles.append(mermaid_text(match[1]))
        else:
            assert re.fullmatch(r"  (end|classDef \w+ fill:#\w{6},color:black|class (n\d+,)*n\d+ \w+)", line)
    assert edges == expected_edges(data)
    assert titles == [f"{in_one_line(data['name'])}: {graph}" for graph in ("forward", "backward")]
    for i, node in enumerate(data["nodes"]):
        assert nodes[i][0] == (node["operator"] or node["role"])
        assert in_one_line(node["label"] or node["name"]) in nodes[i]


def test_mermaid_is_for_small_graphs():
    def deep(x):
        for _ in range(MOST_NODES):
            x = x.sin()
        return x

    graphs = aotkit.extract(deep, torch.ones(2))
    with pytest.raises(
        ValueError, match=r"at most 100 nodes; those of .* have 101\. Use dot, model_explorer or save_html"
    ):
        graphs.mermaid()
    data = graphs.json()
    data["nodes"] = data["nodes"][:-1]
    assert render_mermaid(data).count("-->") == MOST_NODES - 1


# Key -> type, "?" where it may be missing: src/server/package/src/model_explorer/graph_builder.py.
PAIR = {"key": str, "value": str}
EDGE = {"sourceNodeId": str, "sourceNodeOutputId?": str, "targetNodeInputId?": str}
METADATA = {"id": str, "attrs?": [PAIR]}
STYLE = {"backgroundColor?": str, "borderColor?": str, "hoveredBorderColor?": str}
NODE = {
    "id": str,
    "label": str,
    "namespace?": str,
    "subgraphIds?": [str],
    "attrs?": [PAIR],
    "incomingEdges?": [EDGE],
    "outputsMetadata?": [METADATA],
    "inputsMetadata?": [METADATA],
    "style?": STYLE,
}
GRAPH = {"id": str, "nodes": [NODE], "groupNodeAttributes?": dict}
COLLECTION = {"label": str, "graphs": [GRAPH]}


def conforms(value, schema):
    if isinstance(schema, list):
        return isinstance(value, list) and all(conforms(item, schema[0]) for item in value)
    if isinstance(schema, dict):
        known = {key.rstrip("?"): kind for key, kind in schema.items()}
        required = {key for key in schema if not key.endswith("?")}
        assert required <= value.keys() <= known.keys(), value.keys()
        return all(conforms(item, known[key]) for key, item in value.items())
    return isinstance(value, schema)


def test_model_explorer_has_groups_of_modules_and_edges_of_saved_values(graphs):
    data, found = graphs.json(), json.loads(json.dumps(graphs.model_explorer()))
    assert conforms(found, COLLECTION)
    (graph,) = found["graphs"]
    nodes = graph["nodes"]
    place = {node["id"]: i for i, node in enumerate(nodes)}
    assert len(place) == len(nodes) == len(data["nodes"])
    edges = {(place[e["sourceNodeId"]], i) for i, node in enumerate(nodes) for e in node["incomingEdges"]}
    assert edges == {(source, target) for source, target, _ in expected_edges(data)}
    assert "forward/Sequential/0/linear" in {node["namespace"] for node in nodes}
    assert graph["groupNodeAttributes"]["forward/Sequential/0"] == {"class": "Block"}
    assert graph["groupNodeAttributes"][""]["saved_bytes"] == str(data["totals"]["saved_bytes"])
    addmm = next(node for node in nodes if node["label"] == "addmm")
    assert {"key": "tensor_shape", "value": "f32[2,4]"} in addmm["outputsMetadata"][0]["attrs"]
    assert any(pair["key"] == "source" and "self.linear(x)" in pair["value"] for pair in addmm["attrs"])


def test_export_writes_what_the_methods_return(graphs, tmp_path, capsys):
    source = tmp_path / "graphs.json"
    source.write_text(json.dumps(graphs.json()))
    for name, want in (("dot", graphs.dot()), ("mermaid", graphs.mermaid())):
        assert main(["export", str(source), "--format", name]) == 0
        assert capsys.readouterr().out == want
    assert main(["export", str(source), "--format", "model-explorer", "-o", str(tmp_path / "x.json")]) == 0
    assert json.loads((tmp_path / "x.json").read_text()) == graphs.model_explorer()
    assert capsys.readouterr().out == ""
    data = graphs.json()
    for steps in (data["nodes"], *data["memory"].values()):
        steps *= 9
    source.write_text(json.dumps(data))
    assert main(["export", str(source), "--format", "mermaid"]) == 2
    assert "Mermaid draws small graphs only" in capsys.readouterr().err
