"""Recompute what a fusing compiler recomputes for free, and save the rest: torch's own choice.

A minimum cut through the joint graph, weighted by bytes and distance from the backward pass, with heuristics for what
fuses. `torch._functorch.config.activation_memory_budget` below 1 recomputes more.
Source: `functorch.compile.min_cut_rematerialization_partition`. Unlike it, this one never merges two random draws
and never draws one again, whatever the budget.
"""

from typing import Any

from torch.fx import GraphModule

from aotkit.joint import min_cut_partition


def partition(
    joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any
) -> tuple[GraphModule, GraphModule]:
    """Split the joint graph into (forward, backward) at torch's minimum cut."""
    return min_cut_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
