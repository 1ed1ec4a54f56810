"""Random numbers that every backend shares: distributions, their independence, and the same ones everywhere."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import aotkit
from aotkit.benchmark.workloads import gpt2, padded_texts
from aotkit.capture.shared_random import SharedRandom
from aotkit.random.draws import Draws, hashed, key, new_seed

N = 2**16


def drawn(fn, seed=1):
    with SharedRandom(Draws(torch.tensor(seed))):
        return fn()


def assert_probable(z):
    """`z` is normal if all is well."""
    assert abs(z) < 5


def z_of_counts(counts, expected):
    statistic, freedom = ((counts - expected) ** 2 / expected).sum().item(), counts.numel() - 1
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def z_of_product(a, b):
    a, b = ((x.flatten().double() - x.double().mean()) / x.double().std() for x in (a, b))
    return (a @ b).item() / math.sqrt(a.numel())


# Quality.


def test_every_byte_of_a_word_is_uniform():
    (words,) = Draws(torch.tensor(5)).next((2**18,), torch.device("cpu"))
    for byte in range(4):
        counts = torch.bincount((words >> 8 * byte) & 255, minlength=256).double()
        assert_probable(z_of_counts(counts, 2**18 / 256))


def test_neighbours_are_independent():
    u = drawn(lambda: torch.rand(N))
    for lag in (1, 2, 3, 4, 8, 256, 1024):
        assert_probable(z_of_product(u[:-lag], u[lag:]))
    pairs = ((u[:-1] * 16).long() * 16 + (u[1:] * 16).long()).bincount(minlength=256).double()
    assert_probable(z_of_counts(pairs, (N - 1) / 256))


def test_operators_of_one_call_are_independent_and_repeat_nothing():
    draws = drawn(lambda: [torch.randint(2**62, (1000,)) for _ in range(20)])
    assert torch.cat(draws).unique().numel() == 20_000
    a, b = drawn(lambda: (torch.rand(N), torch.rand(N)))
    assert_probable(z_of_product(a, b))


def test_lanes_of_one_operator_are_independent():
    lanes = Draws(torch.tensor(3)).next((N,), torch.device("cpu"), 3)
    for i in range(3):
        assert_probable(z_of_product(lanes[i], lanes[i - 1]))


@pytest.mark.parametrize("bit", [0, 1, 17, 31, 32, 62])
def test_seeds_that_differ_in_one_bit_are_independent(bit):
    a, b = (drawn(lambda: torch.rand(N), seed) for seed in (9, 9 ^ 1 << bit))
    assert_probable(z_of_product(a, b))


def test_birthday_spacings_and_collisions():
    """Among 2^20 words, 128 come again, and of 256 years with 4096 birthdays each has 4 repeated spacings."""
    (words,) = Draws(torch.tensor(4)).next((2**20,), torch.device("cpu"))
    assert_probable((2**20 - words.unique().numel() - 128) / 128**0.5)
    spacings = words.long().view(-1, 4096).sort(1).values.diff(dim=1).sort(1).values
    repeated = (spacings.diff(dim=1) == 0).sum().item()
    assert_probable((repeated - 1024) / 32)


def test_elements_beyond_32_bits_have_words_of_their_own():
    keys = key(torch.tensor(7), 0)
    near = torch.arange(4096)
    words = [hashed(near + start, *keys) for start in (0, 2**31 - 2048, 2**32, 2**33, 2**40)]
    assert torch.equal(words[0], hashed(near.int(), *keys))
    for i in range(len(words)):
        assert_probable(z_of_product(words[i], words[i - 1]))


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.999])
def test_probability_of_dropout(p):
    mask = drawn(lambda: F.dropout(torch.ones(2**18), p)) == 0
    assert_probable((mask.double().mean().item() - p) / math.sqrt(p * (1 - p) / 2**18))


# Distribution functions of what is drawn.
DISTRIBUTIONS = {
    "rand": (lambda: torch.rand(N), lambda x: x),
    "rand64": (lambda: torch.rand(N, dtype=torch.float64), lambda x: x),
    "uniform_": (lambda: torch.empty(N).uniform_(-1, 3), lambda x: (x + 1) / 4),
    "randn": (lambda: torch.randn(N), lambda x: torch.special.ndtr(x)),
    "randn64": (lambda: torch.randn(N, dtype=torch.float64), lambda x: torch.special.ndtr(x)),
    "normal": (lambda: torch.normal(torch.ones(N), 2.0), lambda x: torch.special.ndtr((x - 1) / 2)),
    "exponential_": (lambda: torch.empty(N).exponential_(2.0), lambda x: 1 - (-2 * x).exp()),
    "log_normal_": (lambda: torch.empty(N).log_normal_(0, 1), lambda x: torch.special.ndtr(x.log())),
    "complex": (lambda: torch.randn(N, dtype=torch.complex64).imag, lambda x: torch.special.ndtr(x * 2**0.5)),
    "rrelu": (lambda: -F.rrelu(-torch.ones(N), 0.1, 0.3, training=True), lambda x: (x - 0.1) / 0.2),
    "randint": (lambda: torch.randint(-(2**61), 2**62, (N,)), lambda x: (x + 2.0**61) / (2.0**61 + 2.0**62)),
    "randint in 2^63": (lambda: torch.randint(-(2**62), 2**62, (N,)), lambda x: x / 2**63 + 0.5),
    "random_": (lambda: torch.empty(N, dtype=torch.int64).random_(), lambda x: x / 2**63),
    "randint_like": (lambda: torch.randint_like(torch.ones(N), 10**6), lambda x: x / 1e6),
}


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_multinomial(replacement, dtype):
    weights = torch.tensor([0, 1, 0, 3, 4, 8, 0], dtype=dtype)
    found = drawn(lambda: torch.multinomial(weights.expand(N, 7), 2, replacement=replacement))
    possible = weights.nonzero().flatten()
    shares = weights[possible].double() / 16
    assert_probable(z_of_counts(found[:, 0].bincount(minlength=7)[possible].double(), N * shares))
    assert bool(torch.isin(found, possible).all())
    if replacement:
        pairs = (found[:, 0] * 7 + found[:, 1]).bincount(minlength=49)[(possible[:, None] * 7 + possible).flatten()]
        assert_probable(z_of_counts(pairs.double(), N * (shares[:, None] * shares).flatten()))
    else:
        assert not bool((found[:, 0] == found[:, 1]).any())


@pytest.mark.parametrize("weights", [[0.0] * 5, [1, torch.inf, 1, 1, 1], [0, 1e-45, 0, 0, 0], [torch.nan] * 5], ids=str)
@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_stays_in_range(weights, replacement):
    """Eager refuses most of these weights, having looked at them."""
    found = drawn(lambda: torch.multinomial(torch.tensor(weights), 4, replacement))
    assert 0 <= found.min() <= found.max() < 5


@pytest.mark.parametrize("count", [0, 6])
def test_multinomial_refuses_what_eager_refuses(count):
    for call in (torch.multinomial, aotkit.compile(torch.multinomial, backend="nop")):
        with pytest.raises(RuntimeError, match="cannot sample"):
            call(torch.ones(5), count)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name):
    """Kolmogorov and Smirnov's test."""
    draw, cdf = DISTRIBUTIONS[name]
    found = cdf(drawn(draw).double()).sort().values
    steps = torch.arange(N + 1, dtype=torch.float64) / N
    distance = max((steps[1:] - found).max().item(), (found - steps[:-1]).max().item())
    assert distance * math.sqrt(N) < 2.5  # probability 1e-5
    assert distance > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rand_is_below_one_in_every_type(dtype):
    u = drawn(lambda: torch.rand(2**18, dtype=dtype))
    assert u.dtype is dtype
    assert 0 <= u.min() < 0.01
    assert 0.99 < u.max() < 1
    assert_probable((u.double().mean().item() - u.double().unique().mean().item()) / math.sqrt(1 / 12 / 2**18))


