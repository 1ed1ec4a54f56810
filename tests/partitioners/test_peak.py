"""`nx_min_cut.peak`: a limit for the memory of forward and backward, kept, used, and right in every gradient."""

import functools
import itertools
import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import aotkit
from aotkit.benchmark.capture import joint_graph
from aotkit.benchmark.evaluation import evaluate
from aotkit.benchmark.models import ResNet, UNet, mlp
from aotkit.inspection import saved_values
from aotkit.joint.running import partition_copy
from aotkit.joint.sides import classify, simplify
from aotkit.launches.allocations import most_allocated
from aotkit.partitioners import nx_min_cut
from aotkit.partitioners.rematerialization.costs import tradeoff
from aotkit.partitioners.rematerialization.devices import Device
from aotkit.partitioners.rematerialization.lifetimes import Lifetimes, lifetimes
from aotkit.partitioners.rematerialization.paths import Paths
from aotkit.partitioners.rematerialization.peak import fastest_below, fastest_path, paths_of, peak_of
from aotkit.partitioners.rematerialization.segments import Segment
from aotkit.partitioners.rematerialization.tradeoff import OverBudget, fastest
from aotkit.partitioners.rematerialization.values import values_of

DEVICE = Device(bandwidth=1e12, flops=1e14, launch=0.0)
FRACTIONS = [0.8, 0.6]


class Transformer(nn.Module):
    def __init__(self, layers=2, width=32):
        super().__init__()
        layer = partial(nn.TransformerEncoderLayer, width, 2, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.Sequential(*(layer() for _ in range(layers)))
        self.head = nn.Linear(width, 50)

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.layers(x)).flatten(0, 1), y.flatten())


MODELS = {
    "mlp": lambda: mlp(rows=256, layers=8, width=32),
    "transformer": lambda: (Transformer(), (torch.randn(4, 64, 32), torch.randint(50, (4, 64)))),
    "resnet": lambda: (ResNet((1, 1), classes=4), (torch.randn(8, 3, 64, 64), torch.arange(8) % 4)),
    "unet": lambda: (UNet((8, 16)), (torch.randn(4, 3, 64, 64), torch.ones(4, 64, 64, dtype=torch.long))),
}
# The others take a minute.
SOME = [pytest.param(n, marks=[] if n == "transformer" else pytest.mark.sweep) for n in MODELS]


def model_of(name):
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    return module.train(), inputs


def joint_of(name):
    from aotkit.backends.inductor_graphs.compiling import decompositions

    return joint_graph(*model_of(name), decompositions=decompositions())


@functools.cache
def numbers_of(name):
    return numbers(joint_of(name))


def numbers(joint):
    """What the choice is made by."""
    simplify(joint.gm)
    sides = classify(joint.gm, joint.num_outputs)
    values = values_of(joint.gm, sides)
    costs, lives = tradeoff(values, sides, DEVICE), lifetimes(values, sides)
    return paths_of(values, costs, lives), costs, lives


@pytest.mark.sweep
@pytest.mark.parametrize("name", SOME)
def test_the_promised_peak_is_that_of_the_graphs(name):
    """Inputs and parameters apart; as another simulation finds it, which looks at the graphs that come out."""
    paths, costs, lives = numbers_of(name)
    whole = peak_of(fastest(costs), costs, lives)
    joint = joint_of(name)
    for fraction in FRACTIONS:
        try:
            _, promised = fastest_below(paths, costs, lives, int(fraction * whole))
        except OverBudget:
            continue
        forward, backward = partition_copy(nx_min_cut.peak(fraction, DEVICE), joint)
        found = evaluate(forward, backward, joint.num_outputs)
        # A kernel that waits to be fused may hold more than its operators one by one would.
        least = min(found.fused_peak_bytes, found.peak_bytes)
        assert least == pytest.approx(promised - lives.held, rel=0.1)


