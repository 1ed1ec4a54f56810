"""How much Inductor computes of a value before it writes it to memory for its readers: its settings for a graph.

A value with more operators than a threshold, its constants among them, is written if two read it.
"""

import torch
from torch.fx import GraphModule

from aotkit.passes import HALF_GELU_STEPS
from aotkit.random import WORDS
from aotkit.torch_private.inductor import setting

aten = torch.ops.aten
GELU = ("aten.gelu.default", "aten.gelu_backward.default")
# Of a GPU's kernels. Phi, which both GELU and its gradient need in half precision, is longer, in float32: 80 MiB in a
# layer of a UNet.
THRESHOLD = 30
LONGER = 3 * HALF_GELU_STEPS
# The bits of random numbers take about 60 operators and read nothing, so to make them again costs about as much as to
# write and read 4 bytes: 30 operators beside them are the limit, and reads likewise.
WITH_BITS = {"realize_opcount_threshold": 90, "realize_reads_threshold": 16, "realize_acc_reads_threshold": 16}


def limits(gm: GraphModule) -> dict[str, int | None]:
    """Settings of Inductor for a graph: GELU counts hardly more than it did with erf, and random bits do not count."""
    threshold: int | None = setting("realize_opcount_threshold")  # None: it depends on the device
    # By name, as a graph that was copied has copies of operators in `meta`.
    if any(n.target is aten.exp2.default and str(n.meta.get("original_aten")) in GELU for n in gm.graph.nodes):
        threshold = (threshold or THRESHOLD) + LONGER
    found: dict[str, int | None] = {"realize_opcount_threshold": threshold}
    if gm.graph.find_nodes(op="call_function", target=WORDS):
        found |= {name: max(least, found.get(name) or 0) for name, least in WITH_BITS.items()}
    return found
