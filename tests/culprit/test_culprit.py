"""After a failed check, the report names the first wrong node and has a script that reproduces it."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import aotkit
from aotkit.partitioners.default import partition as default_partition
from tests.culprit import faults, scripts

aten = torch.ops.aten


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def mlp(x, w, v):
    h = F.gelu(x @ w)
    scale = h.sigmoid().mean()
    y = (h @ v).tanh()
    return y * scale


def failed(fn, *args, **options):
    with pytest.raises(aotkit.MismatchError) as e:
        aotkit.compile(fn, **options)(*args)
    return e.value


def culprit_of(fn, *args, **options):
    return failed(fn, *args, **options).report.culprit


def calls(target):
    return lambda node: node.target is target


def lines_of(file):
    return Path(file).read_text(encoding="utf-8").splitlines()


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("part", "target", "fault", "code"),
    [
        ("forward graph", aten.tanh.default, faults.other_operator, "y = (h @ v).tanh()"),
        pytest.param(
            "forward graph", aten.mean.default, faults.scaled, "scale = h.sigmoid().mean()", marks=pytest.mark.sweep
        ),
        pytest.param("forward graph", aten.gelu.default, faults.shifted, "h = F.gelu(x @ w)", marks=pytest.mark.sweep),
        ("backward graph", aten.tanh_backward.default, faults.other_order, "y = (h @ v).tanh()"),
        pytest.param(
            "backward graph", aten.gelu_backward.default, faults.rolled, "h = F.gelu(x @ w)", marks=pytest.mark.sweep
        ),
        ("backward graph", aten.sigmoid_backward.default, faults.scaled, "scale = h.sigmoid().mean()"),
    ],
)
def test_the_first_wrong_node_is_named_with_its_line(part, target, fault, code):
    error = failed(mlp, leaf(4, 6), leaf(6, 5), leaf(5, 3), backend=faults.backend(part, calls(target), fault))
    culprit = error.report.culprit
    assert (culprit.part, culprit.operator) == (part, str(target))
    assert culprit.line.code == code
    assert lines_of(culprit.line.file)[culprit.line.line - 1].strip() == code
    assert [n.target for n in faults.operations(culprit.graph)] == [target]
    assert f"first wrong: {culprit.node} ({target}) of the {part}, at test_culprit.py:" in str(error)
    assert "output 0" in culprit.difference


def test_a_call_without_gradients():
    wrong = faults.compiler(calls(aten.cos.default), faults.other_operator)
    culprit = culprit_of(lambda x: x.sin().cos() + 1, torch.randn(5), backend=wrong)
    assert (culprit.part, culprit.operator) == ("forward graph", "aten.cos.default")


def test_a_function_that_dynamo_captures():
    def fn(x):
        if x.sum() > 1e9:
            return x
        return (x.sin() * 2).cos().exp()

    wrong = faults.backend("backward graph", calls(aten.sin.default), faults.scaled)
    culprit = culprit_of(fn, leaf(4), backend=wrong, capture="dynamo")
    assert (culprit.part, culprit.operator) == ("backward graph", "aten.sin.default")
    assert culprit.line.code == "return (x.sin() * 2).cos().exp()"


@pytest.mark.sweep
def test_sizes_that_are_left_open():
    wrong = faults.compiler(calls(aten.cos.default), faults.other_operator)
    culprit = culprit_of(two_sines, leaf(4), leaf(4), backend=wrong, dynamic=True)
    assert (culprit.part, culprit.operator) == ("forward graph", "aten.cos.default")


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.11 cannot trace a generator")
def test_a_function_with_a_generator_of_its_own():
    generator = torch.Generator().manual_seed(1)

    def fn(x):
        return (x * torch.rand(4, generator=generator)).cos().exp()

    wrong = faults.compiler(calls(aten.cos.default), faults.other_operator)
    state = generator.get_state()
    assert culprit_of(fn, torch.randn(4), backend=wrong).operator == "aten.cos.default"
    assert torch.equal(generator.get_state(), state)


def test_a_fault_of_two_operations_together():
    """A multiplication whose only reader is an addition is fused with that, and then adds twice."""

    def fusing(gm, example_inputs):
        for node in gm.graph.find_nodes(op="call_function", target=aten.add.Tensor):
            first = node.args[0]
            if first.target is aten.mul.Tensor and len(first.users) == 1:
                node.kwargs = {"alpha": 2}
        gm.recompile()
        return gm

    def fn(a, b, c):
        d = a.sin() + b
        return (d * b + c).exp() - d

    culprit = culprit_of(fn, *torch.randn(3, 4), backend=fusing)
    assert culprit.operator == "aten.add.Tensor"
    assert culprit.line.code == "return (d * b + c).exp() - d"
    assert [str(n.target) for n in faults.operations(culprit.graph)] == ["aten.mul.Tensor", "aten.add.Tensor"]


def test_outputs_in_another_order():
    def reordering(gm, example_inputs):
        return lambda *inputs: list(reversed(gm(*inputs)))

    culprit = culprit_of(lambda x: (x.sin(), x.cos()), torch.randn(4), backend=reordering)
    assert (culprit.part, culprit.node) == ("forward graph", "output")
    assert len(faults.operations(culprit.graph)) <= 1


def test_a_compiler_that_changes_its_input():
    def in_place(gm, example_inputs):
        for node in gm.graph.find_nodes(op="call_function", target=aten.cos.default):
            node.target = aten.cos_.default
        gm.recompile()
        return gm

    culprit = culprit_of(lambda x: x.cos() + 1, torch.randn(4), backend=in_place)
    assert culprit.operator == "aten.cos.default"


def test_rounding_is_not_blamed():
    """Half of the values are rounding errors, and the compiler rounds otherwise; the last operator is wrong."""

    def fn(x):
        centred = x - x.mean(0)
        return (centred.sum(0) * 1e3, (centred * centred).sum(0).sqrt())

    def otherwise(target, args, kwargs):
        if target is aten.sqrt.default:
            return 1.01 * target(*args, **kwargs)
        x, *rest = args
        return target(x.flip(0), *rest, **kwargs)

    wrong = faults.compiler(lambda n: n.target in (aten.sum.dim_IntList, aten.sqrt.default), otherwise)
    assert culprit_of(fn, torch.randn(500, 3), backend=wrong).operator == "aten.sqrt.default"


# Faults that no compiler made.


def save_another(joint, joint_inputs, **keywords):
    """Saves the sine in place of the cosine."""
    forward, backward = default_partition(joint, joint_inputs, **keywords)
    (cos,) = forward.graph.find_nodes(op="call_function", target=aten.cos.default)
    (sin,) = forward.graph.find_nodes(op="call_function", target=aten.sin.default)
    output = forward.graph.output_node()
    n = keywords["num_fwd_outputs"]
    saved = [sin if node is cos else node for node in output.args[0][n:]]
    assert saved != list(output.args[0][n:])
    output.args = ((*output.args[0][:n], *saved),)
    forward.recompile()
    return forward, backward


def reorder_saved(joint, joint_inputs, **keywords):
    """The forward graph saves in another order than the backward graph reads."""
    forward, backward = default_partition(joint, joint_inputs, **keywords)
    output = forward.graph.output_node()
    n = keywords["num_fwd_outputs"]
    assert len(output.args[0][n:]) > 1
    output.args = ((*output.args[0][:n], *reversed(output.args[0][n:])),)
    forward.recompile()
    return forward, backward


def two_sines(x, y):
    a = x.sin()
    b = y.cos()
    return (a * b).exp()


@pytest.mark.parametrize("partition", [save_another, reorder_saved])
@pytest.mark.usefixtures("unverified")
def test_a_wrong_cut_is_told_from_a_wrong_compiler(partition):
    error = failed(two_sines, leaf(4), leaf(4), backend="nop", partition=partition)
    culprit = error.report.culprit
    assert culprit.part == "partition"
    if partition is save_another:
        assert culprit.node == "cos"
        assert culprit.line.code == "b = y.cos()"
    assert "of the partition" in str(error)
    assert len(faults.operations(culprit.graph)) <= 5
    assert "return tests.culprit.test_culprit." in culprit.script


def test_a_mask_that_is_drawn_twice():
    """The backward graph draws again what the forward graph drew."""

    def redraw(joint, joint_inputs, **keywords):
        forward, backward = default_partition(joint, joint_inputs, **keywords)
        mask = next(n for n in backward.graph.find_nodes(op="placeholder") if n.meta["val"].dtype is torch.float32)
        with backward.graph.inserting_before(next(n for n in backward.graph.nodes if n.op != "placeholder")):
            again = backward.graph.call_function(aten.rand_like.default, (mask,))
        again.meta = dict(mask.meta)
        mask.replace_all_uses_with(again, lambda user: user is not again)
        mask.name, again.name = f"{mask.name}_saved", mask.name
        backward.recompile()
        return forward, backward

    noisy = {"backend": "nop", "partition": redraw, "random": "torch"}
    culprit = culprit_of(lambda x: x * torch.rand_like(x), leaf(8), **noisy)
    assert (culprit.part, culprit.operator) == ("partition", "aten.rand_like.default")


def test_a_wrong_joint_pass():
    def wrong_pass(joint, joint_inputs):
        for node in joint.graph.find_nodes(op="call_function", target=aten.cos.default):
            node.target = aten.sin.default
        joint.recompile()

    backend = aotkit.Backend(faults.correct, joint_pass=wrong_pass)
    error = failed(two_sines, leaf(4), leaf(4), backend=backend)
    assert error.report.culprit.part == "joint pass"
    assert "the joint pass is wrong" in str(error)
    with pytest.raises(ValueError, match="no script"):
        error.report.culprit.write("unused")


def test_a_joint_pass_that_is_wrong_without_gradients():
    def wrong_pass(gm, inputs):
        (node,) = gm.graph.find_nodes(op="call_function", target=aten.cos.default)
        node.target = aten.sin.default

    error = failed(lambda x: x.cos() + 1, torch.randn(4), backend=aotkit.Backend(faults.correct, joint_pass=wrong_pass))
    assert error.report.culprit.part == "joint pass"


def test_a_wrong_decomposition():
    backend = aotkit.Backend(faults.correct, decompositions={aten.cos.default: lambda x: x.sin() * 2})
    assert culprit_of(two_sines, leaf(4), leaf(4), backend=backend).part == "decompositions"


@pytest.fixture
def other_when_traced():
    """Functions that give something else when they are traced, one of them in its backward pass."""

    def scale(x):
        return x * 2 if type(x) in (torch.Tensor, nn.Parameter) else x.neg()

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return torch.ops.aotkit_tests.scale(grad)

    with torch.library._scoped_library("aotkit_tests", "FRAGMENT") as library:
        library.define("scale(Tensor x) -> Tensor")
        library.impl("scale", scale, "CompositeImplicitAutograd")
        yield {"forward": torch.ops.aotkit_tests.scale, "backward": Scale.apply}


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does that
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_wrong_trace_names_the_operator_and_its_line(where, capture, other_when_traced):
    """Before it, values that a trace without mutations has, and eager has only in parts."""
    scale = other_when_traced[where]

    def fn(x, y):
        x = x.clone()
        x[1:].add_(y[1:])
        return scale((x * y).sin()).exp().cos()

    error = failed(fn, leaf(4), leaf(4), backend="nop", capture=capture)
    culprit = error.report.culprit
    assert (culprit.part, culprit.operator) == ("trace", "aten.neg.default")
    assert f"first wrong: {culprit.node} (aten.neg.default) of PyTorch's trace, at test_culprit.py:" in str(error)
    with pytest.raises(ValueError, match="no script"):
        culprit.write("unused")


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_a_wrong_trace_of_a_call_without_gradients(capture, other_when_traced):
    culprit = culprit_of(
        lambda x: other_when_traced["forward"](x.sin()).exp(), torch.randn(8), backend="nop", capture=capture
    )
    assert (culprit.part, culprit.operator) == ("trace", "aten.neg.default")


@pytest.mark.sweep
@pytest.mark.parametrize("random", ["shared", pytest.param("torch", marks=pytest.mark.sweep)])
def test_a_wrong_trace_beside_dropout_that_is_traced_in_another_way_than_eager_runs_it(random, other_when_traced):
    attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
    norm = nn.LayerNorm(16)

    def fn(x):
        h = x + attention(norm(x), norm(x), norm(x), need_weights=False)[0]
        return F.dropout(other_when_traced["forward"](norm(h)), 0.1).exp()

    culprit = culprit_of(fn, torch.randn(4, 8, 16), backend="nop", random=random)
    assert (culprit.part, culprit.operator) == ("trace", "aten.neg.default")


def test_finding_never_hides_the_mismatch(monkeypatch):
    monkeypatch.setattr("aotkit.culprit.finding.steps_of", lambda gm: 1 / 0)
    wrong = faults.compiler(calls(aten.cos.default), faults.other_operator)
    error = failed(two_sines, torch.randn(4), torch.randn(4), backend=wrong)
    assert "output 0" in str(error)
    assert "was not found: looking for it raised ZeroDivisionError" in str(error)


def test_a_right_compilation_costs_nothing(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("aotkit.culprit")]:
        monkeypatch.delitem(sys.modules, name)
    aotkit.compile(two_sines, backend="nop")(leaf(4), leaf(4))
    assert "aotkit.culprit" not in sys.modules


# Scripts.

FAULTY_PLUGIN = """
import torch
from torch.fx import Interpreter

