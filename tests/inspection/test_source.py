"""Every operation carries the user's line, and noting it changes nothing else."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aotkit.inspection import Graphs
from aotkit.passes import recording_source, source_line
from aotkit.passes.nodes import is_operation

GraphsOf = Callable[..., Graphs]


def parameter(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def line_of(fn: Callable[..., Any], text: str) -> int:
    """Number of the one line of `fn` that contains `text`."""
    lines, first = inspect.getsourcelines(fn)
    (index,) = [i for i, line in enumerate(lines) if text in line]
    return first + index


def lines_by_operator(gm: Any) -> dict[str, int | None]:
    found = {node.name: source_line(node) for node in gm.graph.nodes if is_operation(node)}
    return {name: source.line if source else None for name, source in found.items()}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return 2 * ctx.saved_tensors[0] * gradients[0]


square = Square.apply


def helper(x: Tensor) -> Tensor:
    return x.tanh()


def straight(x: Tensor, w: Tensor) -> Tensor:
    y = torch.relu(x @ w)
    z = helper(y)
    return torch.nn.functional.layer_norm(z, z.shape[-1:])


def custom_function(x: Tensor) -> Tensor:
    y = x.cos()
    z = square(y)
    return z.sin()


def transforms(x: Tensor) -> Tensor:
    y = torch.vmap(lambda row: row.sin() * 2)(x)
    return y + torch.func.grad(lambda v: v.exp().sum())(x)


def mutation(x: Tensor) -> Tensor:
    y = x.clone()
    y.add_(1)
    y[0] = 3.0
    return y.sin()


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda v: v.sin().cos(), x, use_reentrant=False)  # type: ignore[no-any-return]


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.exp()
    return x * scale


def branches(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # type: ignore[no-any-return]


def sequence(x: Tensor) -> Tensor:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(0.5))
    return model(x)  # type: ignore[no-any-return]


def attention(x: Tensor) -> Tensor:
    weights = torch.softmax(x @ x.transpose(-1, -2), -1)
    return (weights @ x).view(-1).unflatten(0, x.shape).mean()


@pytest.mark.parametrize(
    "fn", [custom_function, transforms, mutation, checkpointed, without_gradient, attention, sequence]
)
@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_every_operation_has_a_line_of_this_file(graphs_of: GraphsOf, fn: Any, partition: str) -> None:
    graphs = graphs_of(fn, parameter(4, 4), partition=partition)
    assert graphs.backward is not None
    for gm in (graphs.forward, graphs.backward):
        sources = [source_line(node) for node in gm.graph.nodes if is_operation(node)]
        assert sources
        assert all(source is not None and source.file == __file__ for source in sources)


@pytest.mark.parametrize("fn", [custom_function, transforms, mutation, checkpointed, without_gradient, branches])
def test_recording_changes_neither_outputs_nor_gradients(fn: Any) -> None:
    results = []
    x = torch.randn(4, 4)
    for context in (recording_source, torch.enable_grad):
        leaf = copy.copy(x).requires_grad_()
        with context():
            output = fn(leaf)
        output.sum().backward()
        results.append((output, leaf.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo's own, for any non-leaf tensor
def test_control_flow_can_be_traced_while_recording(graphs_of: GraphsOf) -> None:
    graphs = graphs_of(branches, parameter(4, 4))
    assert any("cond" in str(node.target) for node in graphs.forward.graph.nodes)


def test_the_innermost_line_of_the_user_counts(graphs_of: GraphsOf) -> None:
    graphs = graphs_of(straight, parameter(4, 4), parameter(4, 4))
    lines = lines_by_operator(graphs.forward)
    assert lines["mm"] == lines["relu"] == line_of(straight, "torch.relu")
    assert lines["tanh"] == line_of(helper, "x.tanh")
    assert lines["native_layer_norm"] == line_of(straight, "layer_norm")
    (tanh,) = [node for node in graphs.forward.graph.nodes if node.name == "tanh"]
    source = source_line(tanh)
    assert source is not None
    assert (source.code, source.function) == ("return x.tanh()", "helper")
    assert str(source) == f"test_source.py:{source.line}"


def test_backward_is_credited_to_the_operation_that_it_differentiates(graphs_of: GraphsOf) -> None:
    graphs = graphs_of(straight, parameter(4, 4), parameter(4, 4))
    lines = lines_by_operator(graphs.backward)
    assert lines["tanh_backward"] == line_of(helper, "x.tanh")
    assert lines["threshold_backward"] == line_of(straight, "torch.relu")
    assert lines["native_layer_norm_backward"] == line_of(straight, "layer_norm")


def test_backward_of_an_autograd_function_is_credited_to_its_forward(graphs_of: GraphsOf) -> None:
    graphs = graphs_of(custom_function, parameter(4))
    lines = lines_by_operator(graphs.backward)
    assert list(lines.values()).count(line_of(Square, "return x * x")) == 2
    assert list(lines.values()).count(line_of(custom_function, "x.cos()")) == 3


def test_lines_recorded_by_dynamo_are_kept() -> None:
    compile_module = pytest.importorskip("functorch.compile")
    found: dict[str, Any] = {}

    def keep(key: str) -> Callable[..., Any]:
        def compiler(gm: Any, _: Any) -> Any:
            found[key] = gm
            return compile_module.make_boxed_func(gm.forward)

        return compiler

    def backend(gm: Any, inputs: Any) -> Any:
        def traced(*args: Any) -> Any:
            with recording_source():
                return torch.fx.Interpreter(gm).run(*args)

        return compile_module.aot_function(traced, keep("forward"), keep("backward"))

    torch.compile(straight, backend=backend)(parameter(4, 4), parameter(4, 4)).sum().backward()
    assert lines_by_operator(found["forward"])["tanh"] == line_of(helper, "x.tanh")
    assert lines_by_operator(found["backward"])["threshold_backward"] == line_of(straight, "torch.relu")


def test_a_node_that_no_user_code_made_has_no_line() -> None:
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    assert source_line(node) is None
    node.meta["stack_trace"] = f'  File "{torch.__file__}", line 3, in f\n    code\n'
    assert source_line(node) is None
