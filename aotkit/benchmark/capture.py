"""The joint graph of a module, traced as `compile` traces it, whatever the size of its tensors."""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule

from aotkit.capture import Randomness, SharedRandom, TensorReads
from aotkit.interfaces import Decompositions
from aotkit.joint import Joint
from aotkit.random import DECOMPOSED, Draws, SeedNeeded, new_seed
from aotkit.torch_private.aotautograd import trace


class _Captured(BaseException):
    """Ends the compilation once the joint graph is known. No `Exception`, so that nobody takes it for a failure."""


def joint_graph(
    module: nn.Module,
    inputs: Sequence[Tensor],
    *,
    decompositions: Decompositions | None = None,
    random: Randomness = "shared",
) -> Joint:
    """Trace `module(*inputs)`, a loss, up to the partitioner. All tensors may be fake.

    The primals are `inputs`, parameters, buffers and, where shared random numbers are drawn, the seed. As by `compile`,
    none of them is announced as static. What `compile` finds out about a function besides is not asked here: it leaves
    models of transformers to Dynamo.

    Raises:
        ValueError: no gradient is wanted, so there is no joint graph.
    """
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = [*inputs, *state.values()]

    def loss(*traced: Any) -> list[Any]:
        own = dict(zip(state, traced[len(inputs) :], strict=False))
        seed = traced[len(tensors)] if len(traced) > len(tensors) else None
        with TensorReads(), SharedRandom(Draws(seed)) if random == "shared" else nullcontext():
            return [functional_call(module, own, tuple(traced[: len(inputs)]))]

    try:
        return _traced(loss, tensors, decompositions or {})
    except SeedNeeded:
        return _traced(loss, [*tensors, new_seed()], decompositions or {})


def _traced(loss: Any, tensors: Sequence[Tensor], decompositions: Decompositions) -> Joint:
    found: list[Joint] = []

    def keep(joint: GraphModule, joint_inputs: Any, **keywords: Any) -> Any:
        found.append(Joint(joint, joint_inputs, keywords))
        raise _Captured

    def without_gradients(gm: GraphModule, example_inputs: Any) -> Any:
        raise ValueError("There is no joint graph: neither the inputs nor the parameters require gradients.")

    with suppress(_Captured):
        trace(
            loss, tensors, fw_compiler=without_gradients, bw_compiler=without_gradients, partition_fn=keep,
            decompositions=DECOMPOSED | dict(decompositions),
        )  # fmt: skip
    return found[0]
