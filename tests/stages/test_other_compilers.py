"""`by_region(instead=...)`: single kinds of regions that another backend compiles."""

from collections import Counter

import pytest
import torch

import aotkit


def takes_pointwise(node):
    return None if torch.Tag.pointwise in getattr(node.target, "tags", ()) else "takes pointwise operators only"


@pytest.fixture
def seen():
    return {"first": Counter(), "other": Counter()}


@pytest.fixture
def backends(seen):
    def noting(name):
        def compile_graph(gm, example_inputs):
            calls = [node for node in gm.graph.nodes if node.op == "call_function"]
            seen[name].update(node.target.overloadpacket.__name__ for node in calls)
            return gm

        return compile_graph

    return aotkit.Backend(noting("first"), declines=takes_pointwise), aotkit.Backend(noting("other"))


def layers(x, w):
    for _ in range(2):
        x = x.sin().tanh() @ w
    return x.exp().log()


def graphs(backend):
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    compiled = aotkit.compile(layers, backend=backend)
    assert torch.allclose(compiled(x, w), layers(x, w), rtol=1e-4, atol=1e-4)
    return compiled.graphs(x, w)


def test_equal_regions_have_one_digest(backends):
    first, _ = backends
    digests = [region.digest for region in graphs(first).regions["forward"].regions]
    assert len(digests) == 3
    assert digests[0] == digests[1] != digests[2]
    again = [region.digest for region in graphs(first).regions["forward"].regions]
    assert again == digests


def test_another_backend_compiles_the_regions_of_a_digest(backends, seen):
    first, other = backends
    digest = graphs(first).regions["forward"].regions[0].digest
    seen["first"].clear()
    found = graphs(aotkit.by_region(first, instead={digest: other})).regions["forward"].regions
    assert seen == {"first": Counter({"exp": 1, "log": 1}), "other": Counter({"sin": 2, "tanh": 2})}
    assert [region.backend for region in found[:2]] == ["compile_graph"] * 2


def test_one_that_fails_leaves_its_region_as_it_is(backends, caplog):
    """Also where it names an operation that it does not take: that is the first one's business."""
    first, _ = backends
    region = graphs(first).regions["forward"].regions[0]

    def refusing(gm, example_inputs):
        error = aotkit.CompileError("there is no sine")
        error.operation = region.nodes[0]
        raise error

    found = graphs(aotkit.by_region(first, instead={region.digest: refusing}))
    assert "there is no sine" in found.regions["forward"].regions[0].failure
    assert "runs as it is" in caplog.text


def test_sizes_make_other_regions(backends):
    first, _ = backends
    digests = set()
    for rows in (4, 5):
        compiled = aotkit.compile(lambda x: x.sin().cos(), backend=first)
        x = torch.randn(rows, 3)
        compiled(x)
        digests.add(compiled.graphs(x).regions["forward"].regions[0].digest)
    assert len(digests) == 2