@pytest.mark.sweep
def test_randperm_is_a_uniform_permutation():
    permutations = torch.stack(drawn(lambda: [torch.randperm(4) for _ in range(5000)]))
    assert torch.equal(permutations.sort(1).values, torch.arange(4).expand(5000, 4))
    codes = (permutations * torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)[1]
    assert_probable(z_of_counts(codes.double(), 5000 / 24))


def test_random_fills_the_range_of_integers():
    for dtype, largest in ((torch.uint8, 255), (torch.int8, 127)):
        values = drawn(lambda dtype=dtype: torch.empty(N, dtype=dtype).random_())
        counts = values.long().bincount(minlength=largest + 1).double()
        assert_probable(z_of_counts(counts, N / (largest + 1)))


# The same numbers everywhere.

INPUT = torch.linspace(-2, 2, 24).view(4, 6)
CALLS = {
    "dropout": lambda x: F.dropout(x, 0.4) * F.dropout(x, 0.5),
    "dropout in place": lambda x: F.dropout(x * 1, 0.4, inplace=True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "dropout2d": lambda x: F.dropout2d(x.view(1, 4, 6, 1), 0.5),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x.view(1, 4, 6, 1), 0.5, training=True),
    "rand": lambda x: x * torch.rand(4, 6) + torch.rand_like(x),
    "randn": lambda x: x * torch.randn(4, 6) + torch.randn_like(x.t()).t(),
    "rand in float64": lambda x: x * torch.rand(4, 6, dtype=torch.float64),
    "multinomial": lambda x: x[:, :3] * (x.sigmoid().multinomial(3) + x.sigmoid().multinomial(3, True)),
    "bernoulli": lambda x: x * torch.bernoulli(x.sigmoid()) + torch.empty_like(x).bernoulli_(0.3),
    "uniform_": lambda x: x * torch.empty_like(x).uniform_(-1, 2),
    "normal": lambda x: x * torch.empty_like(x).normal_(1, 2) + torch.normal(x, x.abs()),
    "exponential_": lambda x: x * torch.empty_like(x).exponential_(2),
    "log_normal_": lambda x: x * torch.empty_like(x).log_normal_(0, 0.5),
    "randint": lambda x: x * torch.randint(-3, 9, (6,)) + torch.randint_like(x, 5) + torch.randint_like(x, 1, 5),
    "random_": lambda x: x * torch.empty_like(x).random_(7) + torch.empty(4, 6, dtype=torch.int64).random_(-4, 5),
    "randperm": lambda x: x[torch.randperm(4)],
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
    "complex": lambda x: x * torch.randn(4, 6, dtype=torch.complex64),
    "scalar": lambda x: x * torch.rand(()) + torch.rand(0, 3).sum(),
}


