"""A wrong partition has a script: a small joint graph that the partitioner cuts wrongly."""

import operator

import pytest
import torch
from torch import Tensor
from torch.fx import Interpreter
from torch.utils.checkpoint import CheckpointPolicy

import aotkit
from aotkit.culprit import replay_partition
from aotkit.culprit.parts import Part, copies_apart
from aotkit.culprit.pieces import joint_piece, live_values, nodes_of, steps_of
from aotkit.culprit.replay import values_of
from aotkit.culprit.script import graph_code
from aotkit.joint import JOINT_TAGS
from aotkit.partitioners.default import partition as default_partition
from aotkit.passes import copy_graph
from aotkit.random import random_states
from aotkit.testing import zoo
from aotkit.testing.faults import FAULTS, judge
from tests.culprit import faults, scripts

aten = torch.ops.aten
MOST_OPERATIONS = 5

# One function each; what the others need of a correct partition is in `cut`.
FAULTY_CUTS = """
import torch
import aotkit

aten = torch.ops.aten

def cut(joint, joint_inputs, keywords):
    forward, backward = aotkit.get_partitioner("default")(joint, joint_inputs, **keywords)
    return forward, backward, keywords["num_fwd_outputs"]

def results(gm):
    return list(gm.graph.output_node().args[0])

def set_results(gm, nodes):
    gm.graph.output_node().args = (tuple(nodes),)
    gm.recompile()

def another_saved(joint, joint_inputs, **keywords):
    "The argument of a cosine is saved in its place."
    forward, backward, n = cut(joint, joint_inputs, keywords)
    found = results(forward)
    saved = [node.args[0] if node.target is aten.cos.default else node for node in found[n:]]
    set_results(forward, [*found[:n], *saved])
    return forward, backward

def saved_in_other_order(joint, joint_inputs, **keywords):
    "The forward graph saves in another order than the backward graph reads."
    forward, backward, n = cut(joint, joint_inputs, keywords)
    found = results(forward)
    set_results(forward, [*found[:n], *reversed(found[n:])])
    return forward, backward

def drawn_twice(joint, joint_inputs, **keywords):
    "The backward graph draws again what the forward graph drew."
    forward, backward, n = cut(joint, joint_inputs, keywords)
    tangent = backward.graph.find_nodes(op="placeholder")[-1]
    for node in backward.graph.find_nodes(op="placeholder"):
        if node.name.startswith("rand_like"):
            with backward.graph.inserting_after(tangent):
                again = backward.graph.call_function(aten.rand_like.default, (tangent,))
            node.replace_all_uses_with(again)
    backward.recompile()
    return forward, backward

def gradient_dropped(joint, joint_inputs, **keywords):
    "The second gradient is missing."
    forward, backward, n = cut(joint, joint_inputs, keywords)
    first, second, *others = results(backward)
    set_results(backward, [first, None, *others])
    return forward, backward

def gradients_in_other_order(joint, joint_inputs, **keywords):
    "The backward graph returns the gradients in reverse."
    forward, backward, n = cut(joint, joint_inputs, keywords)
    set_results(backward, reversed(results(backward)))
    return forward, backward
"""

REPAIRED = """
import aotkit
another_saved = saved_in_other_order = drawn_twice = gradient_dropped = gradients_in_other_order = (
    aotkit.get_partitioner("min_cut")
)
"""


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def chain(x, y):
    return ((x.sin() * y.cos()).tanh() @ y.t()).exp().cos()


def products(x, y):
    return (x.sin() * y.cos()).tanh().exp() * x


def added(x, y):
    return (x.sin() * y.detach()).tanh() + y


def noisy(x, y):
    return (x.sin() * torch.rand_like(x)).exp() * y


