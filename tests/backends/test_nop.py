"""nop: the graph as it was traced, and every value freed after its last use."""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import aotkit
from aotkit.backends.nop import compile_graph


class LiveBytes(TorchDispatchMode):
    """Follows the storages that operators make; `peak` is the most bytes of them alive at one time."""

    def __init__(self):
        super().__init__()
        self.alive = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in [result] if isinstance(result, torch.Tensor) else ():
            storage = t.untyped_storage()
            if (key := storage._cdata) not in self.alive:
                self.alive[key] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, key, None)
        self.peak = max(self.peak, sum(self.alive.values()))
        return result


def chain(x):
    for _ in range(6):
        x = x.sin()
    return x


def test_the_graph_is_the_backend():
    graphs = aotkit.extract(chain, torch.ones(3, requires_grad=True), backend="nop")
    assert compile_graph(graphs.forward, []) is graphs.forward


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_backward_frees_each_saved_value_after_its_last_use(partition):
    """Of six saved values, backward needs one at a time, and one gradient."""
    freed = []

    @torch.library.custom_op("aotkit_test::look", mutates_args=())
    def look(t: torch.Tensor) -> torch.Tensor:
        gc.collect()
        freed.append([w() is None for w in watched])
        return t.clone()

    @look.register_fake
    def _(t):
        return torch.empty_like(t)

    def compile_backward(gm, example_inputs):
        # Look just before the graph ends.
        output = gm.graph.output_node()
        (result,) = output.args[0]
        with gm.graph.inserting_before(output):
            looked = gm.graph.call_function(torch.ops.aotkit_test.look.default, (result,))
        output.args = ((looked,),)
        gm.recompile()
        return gm

    def compile_forward(gm, example_inputs):
        def run(*inputs):
            results = gm(*inputs)
            watched[:] = [weakref.ref(t) for t in results[1:] if all(t is not i for i in inputs)]
            return results

        return run

    watched = []
    backend = aotkit.Backend(compile_forward, compile_backward)
    compiled = aotkit.compile(lambda x: chain(x @ x), backend=backend, partition=partition, check=False)
    x = torch.randn(4, 4, requires_grad=True)
    out = compiled(x)
    assert watched
    out.sum().backward()
    assert freed == [[True] * len(watched)]


def test_forward_holds_no_more_than_eager():
    x = torch.randn(1000)
    compiled = aotkit.compile(chain, backend="nop")
    run = compiled.graphs(x).forward
    peaks = []
    for call in (chain, lambda x: aotkit.torch_private.fx.boxed(run)([x])[0]):
        with LiveBytes() as live:
            call(x)
        peaks.append(live.peak)
    assert peaks[1] <= peaks[0] <= 2 * 4000


def test_it_adds_no_operations():
    x = torch.randn(4, requires_grad=True)
    graphs = aotkit.extract(lambda x: x.sin() * 2, x, backend="nop", partition="default")
    operators = [n.target for n in graphs.forward.graph.nodes if n.op == "call_function"]
    assert operators == [torch.ops.aten.sin.default, torch.ops.aten.mul.Tensor]
