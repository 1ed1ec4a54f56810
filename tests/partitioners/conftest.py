"""Functions to partition, and `split`: trace one with a partitioner, and see that it computes what eager computes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import aot_function, nop
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import checkpoint

from aotkit.passes.nodes import is_random, storages


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def mlp(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.dropout(F.gelu(x @ w), 0.3) @ v


def attention(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = F.layer_norm(x @ w, (12,)).chunk(3, dim=-1)
    weights = F.dropout((q @ k.transpose(1, 2) / 2).softmax(-1), 0.1)
    return F.layer_norm(x + weights @ v, (4,))


def fused_attention(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = (part.view(2, 8, 2, 2).transpose(1, 2) for part in (x @ w).chunk(3, dim=-1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).sin()


def convolution(x: Tensor, w: Tensor, gain: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(F.batch_norm(F.conv2d(x, w), None, None, gain, gain, training=True)), 2).sin()


def views(x: Tensor, w: Tensor) -> Tensor:
    y = (x.t().reshape(4, -1)[:, ::2] * 2).sin()
    return torch.cat([y.sum(0, keepdim=True) * w.flatten()[: y.shape[1]], y], dim=0).transpose(0, 1)


def masked(x: Tensor, w: Tensor) -> Tensor:
    mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
    return torch.where(mask, x @ w, -1.0).exp() * torch.arange(x.shape[0]).cumsum(0)


def running_statistics(x: Tensor, w: Tensor, gain: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    y = F.batch_norm(F.conv2d(x, w), mean, variance, gain, gain, training=True)
    return F.relu(y).sin() * mean[:, None, None]


class GradientNoise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        noise = torch.randn(8)
        return grad * noise.sin() + (noise * noise).sum()


class GradientMask(torch.autograd.Function):
    """A backward pass with an expensive operator that no tangent enters, and whose result is large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.argmax(1, keepdim=True))
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        one_hot = torch.zeros(8, 512).scatter(1, ctx.saved_tensors[0], 1.0)
        return grad * one_hot.cumsum(1)[:, :8]


@dataclass
class Workload:
    name: str
    function: Callable[..., Tensor]
    shapes: list[tuple[int, ...]]
    buffers: int = 0  # further inputs, shaped like the last one, which the function changes in place

    def inputs(self) -> list[Tensor]:
        return [normal(*shape) for shape in self.shapes] + [torch.ones(self.shapes[-1]) for _ in range(self.buffers)]


SQUARE = [(8, 8), (8, 8)]
WORKLOADS = [
    Workload("tutorial", lambda a, b, c, d: (a + b + c + d).cos().cos(), [(4, 8)] * 4),
    Workload("mlp", mlp, [(16, 8), (8, 32), (32, 8)]),
    Workload("attention", attention, [(2, 8, 4), (4, 12)]),
    Workload("fused_attention", fused_attention, [(2, 8, 4), (4, 12)]),
    Workload("convolution", convolution, [(2, 3, 8, 8), (4, 3, 3, 3), (4,)]),
    Workload("running_statistics", running_statistics, [(2, 3, 8, 8), (4, 3, 3, 3), (4,)], buffers=2),
    Workload("cross_entropy", lambda x, w: F.cross_entropy(x @ w, torch.arange(8)), SQUARE),
    Workload("views", views, SQUARE),
    Workload("masked", masked, SQUARE),
    Workload("nothing_saved", lambda x, w: x + 2 * w, SQUARE),
    Workload("two_outputs_in_one", lambda x, w: torch.stack(torch.frexp(x * w)[:1]).sin() * x, SQUARE),
    Workload("unused_draws", lambda x, w: (F.dropout(x), torch.rand_like(x), (x.sin() * w).cos())[2], SQUARE),
    Workload("gradient_noise", lambda x, w: (GradientNoise.apply(x.sin()) * w).sin(), SQUARE),
    Workload("gradient_mask", lambda x, w: (GradientMask.apply(x @ w).sin() * w).cos(), SQUARE),
    Workload("pointwise_dropout", lambda x, w: F.dropout(x.sin(), 0.5) * w, SQUARE),
]


