"""Random words in graphs: one operator for compilers that know it, arithmetic for the others, and the same words."""

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import min_cut_rematerialization_partition

import aotkit
from aotkit.backends import nnc, nvfuser
from aotkit.capture.shared_random import SharedRandom
from aotkit.inspection import saved_bytes
from aotkit.passes import description, has_torch_operators, keeps_order
from aotkit.random import WORDS, Draws, draws, kept, new_seed
from tests.random.test_random import INPUT, same_numbers

aten = torch.ops.aten
OF_SEEDS = {
    0: ([1639631247, 443306782, -450154410], [1159892901, -239561457, -330105597], [-568951590, -727756165, 304141331]),
    -3: (
        [1105639701, -1919880532, 1205321518],
        [-1947323465, 562160221, -384701345],
        [1786208584, -21487087, -326569768],
    ),
    2**62 + 12345: (
        [420715873, -118812784, -695083294],
        [-897109416, -892771625, 1140949413],
        [1574468168, -687690131, 1929317961],
    ),
}


@pytest.mark.parametrize("seed", OF_SEEDS)
def test_the_words_of_a_seed_stay_what_they_are(seed):
    """Two lanes of one draw, then another draw."""
    found = Draws(torch.tensor(seed))
    words = [*found.next((1, 3), torch.device("cpu"), 2), *found.next((3,), torch.device("cpu"))]
    assert [w.flatten().tolist() for w in words] == [*OF_SEEDS[seed]]


def targets(gm):
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def graphs_of(fn, *inputs, **options):
    return aotkit.extract(fn, *(x.clone().requires_grad_() for x in inputs), **options)


def masked(x):
    return F.dropout(F.dropout(x, 0.3).sin(), 0.2)


def test_a_draw_is_one_node_for_inductor():
    of_joint = targets(graphs_of(masked, INPUT, backend="inductor").joint)
    assert of_joint.count(WORDS) == 2
    assert not {aten.bitwise_xor.Tensor, aten.arange.start_step} & {*of_joint}
    assert len(of_joint) < 20


def interpreted(gm, example_inputs):
    """A compiler of somebody's own."""
    return gm


def regions_taken(node):
    return "does not know it" if node.target is WORDS else None


@pytest.mark.parametrize(
    "backend",
    [
        "nop",
        "dynamo:aot_eager",
        interpreted,
        aotkit.Backend(interpreted, decompositions=nvfuser.decompositions),
        aotkit.Backend(interpreted, decompositions=nnc.backend.decompositions),
        [aotkit.Backend(interpreted, declines=regions_taken), "inductor"],
    ],
    ids=["nop", "dynamo", "function", "nvfuser", "nnc", "list"],
)
def test_compilers_that_do_not_know_it_get_arithmetic(backend):
    """Of a list, the first decides."""
    of_joint = targets(graphs_of(masked, INPUT, backend=backend).joint)
    assert WORDS not in of_joint
    assert sum("xor" in str(target) for target in of_joint) > 10


def test_a_backend_says_that_it_takes_it():
    backend = aotkit.Backend(interpreted, decompositions={WORDS: kept})
    assert WORDS in targets(graphs_of(masked, INPUT, backend=backend).joint)
    assert WORDS in targets(graphs_of(masked, INPUT, backend=[backend]).joint)
    same_numbers(masked, INPUT, backend=backend)


def gelu(x, w):
    return F.dropout(F.gelu(x @ w), 0.1)


def softmax(x, w):
    return F.dropout((x @ w).softmax(-1), 0.2) @ w


def attention(x, w):
    return F.scaled_dot_product_attention((x @ w)[None], x[None], x[None], dropout_p=0.3)


# Of inputs of 64 x 64, before words were an operator; less the keys, of 8 bytes each.
SAVED = {
    gelu: {"default": 20480, "min_cut": 16384, "nx_min_cut": 16384},
    softmax: {"default": 36864, "min_cut": 33280, "nx_min_cut": 16384},
    attention: {"default": 69632, "min_cut": 66112, "nx_min_cut": 32768},
}


