"""`torch.utils.checkpoint` inside of compiled functions: its marks decide, however a function is captured."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import aotkit
from aotkit.inspection import checkpointed, saved_bytes, saved_values
from aotkit.launches import most_allocated

ROWS, WIDTH = 256, 16
CPU = torch.device("cpu")
PRODUCTS = torch.ops.aten.mm.default, torch.ops.aten.addmm.default


def products_are_saved(context, operator, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if operator in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


KINDS = {
    "none": None,
    "non-reentrant": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "selective": {
        "use_reentrant": False,
        "context_fn": functools.partial(create_selective_checkpoint_contexts, products_are_saved),
    },
}
CAPTURED = [
    (kind, capture) for kind in ("non-reentrant", "selective") for capture in ("auto", "aot", "dynamo")
] + [("reentrant", "auto"), ("reentrant", "dynamo")]  # fmt: skip
FAST = [("non-reentrant", "auto"), ("selective", "auto"), ("reentrant", "auto")]
slow = pytest.mark.sweep


class Block(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.rate = rate

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(x))), self.rate)


class Net(nn.Module):
    def __init__(self, kind, rate=0.1, blocks=3):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.kind = nn.ModuleList(Block(rate) for _ in range(blocks)), KINDS[kind]

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.kind is None else checkpoint(block, x, **self.kind)
        return x.cos().mean()


def inputs():
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()


def step(function, x):
    torch.manual_seed(2)
    loss = function(x)
    loss.backward()
    return loss.detach(), x.grad


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


# Said by TorchDynamo of a policy, and by torch of reentrant checkpoints in the check's first run without gradients.
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")


@pytest.mark.parametrize(
    ("kind", "capture", "random"),
    [
        pytest.param(*case, random, marks=[] if random == "shared" and case in FAST else slow)
        for case in CAPTURED
        for random in ("shared", "torch")
    ],
)
def test_gradients_are_eagers_with_dropout(kind, capture, random):
    """The check compares them for shared draws; torch's are eager's own."""
    net = Net(kind)
    compiled = aotkit.compile(net, backend="nop", capture=capture, random=random, strict=True)
    found = step(compiled, inputs())
    if random == "torch":
        torch.testing.assert_close(found, step(net, inputs()))


@pytest.mark.parametrize(
    ("kind", "capture", "random"),
    [
        ("non-reentrant", "aot", "shared"), ("selective", "aot", "torch"),
        *(pytest.param(*case, random, marks=slow) for case in CAPTURED for random in ("shared", "torch")),
    ],
)  # fmt: skip
def test_the_mask_of_dropout_is_the_same_again(kind, capture, random):
    compiled = aotkit.compile(
        lambda x: checkpoint(lambda x: F.dropout(x.exp(), 0.5), x, **KINDS[kind]),
        backend="nop", capture=capture, random=random, check=False,
    )  # fmt: skip
    x = inputs()
    found = compiled(x)
    found.sum().backward()
    assert 0.4 < (found == 0).float().mean() < 0.6
    torch.testing.assert_close(x.grad, found.detach())  # exp and a mask are their own derivatives


@pytest.mark.parametrize(
    "partition", ["min_cut", pytest.param("default", marks=slow), pytest.param("nx_min_cut", marks=slow)]
)
@pytest.mark.parametrize("kind", ["non-reentrant", "selective"])
def test_marks_save_as_much_however_a_function_is_captured(kind, partition):
    saved, marked = {}, {}
    for capture in ("aot", "dynamo"):
        compiled = aotkit.compile(Net(kind), backend="nop", capture=capture, partition=partition)
        graphs = compiled.graphs(inputs())
        saved[capture], marked[capture] = saved_bytes(graphs), len(checkpointed(graphs))
    assert len({*saved.values()}) == len({*marked.values()}) == 1
    boundary = 4 * ROWS * WIDTH
    if kind == "non-reentrant":
        assert saved["aot"] <= 3 * boundary  # what eager has: the inputs of three blocks, or the result of the last
    else:
        assert saved["aot"] == pytest.approx(3 * 5 * boundary, rel=0.25)  # and the results of two products in each
    assert marked["aot"] >= 3


def test_a_policy_saves_what_it_says():
    graphs = aotkit.compile(Net("selective", rate=0.0), backend="nop", capture="aot").graphs(inputs())
    saved = [value for value in saved_values(graphs) if value.kind == "activation"]
    assert sum(value.operator == "addmm" for value in saved) >= 3
    assert {value.operator for value in saved} <= {"addmm", "add"}


@pytest.mark.parametrize(
    ("partition", "capture"),
    [("nx_min_cut", "aot"), *(pytest.param("default", capture, marks=slow) for capture in ("aot", "dynamo"))],
)
def test_the_peak_is_not_above_eagers(partition, capture):
    net = Net("non-reentrant", rate=0.0, blocks=6)
    compiled = aotkit.compile(net, backend="nop", capture=capture, partition=partition, check=False)
    peaks = []
    for function in (net, compiled):
        x = inputs()
        for _ in range(2):  # gradients are there before
            step(function, x)
        peaks.append(most_allocated(functools.partial(step, function, x), CPU))
    eager, ours = peaks
    assert ours <= eager
    assert eager < most_allocated(functools.partial(step, Net("none", rate=0.0, blocks=6), inputs()), CPU) / 2


def test_nothing_after_a_checkpoint_is_marked():
    def function(x, w):
        y = checkpoint(lambda x: (x @ w).exp().sin(), x, use_reentrant=False)
        return (y @ w).exp().sin()

    given = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    graphs = aotkit.compile(function, backend="nop", capture="aot", partition="default").graphs(*given)
    assert [node.target.overloadpacket.__name__ for node in checkpointed(graphs)] == ["mm", "exp", "sin"]


def test_a_checkpoint_in_a_checkpoint():
    def inner(x):
        return checkpoint(lambda x: x.exp().sin(), x.cos(), use_reentrant=False).tan()

    def function(x):
        return checkpoint(inner, x, use_reentrant=False).sinh()

    report = aotkit.check(function, inputs(), backend="nop", capture="aot")
    assert report.passed
    graphs = aotkit.compile(function, backend="nop", capture="aot", partition="default").graphs(inputs())
    assert {value.operator for value in saved_values(graphs) if value.kind == "activation"} <= {"tan"}


def test_explain_tells_of_marks_and_of_what_there_is_instead():
    compiled = aotkit.compile(Net("non-reentrant"), backend="nop")
    compiled(inputs()).backward()
    graphs = compiled.graphs(inputs())
    said = f"{len(checkpointed(graphs))} operations for torch.utils.checkpoint: without its marks, partition nx_min_cut"
    assert said in compiled.explain(inputs()).way
    assert said in str(graphs).replace("\n", " ")
    plain = aotkit.compile(Net("none"), backend="nop")
    plain(inputs()).backward()
    assert "checkpoint" not in plain.explain(inputs()).way


def test_eager_checkpoints_are_torchs_own_after_all():
    """What is traced is marked, in this thread and for that time only."""
    net = Net("non-reentrant", rate=0.0)
    aotkit.compile(net, backend="nop", capture="aot")(inputs()).backward()
    ran = []
    net.blocks[0].register_forward_pre_hook(lambda *_: ran.append(1))
    net(inputs()).backward()
    assert len(ran) == 2
