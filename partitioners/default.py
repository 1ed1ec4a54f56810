"""Save every value that the backward pass reads; recompute nothing that the function did not ask to recompute.

The same memory as eager, or a little less. `torch.utils.checkpoint` is honoured where Dynamo captures the function.
Source: `functorch.compile.default_partition`.
"""

from typing import Any

from torch.fx import GraphModule

from aotkit.joint import default_partition


def partition(
    joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any
) -> tuple[GraphModule, GraphModule]:
    """Split the joint graph into (forward, backward) at the values that the backward pass reads."""
    return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
