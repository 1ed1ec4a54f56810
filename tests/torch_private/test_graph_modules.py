"""Graphs get their Python code when it is asked for, by whatever way a compiler may ask."""

import pytest
import torch
from functorch.compile import ts_compile
from torch.fx import Graph, GraphModule, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

import aotkit
from aotkit.torch_private.fx import BINDINGS, boxed, graph_module, has_code, renew_code
from tests.compiled.test_copying import COPIES


def sine() -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.sin.default, (x,)))
    return graph_module({}, graph)


WAYS = {
    "called": lambda gm, x: gm(x),
    "forward": lambda gm, x: gm.forward(x),
    "class": lambda gm, x: type(gm).forward(gm, x),
    "traced": lambda gm, x: symbolic_trace(gm)(x),
    **{name: lambda gm, x, make=make: make(gm)(x) for name, make in COPIES.items()},
    "dynamo": lambda gm, x: torch.compile(gm, backend="eager", fullgraph=True)(x),
    "make_fx": lambda gm, x: make_fx(gm)(x)(x),
    "functional": lambda gm, x: torch.func.functional_call(gm, {}, x),
    "exported": lambda gm, x: torch.export.export(gm, (x,)).module()(x),
    "interpreted": lambda gm, x: torch.fx.Interpreter(gm).run(x),
    "twice": lambda gm, x: (gm(x), gm(x))[1],
}


@pytest.mark.parametrize("way", WAYS)
def test_computes_what_its_graph_says(way):
    gm, x = sine(), torch.randn(3)
    assert not has_code(gm)
    assert torch.equal(WAYS[way](gm, x), x.sin())


@pytest.mark.parametrize("text", [str, lambda gm: gm.code, lambda gm: gm.print_readable(print_output=False)])
def test_shows_its_code(text):
    assert "aten.sin" in text(sine())


@pytest.mark.parametrize("is_called", [False, True])
@pytest.mark.parametrize("change", [renew_code, GraphModule.recompile, lambda gm: setattr(gm, "graph", gm.graph)])
def test_changes_of_the_graph_count(is_called, change):
    gm, x = sine(), torch.randn(3)
    if is_called:
        gm(x)
    gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)[0].target = torch.ops.aten.cos.default
    change(gm)
    assert torch.equal(gm(x), x.cos())


def test_another_forward_may_be_set():
    gm = sine()
    gm.forward = lambda x: x + 1
    assert torch.equal(gm(torch.zeros(2)), torch.ones(2))


def test_attributes_are_modules_and_constants_of_the_root():
    root = torch.nn.Linear(2, 2)
    graph = Graph()
    graph.output(graph.get_attr("weight"))
    gm = graph_module(root, graph)
    assert gm() is root.weight
    with pytest.raises(AttributeError, match="nothing"):
        _ = gm.nothing


def test_code_is_generated_for_nobody():
    given = []

    def compiler(gm, inputs):
        given.append(has_code(gm))
        return lambda *inputs: torch.fx.Interpreter(gm).run(*inputs)  # one keeps the values of its run

    fast = aotkit.compile(lambda x: x.sin().sum(), backend=compiler, partition="nx_min_cut")
    x = torch.randn(3, requires_grad=True)
    fast(x).backward()
    assert torch.allclose(x.grad, x.cos())
    assert given == [False, False]


@pytest.mark.filterwarnings("ignore:.torch.jit", "ignore:The TorchScript type system:UserWarning")
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_compiler_may_script_what_it_traces_itself(requires_grad):
    def compiler(gm, inputs):
        return ts_compile(make_fx(gm)(*inputs), inputs)

    x = torch.rand(3, requires_grad=requires_grad)
    assert torch.allclose(aotkit.compile(lambda x: x.sin().cos(), backend=compiler)(x), x.sin().cos())


def test_a_boxed_graph_computes_what_the_graph_does():
    """By Python's bindings of its operators; the graph stays as it is."""
    operators = torch.ops.aten

    def function(x, w):
        y = operators.addmm.default(x[0], operators.permute.default(x, [1, 0]), operators.expand.default(w, [4, 4]))
        z = operators.cat.default([operators.view.default(y, [2, 8]), operators.view.default(y.clone(), [-1, 8])], 1)
        z = operators.mm.default(z, operators.transpose.int(z, 0, 1)).unsqueeze(0).clone().detach()
        z = operators.bmm.default(
            z,
            z,
        ) + operators.baddbmm.default(z, z, z, beta=0.5, alpha=2)
        return operators.embedding.default(z[0].squeeze(), torch.tensor([1, 0, 1]), 0)

    gm = make_fx(function, tracing_mode="real")(torch.randn(4, 4), torch.randn(1, 4))
    used = {node.target for node in gm.graph.nodes} & BINDINGS.keys()
    assert len(used) > 12
    inputs = [torch.randn(4, 4), torch.randn(1, 4)]
    torch.testing.assert_close(boxed(gm)([*inputs]), function(*inputs), rtol=0, atol=0)
    assert {node.target for node in gm.graph.nodes} & BINDINGS.keys() == used