@pytest.mark.parametrize("name", SOME)
def test_a_larger_limit_takes_no_more_time_and_each_is_used(name):
    paths, costs, lives = numbers_of(name)
    whole = peak_of(fastest(costs), costs, lives)
    with pytest.raises(OverBudget) as error:
        fastest_below(paths, costs, lives, 0)
    least, times = error.value.least, []
    assert least < 0.9 * whole
    for limit in range(least, whole + 1, (whole - least) // 6):
        choice, peak = fastest_below(paths, costs, lives, limit)
        assert peak <= limit
        times.append(costs.anyway + choice.time)
    assert all(after <= before for before, after in itertools.pairwise(times))


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
def test_gradients_differ_in_no_bit(name):
    """Dropout, batch norm and its statistics, skip connections; at the least possible peak, too."""

    def trained(partition):
        module, inputs = model_of(name)
        compiled = aotkit.compile(module, backend="nop", partition=partition, check=False)
        torch.manual_seed(1)
        loss = compiled(*inputs)
        gradients = torch.autograd.grad(loss, list(compiled.parameters()))
        return [loss.detach(), *gradients, *compiled.buffers()]

    expected = trained("default")
    with pytest.raises(aotkit.BudgetError) as error:
        trained(nx_min_cut.peak(0, DEVICE))
    for limit in (1.0, error.value.least):
        assert all(map(torch.equal, trained(nx_min_cut.peak(limit, DEVICE)), expected))


@pytest.mark.sweep
def test_an_impossible_peak_is_an_error_that_names_the_smallest_known_one():
    module, inputs = model_of("mlp")

    def run(limit):
        return aotkit.compile(module, backend="nop", partition=nx_min_cut.peak(limit, DEVICE))(*inputs)

    with pytest.raises(aotkit.BudgetError, match=r"A peak of 1024 bytes \(1.0 KiB\) was asked for") as error:
        run("1KiB")
    assert "of which inputs and parameters take 99.0 KiB" in str(error.value)
    run(error.value.least)
    with pytest.raises(aotkit.BudgetError):
        run(error.value.least - 1)


@pytest.mark.parametrize("limit", [1.5, -1, "6 giga", True])
def test_what_is_no_limit_is_refused_at_once(limit):
    with pytest.raises(ValueError, match="is no budget"):
        nx_min_cut.peak(limit)


@pytest.mark.thinned
def test_computes_what_eager_computes(split, workload):
    def run(limit):
        return split(nx_min_cut.peak(limit, DEVICE), workload.function, *workload.inputs())

    try:
        found = run(0.7)
    except aotkit.BudgetError as e:
        found = run(e.least)
    assert not found.draws_in_both()


def test_less_is_saved_where_the_peak_is_and_values_say_why():
    module, inputs = model_of("mlp")
    graphs = aotkit.extract(module, *inputs, partition=nx_min_cut.peak(0.7, DEVICE))
    saved = [value for value in saved_values(graphs) if value.kind == "activation"]
    plain = [v for v in saved_values(aotkit.extract(module, *inputs)) if v.kind == "activation"]
    assert 0 < sum(value.nbytes for value in saved) < 0.7 * sum(value.nbytes for value in plain)
    assert all(value.reason for value in saved)


@pytest.mark.sweep
@pytest.mark.parametrize("fraction", [0.7])
def test_compiled_code_takes_as_much_memory_as_promised(fraction):
    """Within ten percent, by the records of the allocator."""
    torch.manual_seed(0)
    module, inputs = mlp(rows=2048, layers=4, width=128)
    compiled = aotkit.compile(module, backend="inductor", partition=nx_min_cut.peak(fraction, DEVICE), check=False)

    def step():
        compiled.zero_grad(set_to_none=True)
        compiled(*inputs).backward()

    step()
    compiled.zero_grad(set_to_none=True)
    measured = most_allocated(step, torch.device("cpu"))
    joint = joint_graph(module, inputs, decompositions=aotkit.get_backend("inductor").decompositions())
    paths, costs, lives = numbers(joint)
    whole = peak_of(fastest(costs), costs, lives)
    _, promised = fastest_below(paths, costs, lives, int(fraction * whole))
    assert measured == pytest.approx(promised - lives.held, rel=0.1)


def random_paths(seed, places=6, steps=8):
    """Segments between all pairs of places, and by enumeration, each path's (peak, time)."""
    draw = random.Random(seed)
    pairs = [pair for pair in itertools.combinations(range(places), 2) for _ in range(3)]
    segments = [Segment(*pair, [k], [], draw.randrange(1, 50) * (pair[1] - pair[0])) for k, pair in enumerate(pairs)]
    between = {pair: [k for k, other in enumerate(pairs) if other == pair] for pair in pairs}
    none = [None] * len(segments)
    size = [draw.randrange(1, 20) for _ in segments]
    start = [draw.randrange(steps) for _ in segments]
    end = [draw.randrange(s, steps) for s in start]
    fixed = [draw.randrange(10) for _ in range(steps)]
    zeros = [0] * len(segments)
    lives = Lifetimes(none, steps, list(range(len(size))), size, zeros, start, none, end, fixed, 0)
    paths = Paths(segments, lives)
    found = []
    for count in range(places - 1):
        for middle in itertools.combinations(range(1, places - 1), count):
            ways = itertools.pairwise((0, *middle, places - 1))
            for chosen in itertools.product(*(between[way] for way in ways)):
                path = paths.path(chosen)
                found.append((path.peak, path.time))
    return paths, found


@pytest.mark.sweep
def test_paths_are_the_best_of_all():
    for seed in range(20):
        paths, found = random_paths(seed)
        peaks = sorted(peak for peak, _ in found if peak >= paths.smallest.peak)
        for limit in (peaks[0], *peaks[:: len(peaks) // 8], peaks[-1]):
            path, bound = fastest_path(paths, limit)
            assert path.peak <= limit
            assert bound == path.time == min(time for peak, time in found if peak <= limit)
