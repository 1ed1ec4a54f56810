"""How much a GELU of half precision counts among the operators of a value."""

import torch
from torch.fx import GraphModule

from aotkit.passes import HALF_GELU_STEPS
from aotkit.torch_private.inductor import setting

aten = torch.ops.aten
GELU = ("aten.gelu.default", "aten.gelu_backward.default")
# A value with more operators than this, its constants among them, Inductor writes to memory on a GPU if two read it.
# Phi, which both GELU and its gradient need, was such a value, in float32: 80 MiB in a layer of a UNet.
THRESHOLD = 30
LONGER = 3 * HALF_GELU_STEPS


def realize_opcount_threshold(gm: GraphModule) -> int | None:
    """Inductor's setting of that name for a graph, in which a GELU counts hardly more than it did with erf."""
    threshold: int | None = setting("realize_opcount_threshold")  # None: it depends on the device
    # By name, as a graph that was copied has copies of operators in `meta`.
    has_gelu = any(n.target is aten.exp2.default and str(n.meta.get("original_aten")) in GELU for n in gm.graph.nodes)
    return (threshold or THRESHOLD) + LONGER if has_gelu else threshold