# Promises of partitioners tell of some of these before anything runs.
pytestmark = pytest.mark.usefixtures("unverified")
WRONG = {
    "another_saved": chain,
    "saved_in_other_order": products,
    "drawn_twice": noisy,
    "gradient_dropped": chain,
    "gradients_in_other_order": added,
}


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Wrong partitioners, one of them registered by an installed package."""
    entry_points = "[aotkit.partitioners]\nanother_saved = faulty_cuts:another_saved\n"
    with scripts.installed(tmp_path, monkeypatch, "faulty_cuts", FAULTY_CUTS, entry_points) as folder:
        yield folder


def culprit_of(fn, *args, backend="nop", **options):
    with pytest.raises(aotkit.MismatchError) as e:
        aotkit.compile(fn, backend=backend, random="torch", **options)(*args)
    return e.value.report.culprit


@pytest.mark.sweep
@pytest.mark.parametrize("names", [("another_saved", "drawn_twice"), tuple(WRONG)], ids=["two", "all"])
def test_scripts_reproduce_in_a_fresh_process(plugin, names):
    import faulty_cuts

    paths = []
    for name in names:
        partition = name if name == "another_saved" else getattr(faulty_cuts, name)
        culprit = culprit_of(WRONG[name], leaf(3, 4), leaf(3, 4), partition=partition)
        assert culprit.part == "partition"
        assert len(faults.operations(culprit.graph)) <= MOST_OPERATIONS, culprit.script
        assert 'error.report.culprit.write("repro.py")' in str(culprit)
        assert ("aotkit.get_partitioner('another_saved')" in culprit.script) == (name == "another_saved")
        paths.append(plugin / f"{name}.py")
        culprit.write(paths[-1])
    assert scripts.exits(paths, plugin) == ["1"] * len(paths)
    (plugin / "faulty_cuts.py").write_text(REPAIRED)
    assert scripts.exits(paths, plugin) == ["0"] * len(paths)


PLANTED = """
    from aotkit.testing.faults import FAULTS

    return next(f for f in FAULTS if f.name == {name!r}).plug_in({planted}).partition
