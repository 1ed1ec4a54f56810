"""Backends that take parts of graphs, and lists of backends: what goes where, and the same results as ever."""

import dataclasses
import graphlib
import operator
import random
import weakref
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Interpreter

import aotkit
from aotkit.compiled.modules import function_of
from aotkit.stages.regions.quotient_graph import Quotient
from aotkit.testing import BackendConformance
from aotkit.testing.conformance.requirements import Subject
from aotkit.testing.conformance.suites import requirements

aten = torch.ops.aten


def declines(node):
    """A compiler of pointwise operators, which takes views and constants along."""
    taken = (aten.view.default, aten.permute.default, aten.expand.default, aten.clone.default, aten.full.default)
    if torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target in taken:
        return None
    return "takes pointwise operators only"


def takes_all_but(*targets):
    return lambda node: "not this one" if node.target in targets else None


class Toy:
    """Interprets what it is given, and keeps that."""

    __name__ = "toy"

    def __init__(self):
        self.given = []

    def __call__(self, gm, example_inputs):
        assert [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")] == list(example_inputs)
        self.given.append(gm)
        return lambda *inputs: Interpreter(gm).run(*inputs)

    def targets(self):
        return [[n.target for n in gm.graph.nodes if n.op == "call_function"] for gm in self.given]


@pytest.fixture
def toy():
    return Toy()


@pytest.fixture
def pointwise(toy):
    return aotkit.Backend(toy, declines=declines)


def train(fn, *args):
    out = fn(*args)
    leaves = [a for a in args if a.requires_grad]
    return out, torch.autograd.grad(out.square().sum(), leaves)


def divided(compiled, *args):
    return function_of(compiled).graphs(*args).regions


def names(regions):
    return [region.nodes for region in regions.regions]


class Block(nn.Module):
    """Attention and a feed-forward layer, with layer norms and dropout."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(torch.ones(5, 5).triu(1).bool(), -1e9)
        x = x + F.dropout(self.out(scores.softmax(-1) @ v), 0.25)
        return x + F.dropout(self.down(F.gelu(self.up(self.norms[1](x)))), 0.25)


@pytest.mark.parametrize(("draws", "horizontal"), [("shared", False), ("torch", True)])
def test_a_block_of_a_transformer_trains(toy, pointwise, draws, horizontal):
    backend = aotkit.by_region(pointwise, horizontal=horizontal)
    block = Block()
    compiled = aotkit.compile(block, backend=backend, partition="nx_min_cut", random=draws)
    x = torch.randn(2, 5, 8, requires_grad=True)
    compiled(x).sum().backward()  # the check compares it with eager
    graphs = function_of(compiled).graphs(x)
    assert set(graphs.regions) == {"forward", "backward"}
    for role, gm in (("forward", graphs.forward), ("backward", graphs.backward)):
        inside = [name for nodes in names(graphs.regions[role]) for name in nodes]
        assert len(inside) == len(set(inside)) > 1
        assert not set(inside) & set(graphs.regions[role].outside)
        calls = {n.name for n in gm.graph.nodes if n.op == "call_function" and n.target is not operator.getitem}
        computed = {n for n in gm.graph.nodes if n.op == "placeholder"}  # from inputs
        for node in gm.graph.nodes:
            if computed.intersection(node.all_input_nodes):
                computed.add(node)
        # What is neither inside nor outside is computed by its readers.
        assert not (calls - set(inside) - set(graphs.regions[role].outside)) & {n.name for n in computed}
        assert all(len(region.nodes) >= 2 and region.inputs for region in graphs.regions[role].regions)
    found = str(graphs)
    assert "regions of forward: " in found
    assert "toy: takes pointwise operators only: " in found
    assert "toy: takes pointwise operators only: " in graphs._repr_markdown_().replace("&#95;", "_")


def test_regions_neither_begin_nor_end_with_views_nor_return_copies_of_inputs(toy, pointwise):
    def f(x):
        a = (x.view(4, 3).sin() * 2).view(3, 4).cos()
        return a.view(2, 6), x.clone().view(12), a.view(6, 2) @ a.view(2, 6)

    x = torch.randn(12)
    compiled = aotkit.compile(f, backend=pointwise)
    compiled(x)
    (forward,) = divided(compiled, x).values()
    assert toy.targets() == [[aten.sin.default, aten.mul.Tensor, aten.view.default, aten.cos.default]]
    assert "copies" in forward.outside["clone"][0]
    assert forward.outside["mm"] == ("takes pointwise operators only",)
    assert forward.outside["view"] == ("a view at the edge of a region",)


def test_a_value_that_leaves_a_region_does_not_come_back(toy, pointwise):
    def f(x):
        a = x.sin()
        b = a @ a  # of a third compiler's
        return (a.cos() + b).exp()  # with sin, this would wait for itself

    x = torch.randn(3, 3)
    compiled = aotkit.compile(f, backend=pointwise)
    compiled(x)
    assert toy.targets() == [[aten.sin.default, aten.cos.default], [aten.add.Tensor, aten.exp.default]]


def test_regions_do_not_wait_for_each_other():
    """sin and add are one region; cos and mul would be another, which reads sin for mul while add reads cos."""
    first = aotkit.Backend(Toy(), declines=takes_all_but(aten.cos.default, aten.mul.Tensor))

    def f(x, y):
        a, b = x.sin(), y.cos()
        return a + b, a * b

    args = torch.randn(3), torch.randn(3)
    compiled = aotkit.compile(f, backend=aotkit.by_region(first, "nop", min_region_size=1))
    compiled(*args)
    (forward,) = divided(compiled, *args).values()
    assert names(forward) == [("cos",), ("sin", "add"), ("mul",)]


def acyclic(inputs, group):
    after = {}
    for node, before in enumerate(inputs):
        after.setdefault(group[node], set()).update(group[b] for b in before if group[b] != group[node])
    try:
        graphlib.TopologicalSorter(after).prepare()
    except graphlib.CycleError:
        return False
    return True


@pytest.mark.parametrize("seed", range(200))
def test_merged_nodes_stay_acyclic_and_no_two_more_could_merge(seed):
    draw = random.Random(seed)
    count = draw.randint(2, 25)
    inputs = [draw.sample(range(n), min(n, draw.randint(0, 3))) for n in range(count)]
    taken = {n for n in range(count) if draw.random() < 0.7}
    quotient = Quotient()
    for node in range(count):
        quotient.add(node, inputs[node])
        if node in taken:
            quotient.attach(node, taken.intersection(inputs[node]))
    group = [quotient.find(n) for n in range(count)]
    assert acyclic(inputs, group)
    apart = [(a, b) for b in taken for a in taken.intersection(inputs[b]) if group[a] != group[b]]
    for a, b in apart:
        assert not acyclic(inputs, [group[b] if g == group[a] else g for g in group])
    if count > 2:
        a, b = draw.sample(range(count), 2)
        before = list(group)
        merged = quotient.merge_independent(a, b)
        after = [quotient.find(n) for n in range(count)]
        assert acyclic(inputs, after)
        together = [before[b] if g == before[a] else g for g in before]
        adjacent = any(before[i] == before[a] and before[n] == before[b] for n in range(count) for i in inputs[n])
        adjacent |= any(before[i] == before[b] and before[n] == before[a] for n in range(count) for i in inputs[n])
        assert merged == (before[a] != before[b] and not adjacent and acyclic(inputs, together))


@pytest.mark.thinned
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_equal_eager(seed):
    def f(x, y):
        draw = random.Random(seed)
        values = [x, y, torch.full((4, 4), 0.5)]
        for _ in range(30):
            op = draw.choice([torch.sin, torch.neg, torch.add, torch.mul, torch.matmul, "view", "split", "clone"])
            a, b = draw.sample(values, 2)
            if op == "view":
                values.append(a.reshape(2, 8).view(4, 4).permute(1, 0))
            elif op == "split":
                values.append(torch.cat(a.reshape(4, 4).split([1, 3]), 0))
            elif op == "clone":
                values.append(a.clone())
            else:
                values.append(op(a) if op in (torch.sin, torch.neg) else op(a, b).tanh())
        return sum(values[-5:]) + x * y

    toy = Toy()
    first = aotkit.Backend(toy, declines=declines)
    second = aotkit.Backend(Toy(), declines=takes_all_but(aten.mm.default, aten.sin.default))
    second.fw_compiler.__name__ = "second"
    args = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    f = aotkit.compile(f, backend=aotkit.by_region(first, second, horizontal=seed % 2 == 0))
    train(f, *args)
    assert toy.given


def test_constants_go_with_what_reads_them(toy, pointwise):
    def f(x):
        half = torch.full((3, 3), 0.5)
        return (x.sin() * half).mm(x).cos() * half

    x = torch.randn(3, 3)
    compiled = aotkit.compile(f, backend=pointwise)
    compiled(x)
    assert [aten.full.default in targets for targets in toy.targets()] == [True, True]
    (forward,) = divided(compiled, x).values()
    assert [len(region.inputs) for region in forward.regions] == [1, 1]
    assert set(forward.outside) == {"mm"}


def test_a_list_gives_each_operation_to_the_first_that_takes_it(toy, pointwise):
    rest = Toy()
    rest.__name__ = "rest"
    backends = [pointwise, aotkit.Backend(rest)]
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    compiled = aotkit.compile(lambda x, w: ((x @ w).softmax(-1) @ w).sin().exp(), backend=backends)
    train(compiled, x, w)
    graphs = compiled.graphs(x, w)
    assert graphs.backend == "toy, rest"
    assert {r.backend for r in graphs.regions["forward"].regions} == {"toy", "rest"}
    assert not any(aten.mm.default in t for t in toy.targets())
    assert any(t == [aten.mm.default, aten._softmax.default, aten.mm.default] for t in rest.targets())


def test_inductor_takes_what_another_leaves():
    class Cosines(Toy):
        __name__ = "cosines"

    cosines = Cosines()
    backend = aotkit.Backend(
        cosines, declines=lambda n: None if n.target in (aten.cos.default, aten.neg.default) else "no"
    )
    x, w = torch.randn(6, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    compiled = aotkit.compile(
        lambda x, w: F.dropout(F.gelu(x @ w).cos().neg().sin().exp(), 0.2), backend=[backend, "inductor"]
    )
    train(compiled, x, w)
    forward = compiled.graphs(x, w).regions["forward"]
    assert [r.backend for r in forward.regions].count("inductor") == 2
    assert all(r.failure is None for r in forward.regions)
    assert cosines.targets()[0] == [aten.cos.default, aten.neg.default]


def test_siblings_merge_where_asked(toy):
    def f(x, s):
        return x.sin().neg() * 2, x.cos().exp(), (s + 1).sin(), (s * 2).cos()

    x, s = torch.randn(4), torch.tensor(1.0)
    for horizontal, sizes in ((False, [2, 2, 2, 3]), (True, [2, 2, 5])):
        backend = aotkit.by_region(aotkit.Backend(toy, declines=declines), horizontal=horizontal)
        compiled = aotkit.compile(f, backend=backend)
        compiled(x, s)
        (forward,) = divided(compiled, x, s).values()
        assert sorted(map(len, names(forward))) == sizes  # one element is no input worth to share
        said = aotkit.Backend(toy, declines=declines, horizontal=horizontal)
        (forward,) = aotkit.extract(f, x, s, backend=said).regions.values()
        assert sorted(map(len, names(forward))) == sizes


def test_views_of_what_regions_read_are_theirs(toy):
    """Each of two regions takes them; outside, they are computed where something else reads them."""

    def f(x, w):
        a, b = x.view(4, 6).split(3, 1)
        y = (a.sin() + b).exp()
        return (y @ w).cos() + b, x.view(4, 6) @ x.view(6, 4)

    backend = aotkit.Backend(toy, declines=takes_all_but(aten.mm.default), horizontal=True)
    x, w = torch.randn(24), torch.randn(3, 3)
    compiled = aotkit.compile(f, backend=backend)
    torch.testing.assert_close(compiled(x, w), f(x, w))
    (forward,) = divided(compiled, x, w).values()
    first, second = forward.regions
    assert first.inputs == ("arg0_1",)
    assert set(second.inputs) == {"arg0_1", "mm"}
    assert not {n for n in forward.outside if n.startswith("split")}
    assert len([n for n in forward.outside if n.startswith("view")]) == 2


def test_padding_alone_is_worth_a_region(toy, pointwise):
    backend = aotkit.Backend(toy, declines=takes_all_but(aten.mm.default))
    compiled = aotkit.compile(lambda x: F.pad(x, (0, 3)) @ x.new_ones(8, 2), backend=backend)
    x = torch.randn(4, 5)
    torch.testing.assert_close(compiled(x), F.pad(x, (0, 3)) @ x.new_ones(8, 2))
    (forward,) = divided(compiled, x).values()
    assert "constant_pad_nd" in names(forward)[0]


@pytest.mark.parametrize("skipped", ["aten.exp", "aten.exp.default", aten.exp, aten.exp.default])
def test_skipped_operators_go_to_nobody(toy, skipped):
    backend = aotkit.by_region(aotkit.Backend(toy), skip_ops=[skipped], strict=True)
    x = torch.randn(3)
    compiled = aotkit.compile(lambda x: x.sin().cos().exp().neg().tanh(), backend=backend)
    compiled(x)
    assert toy.targets() == [[aten.sin.default, aten.cos.default], [aten.neg.default, aten.tanh.default]]
    (forward,) = divided(compiled, x).values()
    assert forward.outside == {"exp": (f"{str(skipped)!r} is in skip_ops",)}


def test_small_regions_are_left_out_unless_single_operations_are_wanted(toy, pointwise):
    x = torch.randn(3, 3)
    compiled = aotkit.compile(lambda x: (x.sin() @ x).cos(), backend=pointwise)
    compiled(x)
    (forward,) = divided(compiled, x).values()
    assert not toy.given
    assert forward.outside["sin"] == ("in a region of 1, and min_region_size is 2",)
    single = aotkit.compile(lambda x: (x.sin() @ x).cos(), backend=aotkit.by_region(pointwise, min_region_size=1))
    single(x)
    assert toy.targets() == [[aten.sin.default], [aten.cos.default]]


def test_a_broadcast_of_three_dimensions_is_worth_a_region(toy, pointwise):
    x, y = torch.randn(2, 3, 3), torch.randn(2, 1, 1)
    for other, size in ((y, 1), (x, 0)):
        toy.given.clear()
        aotkit.compile(lambda x, other: (x @ x) * other, backend=pointwise)(x, other)
        assert len(toy.given) == size


def test_tables_may_undo_each_others_rules(pointwise):
    def as_product(x):
        return aten.mul.Tensor(x, -1)

    def as_negation(x, factor):
        return aten.neg.default(x) if isinstance(factor, int) and factor == -1 else NotImplemented

    def whole(gm, example_inputs):
        return gm

    first = dataclasses.replace(pointwise, decompositions={aten.neg.default: as_product})
    other = aotkit.Backend(whole, decompositions={aten.mul.Tensor: as_negation})
    x = torch.randn(3, requires_grad=True)
    fast = aotkit.compile(lambda x: (-x).exp() * -1 * 2, backend=[first, other])
    assert fast.report(x).passed


def test_strict_names_what_nobody_takes(pointwise):
    other = aotkit.Backend(Toy(), declines=lambda node: "takes nothing")
    other.fw_compiler.__name__ = "other"
    f = aotkit.compile(lambda x: x.sin().cos() @ x, backend=aotkit.by_region(pointwise, other, strict=True))
    with pytest.raises(aotkit.CompileError) as e:
        f(torch.randn(3, 3))
    text = str(e.value)
    assert "no backend takes mm (mm) at test_regions.py:" in text
    assert "toy: takes pointwise operators only; other: takes nothing" in text


def fails(gm, example_inputs):
    raise NotImplementedError("no kernel for this")


@pytest.mark.parametrize("whole", [True, False])
def test_a_failed_region_runs_as_it_is_and_says_so(whole, caplog):
    def f(x):
        return x.sin().cos() if whole else x.sin().cos() @ x

    backend = aotkit.Backend(fails, declines=declines)
    x = torch.randn(3, 3, requires_grad=True)
    compiled = aotkit.compile(f, backend=backend)
    train(compiled, x)
    graphs = compiled.graphs(x)
    assert graphs.regions["forward"].regions[0].failure == "NotImplementedError: no kernel for this"
    assert "no kernel for this" in caplog.text
    assert "fails failed on sin, cos: NotImplementedError" in str(graphs)
    strict = aotkit.compile(f, backend=aotkit.by_region(backend, strict=True))
    if whole:
        with pytest.raises(aotkit.CompileError, match=r"failed on a region \(sin, cos\): NotImplementedError"):
            strict(x)
    else:
        with pytest.raises(aotkit.CompileError, match="no backend takes mm"):
            strict(x)


def without_cos(gm, example_inputs):
    """Finds out only from the graph that it does not take something, after it has changed the graph."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.cos.default):
        error = aotkit.CompileError("without_cos does not take this")
        error.operation, error.reason = node.name, "its cosine is not there"
        node.replace_all_uses_with(node.args[0])
        raise error
    return gm


@pytest.mark.parametrize("whole", [True, False])
def test_a_region_is_divided_again_without_what_its_compiler_names(whole, caplog):
    def f(x):
        y = x.sin().exp().cos().sin().exp()
        return y if whole else y @ x

    backend = aotkit.Backend(without_cos, declines=declines)
    x = torch.randn(3, 3, requires_grad=True)
    compiled = aotkit.compile(f, backend=backend)
    train(compiled, x)
    assert compiled.report(x).passed
    forward = compiled.graphs(x).regions["forward"]
    assert forward.outside["cos"] == ("its cosine is not there",)
    assert sorted(name for region in forward.regions for name in region.nodes) == ["exp", "exp_1", "sin", "sin_1"]
    assert all(region.failure is None for region in forward.regions)
    assert not caplog.text
    with pytest.raises(aotkit.CompileError, match=r"without_cos does not take this|no backend takes mm"):
        aotkit.compile(f, backend=aotkit.by_region(backend, strict=True))(x)


def test_layers_do_not_share_a_region_for_their_random_numbers(pointwise):
    def layers(x, w):
        for _ in range(3):
            x = F.dropout(x @ w, 0.5)
        return x

    f = aotkit.compile(layers, backend=pointwise, partition="min_cut")
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    f(x, w)
    regions = f.graphs(x, w).regions["forward"].regions
    # The positions that all masks are computed from are computed in each.
    masks = [[name for name in region.nodes if name.startswith("lt")] for region in regions]
    assert sorted(map(len, masks))[-4:] == [0, 1, 1, 1]


def fails_later(gm, example_inputs):
    def run(*inputs):
        raise NotImplementedError("no kernel for this")

    return run


@pytest.mark.parametrize("whole", [True, False])
def test_a_region_whose_first_run_fails_runs_as_it_is_and_says_so(whole, caplog):
    def f(x):
        return x.sin().cos() if whole else x.sin().cos() @ x

    backend = aotkit.Backend(fails_later, declines=declines)
    x = torch.randn(3, 3, requires_grad=True)
    compiled = aotkit.compile(f, backend=backend)
    for _ in range(2):
        train(compiled, x)
    assert compiled.graphs(x).regions["forward"].regions[0].failure == "NotImplementedError: no kernel for this"
    assert caplog.text.count("no kernel for this") == 2  # forward and backward
    if whole:
        strict = aotkit.compile(f, backend=aotkit.by_region(backend, strict=True))
        with pytest.raises(aotkit.CompileError, match="no kernel for this"):
            strict(x)


def test_a_region_that_returns_something_else_is_an_error():
    def drops_one(gm, example_inputs):
        return lambda *inputs: list(Interpreter(gm).run(*inputs))[:-1]

    f = aotkit.compile(lambda x: x.sin().cos() @ x, backend=aotkit.Backend(drops_one, declines=declines))
    with pytest.raises(aotkit.CompileError, match=r"failed on a region \(sin, cos\): .*returned 0 outputs"):
        f(torch.randn(3, 3))


def test_a_whole_graph_goes_to_its_compiler_as_it_is(toy, pointwise):
    x = torch.randn(3, requires_grad=True)
    compiled = aotkit.compile(lambda x: x.sin().cos(), backend=pointwise, partition="default")
    train(compiled, x)
    assert [n.name for n in toy.given[0].graph.find_nodes(op="placeholder")] == ["primals_1"]
    assert compiled.graphs(x).regions["forward"].outside == {}


def test_random_operators_keep_their_order(pointwise):
    """What is drawn outside of regions between two draws inside has to be drawn between them."""

    def takes_no_bernoulli(node):
        return "not this one" if "bernoulli" in str(node.target) else None

    def f(x):
        a = torch.rand_like(x) + 1
        b = torch.bernoulli(x.sigmoid().detach())
        return a * torch.rand_like(x) + b

    backend = aotkit.Backend(Toy(), declines=takes_no_bernoulli)
    x = torch.randn(20)
    compiled = aotkit.compile(f, backend=backend, random="torch")
    compiled(x)
    torch.manual_seed(3)
    want = f(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), want)