def same_numbers(fn, *inputs, seed=5, **options):
    """Call it compiled, and in eager with the seed that this call draws; demand equal results and gradients."""
    compiled = aotkit.compile(fn, **options)
    runs = []
    for call in (compiled, compiled, lambda *args: drawn(lambda: fn(*args), new_seed().item())):
        torch.manual_seed(seed)
        copies = [x.clone().requires_grad_() for x in inputs]
        result = call(*copies)
        gradients = torch.autograd.grad(result.abs().sum(), copies)
        runs.append((result, *gradients, torch.get_rng_state()))
    for run in runs[:-1]:
        for got, want in zip(run, runs[-1], strict=True):
            torch.testing.assert_close(got, want)
    return compiled


@pytest.mark.thinned
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("check", [True, False])
def test_compiled_draws_what_eager_draws_from_the_seed(name, check):
    compiled = same_numbers(CALLS[name], INPUT, backend="nop", check=check)
    graphs = compiled.graphs(INPUT.clone().requires_grad_())
    assert graphs.input_names == ("x", "seed")
    for gm in (graphs.forward, graphs.backward):
        assert not [n for n in gm.graph.nodes if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())]


def block(x, w):
    hidden = F.dropout(F.gelu(x @ w), 0.3) + torch.rand_like(x)
    return F.dropout(hidden.softmax(-1), 0.1) @ w


def pairs():
    """But for `nop`, a backend meets one partitioner; a sweep makes it meet the others."""
    for b, backend in enumerate(aotkit.list_backends()):
        for p, partitioner in enumerate(partitioners := aotkit.list_partitioners()):
            marks = [] if backend == "nop" or b % len(partitioners) == p else pytest.mark.sweep
            yield pytest.param(backend, partitioner, marks=marks)