@pytest.mark.thinned
@pytest.mark.parametrize("fn", SAVED)
def test_no_more_is_saved_than_with_arithmetic(fn, partitioner):
    graphs = graphs_of(fn, *2 * [torch.randn(64, 64)], backend="inductor", partition=partitioner)
    assert saved_bytes(graphs) <= SAVED[fn][partitioner]


def test_torchs_own_min_cut_computes_words_again():
    partition = min_cut_rematerialization_partition
    graphs = graphs_of(gelu, *2 * [torch.randn(64, 64)], backend="inductor", partition=partition)
    assert saved_bytes(graphs) <= SAVED[gelu]["min_cut"]
    assert WORDS in targets(graphs.backward)


def lanes(x):
    """One draw of two lanes, one of one, and one of three."""
    return F.dropout(x * torch.randn_like(x), 0.4) + torch.randn(4, 6, dtype=torch.float64)


@pytest.mark.parametrize("fn", [lanes, lambda x: x * torch.rand(()) + torch.rand(0, 3).sum()], ids=["lanes", "small"])
def test_inductor_draws_what_eager_draws(fn):
    same_numbers(fn, INPUT, backend="inductor", check=False)
    torch.manual_seed(3)
    with torch.no_grad():
        got = aotkit.compile(fn, backend="inductor", check=False)(INPUT)
        torch.manual_seed(3)
        seed = new_seed()
        with SharedRandom(Draws(seed)):
            torch.testing.assert_close(got, fn(INPUT), rtol=1e-6, atol=1e-6)  # logarithms of float32, in float64


@pytest.mark.sweep
def test_elements_beyond_32_bits_by_inductor(monkeypatch):
    """What many elements need, for few of them: indices in 64 bits."""
    monkeypatch.setattr(draws, "LARGEST_INT32", 10)
    with torch._inductor.config.patch(force_disable_caches=True):  # a graph of so few elements is in 32 bits there
        same_numbers(masked, torch.linspace(-1, 1, 35).view(5, 7), backend="inductor", check=False)


@pytest.mark.parametrize("fn", [masked, lambda x: F.dropout(x.softmax(-1), 0.5)], ids=["flat", "rows"])
def test_open_sizes_by_inductor(fn, device):
    """In rows, the number of an element is made of sizes, which have 64 bits in a kernel for a GPU."""
    compiled = aotkit.compile(fn, backend="inductor", dynamic=True, check=False)
    for n in (5, 7, 9):
        x = torch.linspace(-1, 1, n * (n + 3), device=device).view(n, n + 3)
        torch.manual_seed(2)
        got = compiled(x)
        torch.manual_seed(2)
        with SharedRandom(Draws(new_seed())):
            torch.testing.assert_close(got, fn(x))
    assert len(compiled.explain(x).all_graphs) == 1


def test_equal_layers_have_equal_kernels():
    """On a CPU, where each kernel that differs takes a C++ compiler seconds; on a GPU a key is in its kernels."""

    def layers(x, w):
        for _ in range(4):
            x = F.dropout(F.gelu(x @ w), 0.1)
        return x

    x, w = torch.randn(16, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    compiled = aotkit.compile(layers, backend="inductor", check=False)
    compiled(x, w)
    kernels = compiled.explain(x, w).kernels
    names = [k.kernel.name for k in kernels.of("forward") if k.kernel.language == "C++"]
    assert len(names) == 4
    assert len({*names}) == 2  # the first also makes all keys


def test_a_graph_with_words_is_known_as_torchs_own_are():
    """Its verdict can be kept, other operators may change places with it, and the check may run it in threads."""
    graphs = graphs_of(masked, INPUT, backend="inductor")
    assert description(graphs.forward) is not None
    assert has_torch_operators(graphs.forward)
    assert not any(keeps_order(node) for node in graphs.forward.graph.nodes if node.op == "call_function")
