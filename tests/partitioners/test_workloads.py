"""Every partitioner on every workload: the numbers of eager, and the exact cut never above the others."""

import pytest
import torch

from aotkit.aot.partition import is_random
from aotkit.partitioners import default, min_cut, nx_min_cut

PARTITIONS = {"default": default.partition, "min_cut": min_cut.partition, "nx_min_cut": nx_min_cut.partition}


@pytest.fixture(scope="module", params=[False, True], ids=["static", "dynamic"])
def splits(request, split, workload):
    """What each partitioner makes of a workload, compared with eager: traced once for all tests."""
    torch.manual_seed(0)
    inputs = workload.inputs()
    return {name: split(p, workload.function, *inputs, dynamic=request.param) for name, p in PARTITIONS.items()}


@pytest.mark.parametrize("name", PARTITIONS)
def test_computes_what_eager_computes(splits, name):
    assert not splits[name].draws_in_both()


def test_the_exact_cut_saves_no_more_than_the_others(splits):
    saved = {name: graphs.saved_bytes for name, graphs in splits.items()}
    assert saved["nx_min_cut"] == min(saved.values())


def test_no_expensive_operator_runs_twice(splits):
    graphs = splits["nx_min_cut"]
    forward, backward = ({n.name: n for n in g.graph.nodes} for g in (graphs.forward, graphs.backward))
    again = [forward[name] for name in forward.keys() & backward.keys() if backward[name].op == "call_function"]
    names = {str(node.target) for node in again}
    assert not [n for n in names if any(word in n for word in ("mm", "conv", "attention", "pool", "dropout", "rand"))]


def test_noise_on_gradients_is_drawn_in_the_backward_pass(splits, workload):
    draws = [node.name for node in splits["nx_min_cut"].backward.graph.nodes if is_random(node)]
    assert bool(draws) == (workload.name == "gradient_noise")