@pytest.mark.thinned
@pytest.mark.parametrize(("backend", "partitioner"), list(pairs()), indirect=True)
def test_every_backend_and_partitioner_draws_the_same(backend, partitioner):
    if backend == "nnc":
        pytest.skip("nnc fuses CPU code only in PyTorch builds with LLVM")
    same_numbers(block, INPUT, torch.eye(6), backend=backend, partition=partitioner, check=False)


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.dropout = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        x = x + self.dropout(self.out((self.dropout(weights) @ v).transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


LAYERS = [*(("nop", p) for p in aotkit.list_partitioners()), ("inductor", "nx_min_cut")]
SLOW_LAYERS = [("inductor", p) for p in aotkit.list_partitioners() if p != "nx_min_cut"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("backend", "partitioner"), [*LAYERS, *(pytest.param(*case, marks=pytest.mark.sweep) for case in SLOW_LAYERS)]
)
def test_a_layer_of_gpt2_in_training_equals_eager_value_for_value(backend, partitioner):
    report = aotkit.check(Block(), torch.randn(2, 5, 16, requires_grad=True), backend=backend, partition=partitioner)
    assert report.passed
    assert len(report.comparisons) > 10


# Said inside of TorchDynamo, which hides it, of what goes from one graph to the next.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.sweep
def test_the_gpt2_of_the_demo_in_training_equals_eager_value_for_value(backend, partitioner):
    pytest.importorskip("transformers")
    if backend == "nnc":
        pytest.skip("nnc fuses CPU code only in PyTorch builds with LLVM")
    model = gpt2(layers=2, width=128).train()
    assert sum(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()) == 7
    report = aotkit.check(model, **padded_texts(), backend=backend, partition=partitioner)
    assert report.passed
    assert report.repeated
    assert len(report.comparisons) > 20


def test_another_mask_is_found_by_the_check():
    def other_seed(gm, example_inputs):
        return lambda *inputs: gm(*inputs[:-1], inputs[-1] + 1)

    with pytest.raises(aotkit.MismatchError, match=r"output 0 +differs"):
        aotkit.compile(F.dropout, backend=aotkit.Backend(other_seed))(torch.ones(100))


@pytest.mark.thinned
@pytest.mark.parametrize("check", [True, False])
def test_a_checkpoint_draws_the_same_again(check, partitioner):
    """In the backward pass; two draws come before the checkpoint, and one after it."""
    layers = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.GELU(), nn.Dropout(0.2))

    def fn(x):
        before = F.dropout(x) + torch.rand_like(x)
        return F.dropout(checkpoint(layers, before, use_reentrant=False)).square()

    same_numbers(fn, INPUT, backend="nop", partition=partitioner, check=check)


@pytest.mark.parametrize("check", [True, False])
def test_operators_of_torchs_stream_in_between(check):
    """Poisson numbers stay torch's; the seed comes before them, whichever is drawn first."""

    def fn(x):
        return x * torch.poisson(torch.ones(4, 6)) + F.dropout(x)

    same_numbers(fn, INPUT, backend="nop", check=check)


def test_open_sizes():
    compiled = aotkit.compile(lambda x: F.dropout(x, 0.5) * torch.rand(x.shape[0], 1), backend="nop", dynamic=True)
    for n in (5, 7, 9):
        torch.manual_seed(2)
        seed = new_seed().item()
        torch.manual_seed(2)
        x = torch.ones(n, 4)
        torch.testing.assert_close(compiled(x), drawn(lambda x=x: F.dropout(x, 0.5) * torch.rand(x.shape[0], 1), seed))


# Seeds.


def test_seed_and_state_of_torch_govern():
    compiled, x = aotkit.compile(F.dropout, backend="nop"), torch.ones(100)
    torch.manual_seed(3)
    first, state, second = compiled(x), torch.get_rng_state(), compiled(x)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(compiled(x), second)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), first)


@pytest.mark.parametrize("fn", [lambda x: x * 2, lambda x: F.dropout(x, training=False), lambda x: F.dropout(x, 1.0)])
@pytest.mark.parametrize("check", [True, False])
def test_what_draws_nothing_has_no_seed(fn, check):
    x, state = torch.ones(3), torch.get_rng_state()
    compiled = aotkit.compile(fn, backend="nop", check=check)
    assert torch.equal(compiled(x), fn(x))
    assert compiled.graphs(x).input_names == ("x",)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("random", ["shared", "torch"])
def test_a_handler_of_the_functions_does_not_hide_that_it_draws(random):
    def fn(x):
        try:
            return F.dropout(x)
        except Exception:
            return x

    compiled = aotkit.compile(fn, backend="nop", random=random)
    assert not torch.equal(compiled(torch.ones(100)), torch.ones(100))


COMPLEX = pytest.param(torch.complex64, marks=pytest.mark.skipif(torch.__version__ < "2.15", reason="eager refuses"))


@pytest.mark.parametrize("dtype", [torch.float32, COMPLEX])
def test_torchs_own_stream(dtype):
    compiled, x = aotkit.compile(F.dropout, backend="nop", random="torch"), torch.ones(100, dtype=dtype)
    compiled(x)
    torch.manual_seed(3)
    want = F.dropout(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), want)


def test_an_unknown_stream():
    with pytest.raises(ValueError, match="random must be one of 'shared', 'torch', not 'mine'"):
        aotkit.compile(F.dropout, random="mine")


WRONG = {
    "p": lambda x: F.dropout(x, 1.5),
    "std": lambda x: torch.empty_like(x).normal_(0, -1),
    "range": lambda x: torch.empty_like(x).uniform_(3, 2),
    "rate": lambda x: torch.empty_like(x).exponential_(-1),
    "empty range": lambda x: torch.randint(3, 3, (4,)),
    "integers": lambda x: torch.empty(3, dtype=torch.int64).normal_(),
    "out of range": lambda x: torch.empty(3, dtype=torch.uint8).random_(300),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_as_in_eager(name):
    with pytest.raises((RuntimeError, ValueError, NotImplementedError)) as eager:
        WRONG[name](INPUT)
    with pytest.raises(eager.type):
        aotkit.compile(WRONG[name], backend="nop")(INPUT)


def test_generators_of_ones_own_are_torchs():
    def fn(x):
        return x * torch.empty(3).uniform_(generator=generator)

    generator = torch.Generator().manual_seed(4)
    with SharedRandom(Draws(None)):  # needs no seed
        got = fn(torch.ones(3))
    generator.manual_seed(4)
    assert torch.equal(got, fn(torch.ones(3)))