def test_what_is_written_to_is_read_before(toy):
    """Graphs may hold operators that write into what they are given: nothing moves across these."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(aten.sin.default, (x,))
    w = graph.call_function(aten.mul_.Tensor, (x, 2.0))
    b = graph.call_function(aten.cos.default, (x,))
    c = graph.call_function(aten.add.Tensor, (a, b))
    graph.output((c, w))
    gm = torch.fx.GraphModule({}, graph)
    for node in (x, a, w, b, c):
        node.meta["val"] = torch.empty(3)
    backend = aotkit.get_backend(aotkit.Backend(toy, declines=takes_all_but(aten.mul_.Tensor)))
    value = torch.randn(3)
    want = value.sin() + (value * 2).cos()
    torch.testing.assert_close(backend.fw_compiler(gm, [torch.empty(3)])([value])[0], want)
    assert toy.targets() == [[aten.cos.default, aten.add.Tensor]]


def test_values_are_freed_after_their_last_use():
    dead = []

    def compile_graph(gm, example_inputs):
        def run(inputs):
            dead.append([ref() is None for ref in seen])
            results = Interpreter(gm).run(*inputs)
            inputs.clear()
            seen.extend(map(weakref.ref, results))
            return results

        run._boxed_call = True
        return run

    def f(x):
        for _ in range(5):
            x = (x.sin().cos()) @ x.exp()
        return x

    compiled = aotkit.compile(f, backend=aotkit.Backend(compile_graph, declines=declines), check=False)
    seen = []
    compiled(torch.randn(3, 3))
    assert [len(found) for found in dead] == [0, 1, 2, 3, 4]
    assert all(all(found) for found in dead)


def test_open_sizes_cross_as_integers(toy, pointwise):
    def f(x):
        return ((x.sin() * x.shape[0]).cos() @ x.t()).exp() * x.shape[1] + x.shape[0]

    compiled = aotkit.compile(f, backend=pointwise, dynamic=True)
    for rows in (3, 5):
        train(compiled, torch.randn(rows, 4, requires_grad=True))
    assert toy.given


@pytest.mark.parametrize(
    ("backends", "options", "error", "words"),
    [
        ([], {}, ValueError, "at least one"),
        (["nop", "nop"], {}, ValueError, "once"),
        (["nop", "print"], {}, ValueError, "'nop' takes every operation, so none is left for 'print'"),
        (["nop", "nosuch"], {}, aotkit.UnknownNameError, "nosuch"),
        (["nop"], {"min_region_size": 0}, ValueError, "positive"),
        (["nop"], {"skip_ops": ["aten.gleu"]}, ValueError, "'aten.gleu', which is no operator"),
        (["nop"], {"skip_ops": "aten.gelu"}, TypeError, "list"),
    ],
)
def test_wrong_lists_and_options_are_errors_early(backends, options, error, words):
    with pytest.raises(error, match=words):
        aotkit.by_region(*backends, **options)
    if not options:
        with pytest.raises(error, match=words):
            aotkit.compile(lambda x: x, backend=backends)


def test_declines_must_give_a_reason():
    f = aotkit.compile(lambda x: x.sin(), backend=aotkit.Backend(Toy(), declines=lambda node: True))
    with pytest.raises(aotkit.CompileError, match="must return a reason or None, not True"):
        f(torch.randn(2))


def test_an_unavailable_backend_in_a_list_is_an_error():
    missing = aotkit.Backend(fails, declines=declines, unavailable=lambda: "it is not installed")
    with pytest.raises(aotkit.UnavailableError, match="'fails' cannot run here: it is not installed"):
        aotkit.compile(lambda x: x, backend=[missing, "nop"])


def test_decompositions_and_joint_passes_are_of_all():
    ran = []
    first = aotkit.Backend(
        Toy(), declines=declines, decompositions={aten.silu.default: lambda x: x * torch.sigmoid(x)},
        joint_pass=lambda joint, inputs: ran.append("first"),
    )  # fmt: skip
    second = aotkit.Backend(
        fails,
        decompositions=lambda: {aten.silu.default: fails, aten.tanh.default: lambda x: 2 * torch.sigmoid(2 * x) - 1},
        joint_pass=lambda joint, inputs: ran.append("second"),
        reuses_saved=True,
    )
    backend = aotkit.get_backend([first, second])
    assert not backend.reuses_saved
    x = torch.randn(4, requires_grad=True)
    compiled = aotkit.compile(lambda x: F.silu(x) + x.tanh(), backend=backend)
    train(compiled, x)
    targets = {n.target for n in compiled.graphs(x).forward.graph.nodes}
    assert ran[:2] == ["first", "second"]
    ran.clear()
    with torch.no_grad():
        compiled(x)
    assert ran == ["first", "second"]
    assert not targets & {aten.silu.default, aten.tanh.default}


PARTIAL = aotkit.Backend(Toy(), declines=declines)


@pytest.mark.parametrize(
    "case", [r for r in requirements("backend") if r.name.startswith("contract/")], ids=lambda r: r.name
)
def test_regions_keep_the_contract_of_a_graph_compiler(case):
    case.check(Subject("backend", PARTIAL, torch.device("cpu")))


@pytest.mark.sweep
class TestPartial(BackendConformance):
    """What aotkit asks of every backend holds for one that takes parts of graphs."""

    name: ClassVar = PARTIAL