@pytest.fixture(scope="module", params=WORKLOADS, ids=lambda workload: workload.name)
def workload(request: pytest.FixtureRequest) -> Any:
    return request.param


@dataclass
class Split:
    """The graphs that a partitioner returned, and which outputs of `forward` are not saved values."""

    joint: GraphModule
    forward: GraphModule
    backward: GraphModule
    num_outputs: int

    @property
    def saved(self) -> list[Node]:
        return list(self.forward.graph.output_node().args[0][self.num_outputs :])

    @property
    def saved_bytes(self) -> int:
        """Bytes that live on for the backward pass only: of distinct memory, without inputs and outputs."""
        outputs = self.forward.graph.output_node().args[0][: self.num_outputs]
        alive = memory([*self.forward.graph.find_nodes(op="placeholder"), *outputs])
        return sum(size for key, size in memory(self.saved).items() if key not in alive)

    def draws_in_both(self) -> set[str]:
        forward, backward = ({n.name for n in g.graph.nodes if is_random(n)} for g in (self.forward, self.backward))
        return forward & backward


def memory(nodes: Iterable[Node | None]) -> dict[Any, int]:
    return {key: size for node in nodes if node is not None for key, size in storages(node).items()}


@pytest.fixture(scope="session")
def split() -> Callable[..., Split]:
    """`split(partition, function, *inputs, dynamic=False)`: trace, run forward and backward, compare with eager."""

    def run(partition: Any, function: Callable[..., Tensor], *inputs: Tensor, dynamic: bool = False) -> Split:
        found: list[Split] = []

        def keep(joint: GraphModule, joint_inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
            forward, backward = partition(joint, joint_inputs, **keywords)
            forward.graph.lint()
            backward.graph.lint()
            found.append(Split(joint, forward, backward, keywords["num_fwd_outputs"]))
            return forward, backward

        compiled = aot_function(function, fw_compiler=nop, partition_fn=keep, dynamic=dynamic)
        outputs = [results(f, inputs) for f in (compiled, function)]
        torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)
        return found[0]

    return run


def results(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """The output, the gradients of a weighted sum of it, the buffers and the generator's state afterwards."""
    inputs = tuple(x if x.requires_grad else x.clone() for x in inputs)
    torch.manual_seed(0)
    output = function(*inputs)
    weights = torch.linspace(0.5, 1.5, output.numel()).reshape(output.shape)
    wanted = [x for x in inputs if x.requires_grad]
    gradients = torch.autograd.grad((output * weights).sum(), wanted)
    return output.detach(), gradients, [x for x in inputs if not x.requires_grad], torch.get_rng_state()


@pytest.fixture
def run_checkpointed() -> Callable[[Any], Split]:
    """Partition a function with `torch.utils.checkpoint` and dropout inside, captured by Dynamo; compare with eager."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        def block(x: Tensor) -> Tensor:
            return (F.dropout(x.sin() @ w).cos() @ w).sin()

        return checkpoint(block, checkpoint(block, x * 2, use_reentrant=False), use_reentrant=False).cos() @ w

    def check(partition: Any) -> Split:
        found: list[Split] = []

        def keep(joint: GraphModule, joint_inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
            forward, backward = partition(joint, joint_inputs, **keywords)
            found.append(Split(joint, forward, backward, keywords["num_fwd_outputs"]))
            return forward, backward

        torch._dynamo.reset()
        compiled = torch.compile(function, backend=aot_autograd(fw_compiler=nop, partition_fn=keep))
        inputs = (normal(64, 8), normal(8, 8))
        torch.testing.assert_close(results(compiled, inputs), results(function, inputs))
        return found[0]

    return check