class Faulty(Interpreter):
    def call_function(self, target, args, kwargs):
        result = super().call_function(target, args, kwargs)
        if target is torch.ops.aten.tanh_backward.default:
            return result * 2
        if target is torch.ops.aten.index.Tensor:
            return result.flip(0)
        if target is torch.ops.aten.log.default:
            return result.clamp(max=0.5)
        if target is torch.ops.aten.native_layer_norm.default:
            return (result[0], result[1] + 1, result[2])
        return result

def compile_graph(gm, example_inputs):
    return Faulty(gm).run
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A faulty backend, as an installed package has it."""
    entry_points = "[aotkit.backends]\nfaulty = faulty_plugin:compile_graph\n"
    with scripts.installed(tmp_path, monkeypatch, "faulty_plugin", FAULTY_PLUGIN, entry_points) as folder:
        yield folder


WRITTEN = {
    "aten.tanh_backward.default": (lambda x: x.exp().tanh(), lambda: [leaf(3, 4)]),
    "aten.index.Tensor": (lambda x, i: x.t().cos()[i], lambda: [torch.randn(3, 6), torch.tensor([5, 0, 2])]),
    "aten.log.default": (lambda x: (x.abs() + 100).log(), lambda: [torch.randn(3, 4)]),
    "aten.native_layer_norm.default": (lambda x: F.layer_norm(x, (8,)) * 2, lambda: [leaf(4, 8)]),
}


@pytest.mark.sweep
def test_scripts_reproduce_in_a_fresh_process(plugin):
    """Of the backward graph; with indices and strides; with values that random ones do not replace; several results."""
    paths = []
    for operator, (fn, arguments) in WRITTEN.items():
        culprit = culprit_of(fn, *arguments(), backend="faulty")
        assert not isinstance(culprit, str), culprit  # why none was found
        assert culprit.operator == operator
        assert [str(n.target) for n in faults.operations(culprit.graph)] == [operator]
        assert "pickle" not in culprit.script
        paths.append(plugin / f"{operator}.py")
        culprit.write(paths[-1])
    assert scripts.exits(paths, plugin) == ["1"] * len(paths)
    # Once the backend is repaired, they say so.
    (plugin / "faulty_plugin.py").write_text("compile_graph = lambda gm, example_inputs: gm\n")
    assert scripts.exits(paths, plugin) == ["0"] * len(paths)


def test_a_backend_that_has_no_name_elsewhere():
    def local(gm, example_inputs):
        return faults.Faulty(gm, calls(aten.cos.default), faults.other_operator).run

    culprit = culprit_of(two_sines, torch.randn(4), torch.randn(4), backend=local)
    assert "FILL IN" in culprit.script


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_no_search_that_nobody_asked_for_takes_long(capture, monkeypatch):
    monkeypatch.setattr("aotkit.culprit.SECONDS", 0)
    wrong = faults.compiler(calls(aten.cos.default), faults.other_operator)
    error = failed(two_sines, torch.randn(4), torch.randn(4), backend=wrong, capture=capture)
    assert "error.report.find_culprit() looks for it" in str(error)
    assert error.report.find_culprit().operator == "aten.cos.default"
    assert error.report.culprit.operator == "aten.cos.default"
