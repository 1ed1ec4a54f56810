"""A graph as data and back: the same graph, and nothing that data could smuggle in."""

import json
import math
import operator

import pytest
import torch
import torch._higher_order_ops.triton_kernel_wrap
from torch.fx import Graph, GraphModule, symbolic_trace
from torch.utils.checkpoint import CheckpointPolicy

import aotkit
from aotkit.passes import Region, Regions, description, graph_data, graph_of, storage_of, tensor_kind
from aotkit.torch_private.fake_tensors import fake_mode, like_meta, propagate
from aotkit.torch_private.fx import graph_module

aten = torch.ops.aten


def graph_with(target=aten.sin.default, args=(), kwargs=None, inputs=1):
    """A graph of one call, of its inputs and of these arguments."""
    graph = Graph()
    given = [graph.placeholder(f"x{i}") for i in range(inputs)]
    call = graph.call_function(target, (*given, *args), kwargs or {})
    graph.output((call,))
    return graph_module({}, graph)


def there_and_back(gm):
    data = graph_data(gm)
    assert data is not None
    return graph_of(json.loads(json.dumps(data)))


def call_of(gm):
    (node,) = [n for n in gm.graph.nodes if n.op == "call_function"]
    return node


@pytest.mark.parametrize(
    "argument",
    [
        None, True, 0, 1, -(2**70), 0.1, -0.0, math.inf, -math.inf, math.nan, 1 + 2j, complex(math.nan, -math.inf), "",
        "a 'text' \"with\"\n\\marks %1 $2 ä", torch.bfloat16, torch.device("cpu"), torch.device("cuda", 1),
        torch.strided, torch.channels_last, (), [], (1,), [1, [2, (3.5, None)]], slice(None, 2, None),
        {"a": [1, (2,)], "b": "c"}, {},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_come_back_as_they_were(argument):
    gm = graph_with(args=(argument,), kwargs={"name": argument})
    back = call_of(there_and_back(gm))
    assert repr(back.args) == repr(call_of(gm).args)
    assert repr(back.kwargs) == repr(call_of(gm).kwargs)
    assert type(back.args[1]) is type(call_of(gm).args[1])


def test_nodes_in_arguments_are_the_graphs_own():
    gm = graph_with(inputs=2)
    x, y = gm.graph.find_nodes(op="placeholder")
    call_of(gm).args = ((x, {"key": [y, x]}), slice(0, 1))
    back = there_and_back(gm)
    call = call_of(back)
    assert str(call.args) == str(call_of(gm).args)
    assert {node.graph for node in call.all_input_nodes} == {back.graph}


TARGETS = [aten.add.Tensor, torch.ops.prims.iota.default, operator.getitem, operator.mul, math.floor, max]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_what_torch_and_numbers_do_can_be_called(target):
    assert call_of(there_and_back(graph_with(target, inputs=2))).target is target


class CallMe:
    __name__ = "sin"

    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    "target",
    [
        eval, exec, getattr, print, open, operator.methodcaller, operator.attrgetter, torch.load, torch.sin,
        CallMe(), aten.from_file.default, aten.add, torch.ops.higher_order.triton_kernel_wrapper_functional,
        lambda x: x,
    ],
    ids=lambda target: getattr(target, "__name__", type(target).__name__),  # without addresses: workers compare them
)  # fmt: skip
def test_what_else_is_called_is_no_data(target):
    assert graph_data(graph_with(target)) is None


def test_what_is_no_data_is_none():
    assert graph_data(graph_with(args=(torch.Generator(),))) is None
    assert graph_data(symbolic_trace(torch.nn.Linear(2, 2))) is None
    own = torch.ones(3)
    assert graph_data(symbolic_trace(lambda x: x + own)) is None
    assert graph_data(symbolic_trace(lambda x: x.sin())) is None  # a method


def test_open_sizes_are_no_data():
    fast = aotkit.compile(lambda x: x.sin() * 2, backend="nop", check=False, dynamic=True, capture="aot")
    assert graph_data(fast.graphs(torch.ones(3, 2)).forward) is None


def test_small_constants_are_kept_exactly(device):
    values = [[0.1, -0.0, math.inf, math.nan], 7, [], [True, False], 1 + 2j]

    def with_constants(x):
        own = [torch.tensor(value, device=device) for value in values]
        return [x, *own, torch.tensor([0.1], dtype=torch.bfloat16)]

    gm = aotkit.compile(with_constants, backend="nop", check=False, capture="aot").graphs(torch.ones(2)).forward
    back = there_and_back(gm)
    assert description(back) == description(gm) is not None
    for found, want in zip(back(torch.ones(2)), gm(torch.ones(2)), strict=True):
        assert (found.dtype, found.shape, found.device) == (want.dtype, want.shape, want.device)
        assert torch.equal(found.flatten().view(torch.uint8), want.flatten().view(torch.uint8))


def constant_graph(value, target=aten.lift_fresh_copy.default):
    graph = Graph()
    graph.output((graph.call_function(target, (graph.get_attr("held"),)),))
    return GraphModule({"held": value}, graph)


@pytest.mark.parametrize(
    "gm",
    [
        constant_graph(torch.ones(300)),
        constant_graph(torch.ones(3, requires_grad=True)),
        constant_graph(torch.nn.Parameter(torch.ones(3))),
        constant_graph(torch.ones(3), aten.sin.default),
        constant_graph(torch.ones(3).to_sparse()),
        constant_graph(torch.ones(3, device="meta")),
    ],
    ids=("large", "with gradients", "parameter", "read itself", "sparse", "without values"),
)
def test_other_tensors_are_no_data(gm):
    assert graph_data(gm) is None
    assert description(gm) is None


def test_a_description_tells_the_values_of_constants():
    assert description(constant_graph(torch.tensor([1.0]))) == description(constant_graph(torch.tensor([1.0])))
    assert description(constant_graph(torch.tensor([1.0]))) != description(constant_graph(torch.tensor([2.0])))


def valued(values):
    """A graph whose nodes have these values, but for its last, which has none."""
    graph = Graph()
    for i, value in enumerate(values):
        graph.placeholder(f"x{i}").meta["val"] = value
    graph.output(())
    return GraphModule({}, graph)


def values_in(gm):
    return [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]


def test_values_keep_what_they_are_and_share():
    with fake_mode() as mode:
        base = torch.empty(4, 6, dtype=torch.complex64)
        with torch.no_grad():
            views = [base.t(), base[1:, ::2], base.conj(), base.imag, torch.empty(3, requires_grad=True)]
    on_gpu = like_meta(torch.empty(2, 3, device="meta"), torch.device("cuda", 0), mode)
    values = [base, *views, on_gpu, 3, None, (torch.Size([1]), [base, None])]
    found = values_in(there_and_back(valued(values)))
    assert [*map(tensor_kind, found)] == [*map(tensor_kind, values)]
    assert [(v.is_conj(), v.is_neg()) for v in found[:7]] == [(v.is_conj(), v.is_neg()) for v in values[:7]]
    assert [v.untyped_storage().nbytes() for v in found[:7]] == [v.untyped_storage().nbytes() for v in values[:7]]
    nodes = there_and_back(valued(values)).graph.find_nodes(op="placeholder")
    assert len({storage_of(node) for node in nodes[:5]}) == 1
    assert len({storage_of(node) for node in nodes[:7]}) == 3
    assert type(found[9]) is tuple
    modes = {v.fake_mode for v in found[:7]}
    assert len(modes) == 1
    assert mode not in modes


def test_real_values_are_no_data():
    assert graph_data(valued([torch.ones(2)])) is None


def test_loading_takes_no_notice_of_modes():
    with fake_mode() as mode:
        data = graph_data(valued([torch.empty(2)]))
    with fake_mode(), torch.inference_mode():
        (value,) = values_in(graph_of(data))
    assert value.fake_mode is not mode
    assert tensor_kind(value) == tensor_kind(value)


def test_notes_on_nodes_and_graphs_come_back():
    gm = graph_with()
    node = call_of(gm)
    stack = '  File "a.py", line 3, in f\n    y = x.sin()\n'
    modules = {"L['self']": ("", torch.nn.Linear), "inner": ("L['self'].inner", "Inner")}
    notes = {
        "seq_nr": 0, "partitioner_tag": "is_forward", "original_aten": aten.sin.default,
        "recompute": CheckpointPolicy.MUST_SAVE, "saved_because": "it is large", "recompute_seconds": 1e-7,
        "stack_trace": stack, "is_gradient_acc": True,
    }  # fmt: skip
    node.meta.update(notes, nn_module_stack=modules, from_node=object())
    divided = Regions(
        ("a", "b"), (Region("a", ("sin_default",), ("x0",), ("sin_default",), "broken"),), {"y": ("", "no")}
    )
    gm.meta.update(memory_limited=True, regions=divided)
    back = there_and_back(gm)
    named = {key: (path, getattr(cls, "__name__", cls)) for key, (path, cls) in modules.items()}
    assert call_of(back).meta == notes | {"nn_module_stack": named}
    assert back.meta == {"memory_limited": True, "regions": divided}


def test_graphs_in_a_graph_come_back():
    inner = symbolic_trace(lambda x: operator.mul(x, 2.0))
    gm = symbolic_trace(lambda x: x * 2)
    call = call_of(gm)
    gm.add_submodule("branch_0", inner)
    with gm.graph.inserting_before(call):
        branch = gm.graph.get_attr("branch_0")
        call.target, call.args = torch.ops.higher_order.cond, (call.args[0], branch, branch, call.args[0])
    assert description(there_and_back(gm)) == description(gm) is not None


def test_a_graph_runs_as_before_with_values_of_its_own():
    gm = symbolic_trace(lambda x, y: operator.add(operator.mul(x, y), 1.5))
    propagate(gm, [torch.ones(2, 3), torch.ones(3)])
    x, y = torch.randn(2, 3), torch.randn(3)
    assert torch.equal(there_and_back(gm)(x, y), gm(x, y))


def data():
    return json.loads(json.dumps(graph_data(graph_with(args=("a text",), kwargs={"name": 2}))))


def changed(change):
    found = data()
    change(found)
    return found


HOSTILE = "x = __import__('os').system('false')"


NAMES = (HOSTILE, "a b", "a\nb", "a.b", "", "1", "if", "x0", "print", "torch", "é", 3, None)
CALLED = (
    "os.system", "builtins.eval", "builtins.getattr", "posix.system", "operator.methodcaller", "torch.load", "aten.add",
    "aten.__class__.__init__", "aten.sin.Tensor", "aten.add._op", "aten.from_file.default", "aten..", "", "operator",
    "higher_order.triton_kernel_wrapper_functional", "higher_order.__init__", "os.path.join", HOSTILE,
)  # fmt: skip


def rename(row, name):
    return lambda data: data["nodes"][row].__setitem__(0, name)


def retarget(name):
    return lambda data: data["tables"]["texts"].__setitem__(data["nodes"][1][2], name)


@pytest.mark.parametrize(
    "change",
    [
        *(rename(1, name) for name in NAMES),
        *(retarget(name) for name in CALLED),
        lambda data: data["nodes"][1][3].__setitem__(1, {"dict": ["$2", 1, "$1", 2]}),  # names of arguments: texts
        lambda data: data["nodes"][1][3].__setitem__(1, {"dict": [1, 2]}),
        lambda data: data["nodes"][1].__setitem__(1, "call_method"),
        lambda data: data["nodes"][1].__setitem__(1, "g"),
        lambda data: data["nodes"][1][3].__setitem__(0, ["%1"]),  # itself
        lambda data: data["nodes"][1][3].__setitem__(0, ["%-1"]),
        lambda data: data["nodes"][1][3].__setitem__(0, ["%7"]),
        lambda data: data["nodes"][1][3].__setitem__(0, ["?"]),
        lambda data: data["nodes"][1][3].__setitem__(0, [""]),
        lambda data: data["nodes"][1][3].__setitem__(0, [{"class": ["$0"]}]),
        lambda data: data["nodes"][1][3].__setitem__(0, [{"description": ["dataclasses"]}]),
        lambda data: data["nodes"][1][3].__setitem__(0, [{"description": ["Any"]}]),
        lambda data: data["nodes"][1][3].__setitem__(0, ["dload"]),
        lambda data: data["nodes"][1][3].__setitem__(0, ["@nowhere"]),
        lambda data: data["nodes"][1][3].__setitem__(0, ["pnothing"]),
        lambda data: data["nodes"][1][3].__setitem__(0, ["t0.0"]),
        lambda data: data["nodes"].append(["more", "p", None, [[]]]),
        lambda data: data["nodes"].pop(),
        lambda data: data["nodes"].clear(),
        lambda data: data["held"].update({"forward": data["nodes"] and dict(data, held={})}),
        lambda data: data["held"].update({HOSTILE: dict(data, held={})}),
        lambda data: data["held"].update({"held": ["float32", "cpu", [2], "00"]}),
        lambda data: data["held"].update({"held": HOSTILE}),
        lambda data: data.pop("tables"),
        lambda data: data.pop("storages"),
        lambda data: data["storages"].append("many"),
    ],
)  # fmt: skip
def test_what_no_graph_writes_is_refused(change):
    found = changed(change)
    with pytest.raises(ValueError, match="not the data of a graph"):
        graph_of(found)


def test_texts_of_data_stay_texts_in_the_code():
    """Strings get into the code of a graph as Python writes them, and what is noted of nodes does not get there."""
    hostile = '\'"""\n\\\'); ' + HOSTILE + " #"
    gm = graph_with(aten.sum.default, args=(hostile, {hostile: hostile}))
    call_of(gm).meta.update(stack_trace=hostile, saved_because=hostile, partitioner_tag=hostile)
    back = there_and_back(gm)
    assert call_of(back).args[1] == hostile
    assert repr(hostile) in back.code
    assert "\n" + HOSTILE not in back.code
    assert (
        compile(back.code, "code", "exec").co_names
        == compile(graph_with(aten.sum.default).code, "code", "exec").co_names
    )