"""


@pytest.mark.sweep
def test_planted_faults_have_scripts(tmp_path):
    """Their partitioners have no name that another process knows: it is filled in."""
    wrong = {fault.name: partition_culprit(fault) for fault in FAULTS if fault.subject == "partitions"}
    wrong = {name: culprit for name, culprit in wrong.items() if culprit.part == "partition"}
    assert len(wrong) > 10
    for planted, code in ((True, "1"), (False, "0")):
        paths = []
        for name, culprit in wrong.items():
            assert len(faults.operations(culprit.graph)) <= MOST_OPERATIONS, culprit.script
            before, filled_in, after = culprit.script.partition('    raise SystemExit("FILL IN: ')
            assert filled_in
            paths.append(tmp_path / f"{name}.py")
            paths[-1].write_text(before + PLANTED.format(name=name, planted=planted) + after.partition("\n")[2])
        assert scripts.exits(paths, tmp_path) == [code] * len(paths)


def partition_culprit(fault):
    """What aotkit says of a planted fault."""
    return judge.refusal(fault, fault.plug_in(True)).report.culprit


def test_what_a_joint_graph_is_tagged_with_is_in_the_script():
    """As `torch.utils.checkpoint` does, or a joint pass; here for a partitioner that spoils only what is tagged."""

    def tagging(joint, joint_inputs):
        for node in joint.graph.find_nodes(op="call_function", target=aten.cos.default):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def spoiling(joint, joint_inputs, **keywords):
        tagged = [n.name for n in joint.graph.nodes if n.meta.get("recompute") is CheckpointPolicy.MUST_SAVE]
        forward, backward = default_partition(joint, joint_inputs, **keywords)
        n, output = keywords["num_fwd_outputs"], forward.graph.output_node()
        results = output.args[0]
        output.args = ((*results[:n], *(node.args[0] if node.name in tagged else node for node in results[n:])),)
        forward.recompile()
        return forward, backward

    backend = aotkit.Backend(faults.correct, joint_pass=tagging)
    culprit = culprit_of(chain, leaf(3, 4), leaf(3, 4), backend=backend, partition=spoiling)
    assert culprit.part == "partition"
    assert "node.meta['recompute'] = torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE" in culprit.script


def test_sizes_that_are_left_open():
    """The script has those of the call."""

    def another_saved(joint, joint_inputs, **keywords):
        forward, backward = default_partition(joint, joint_inputs, **keywords)
        n, output = keywords["num_fwd_outputs"], forward.graph.output_node()
        results = output.args[0]
        saved = [node.args[0] if node.target is aten.cos.default else node for node in results[n:]]
        output.args = ((*results[:n], *saved),)
        forward.recompile()
        return forward, backward

    culprit = culprit_of(chain, leaf(3, 4), leaf(3, 4), partition=another_saved, dynamic=True)
    assert culprit.node == "cos"
    assert len(faults.operations(culprit.graph)) <= MOST_OPERATIONS
    assert culprit.script is not None


CASES = ["pointwise_chain", "views", "layer_norm", "sort_and_topk", "dropout", "mutates_an_input", "bfloat16"]
CASES += ["complex_numbers", "lstm_cell", "unused_and_detached", "several_losses", "TransformerBlock"]


@pytest.mark.thinned
@pytest.mark.parametrize("case", [c for c in zoo.CASES if c.name in CASES], ids=lambda c: c.name)
def test_a_joint_graph_and_its_pieces_are_cut_rightly_by_all_partitioners(case):
    """Rebuilt from source, which holds no metadata but tags."""
    joint, inputs, num_fwd_outputs = traced(case)
    assert_cut_rightly(joint, inputs, num_fwd_outputs)
    steps = steps_of(joint)
    third = max(len(steps) // 3, 1)
    for some in (steps[third : 2 * third], steps[len(steps) // 2 :]):
        piece = joint_piece(joint, nodes_of(some), live_values(joint, nodes_of(some)))
        known = values_of(Part("joint graph", joint, inputs, random_states()), piece.inputs)
        values = copies_apart(known[n] for n in piece.inputs)
        assert_valid(piece.gm, values, piece.num_fwd_outputs)
        assert_cut_rightly(piece.gm, values, piece.num_fwd_outputs)


def traced(case):
    """(joint graph, inputs, number of outputs that are no gradients)."""
    kept = {}

    def keep(joint, joint_inputs, /, *, num_fwd_outputs, **keywords):
        kept.update(joint=copy_graph(joint), num_fwd_outputs=num_fwd_outputs)
        return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **keywords)

    def record(gm, example_inputs):
        names = [n.name for n in gm.graph.find_nodes(op="placeholder")]

        def run(*inputs):
            kept.update(zip(names, [x.detach().clone() for x in inputs], strict=True))
            return Interpreter(gm).run(*inputs)

        return run

    fn, args = judge.build(case), judge.inputs(case, 0)[1]
    aotkit.compile(fn, backend=record, partition=keep, random="torch")(*args)
    joint = kept["joint"]
    inputs = [kept[n.name] for n in joint.graph.find_nodes(op="placeholder")]
    return joint, inputs, kept["num_fwd_outputs"]


def assert_cut_rightly(joint, inputs, num_fwd_outputs):
    """By every partitioner."""
    names = {"torch": torch, "operator": operator}
    exec("def build():\n    graph = torch.fx.Graph()\n" + graph_code(joint, JOINT_TAGS), names)
    for name in aotkit.list_partitioners():
        report = replay_partition(names["build"](), inputs, aotkit.get_partitioner(name), num_fwd_outputs)
        assert report.passed, f"{name}: {report}"


def assert_valid(joint, inputs, num_fwd_outputs):
    """A tangent like each differentiable output, and a gradient like each primal, or None."""
    names = [n.name for n in joint.graph.find_nodes(op="placeholder")]
    num_primals = sum(name.startswith("primals") for name in names)
    assert all(name.startswith("tangents") for name in names[num_primals:])
    results = Interpreter(joint).run(*inputs)
    outputs, gradients = results[:num_fwd_outputs], results[num_fwd_outputs:]
    differentiable = [y for y in outputs if y.is_floating_point() or y.is_complex()]
    for a, b in zip([*differentiable, *gradients], [*inputs[num_primals:], *inputs[:num_primals]], strict=True):
        assert a is None or (a.shape, a.dtype) == (b.shape, b.dtype)
    assert any(isinstance(y, Tensor) for y in outputs)


def test_what_is_no_joint_graph_is_refused():
    graph = torch.fx.Graph()
    x, tangent = (graph.create_node("placeholder", name, name=name) for name in ("primals_1", "tangents_1"))
    graph.output((graph.call_function(aten.sin.default, (x,)), graph.call_function(aten.mul.Tensor, (x, tangent))))
    gm = torch.fx.GraphModule({}, graph)
    assert replay_partition(gm, [torch.randn(3), torch.randn(3)], default_partition, 1).passed
    with pytest.raises(ValueError, match="tangents_1 has the shape and dtype of no output"):
        replay_partition(gm, [torch.randn(3), torch.randn(1)], default_partition, 1)
    with pytest.raises(ValueError, match="1 primals and returns 0 gradients"):
        replay_partition(gm, [torch.randn(3), torch.randn(3)], default_partition, 2)
