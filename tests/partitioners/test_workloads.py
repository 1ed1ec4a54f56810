"""Every partitioner on every workload: the numbers of eager, and the exact cut never above the others."""

import itertools

import pytest
import torch
from functorch.compile import aot_function, ts_compile

from aotkit.partitioners import default, min_cut, nx_min_cut
from aotkit.passes.nodes import is_random
from tests.partitioners.conftest import WORKLOADS

PARTITIONS = {"default": default.partition, "min_cut": min_cut.partition, "nx_min_cut": nx_min_cut.partition}


# With open sizes; the others in `make sweep`.
WITH_OPEN_SIZES = {
    "tutorial",
    "mlp",
    "masked",
    "unused_draws",
    "gradient_noise",
}


def traces():
    for workload, dynamic in itertools.product(WORKLOADS, (False, True)):
        marks = [pytest.mark.sweep] if dynamic and workload.name not in WITH_OPEN_SIZES else []
        yield pytest.param((workload, dynamic), marks=marks, id=f"{workload.name}-{'dynamic' if dynamic else 'static'}")


@pytest.fixture(scope="module", params=traces())
def traced(request):
    """A workload, and whether its sizes are open."""
    return request.param


@pytest.fixture(scope="module")
def splits(traced, split):
    """What each partitioner makes of a workload, compared with eager: traced once for all tests."""
    torch.manual_seed(0)
    workload, dynamic = traced
    inputs = workload.inputs()
    return {name: split(p, workload.function, *inputs, dynamic=dynamic) for name, p in PARTITIONS.items()}


@pytest.mark.thinned
@pytest.mark.parametrize("name", PARTITIONS)
def test_computes_what_eager_computes(splits, name):
    assert not splits[name].draws_in_both()


@pytest.mark.filterwarnings("ignore:.torch.jit", "ignore:The TorchScript type system:UserWarning")
@pytest.mark.parametrize("name", PARTITIONS)
def test_functorchs_compiler_takes_the_graphs(name):
    """Each partitioner is one for `aot_function`, too, and `ts_compile` scripts what it gives."""
    x = torch.rand(4, requires_grad=True)
    compiled = aot_function(
        lambda x: x.sin().cos(), fw_compiler=ts_compile, bw_compiler=ts_compile, partition_fn=PARTITIONS[name]
    )
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, -x.sin().sin() * x.cos(), check_stride=False)


@pytest.mark.thinned
def test_the_exact_cut_saves_no_more_than_the_others(splits):
    saved = {name: graphs.saved_bytes for name, graphs in splits.items()}
    assert saved["nx_min_cut"] == min(saved.values())


@pytest.mark.thinned
def test_no_expensive_operator_runs_twice(splits):
    graphs = splits["nx_min_cut"]
    forward, backward = ({n.name: n for n in g.graph.nodes} for g in (graphs.forward, graphs.backward))
    again = [forward[name] for name in forward.keys() & backward.keys() if backward[name].op == "call_function"]
    names = {str(node.target) for node in again}
    assert not [n for n in names if any(word in n for word in ("mm", "conv", "attention", "pool", "dropout", "rand"))]


def test_noise_on_gradients_is_drawn_in_the_backward_pass(splits, traced):
    draws = [node.name for node in splits["nx_min_cut"].backward.graph.nodes if is_random(node)]
    assert bool(draws) == (traced[0].name == "gradient_noise")
