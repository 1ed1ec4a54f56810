"""Sums of columns that Inductor adds up, on a GPU, in the kernel that reduces the rows of the same values.

It takes rows behind the last one along, of which loads give anything (torch 2.11 to 2.14 at least; its kernels take up
to 16 rows at a time), and adds up in float32 whatever the type.
"""

import math
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from aotkit.passes import is_view, tensors_of

ROWS_AT_ONCE = 16
_SUMMED = (torch.float16, torch.bfloat16, torch.float32)


def are_right(gm: GraphModule) -> bool:
    """Whether all sums that might be added up so are right then.

    Such a pair makes R values of n each, and n of R. Which nodes might, their numbers of elements tell, if these are
    known; which of the two has the columns they do not tell, so both have to fit.
    """
    reductions = [found for node in gm.graph.nodes for found in _reductions(node)]
    numbers = {(results, reduced) for results, reduced, _ in reductions}
    return all(
        isinstance(reduced, int) and (fits or (reduced, results) not in numbers)
        for results, reduced, fits in reductions
    )


def _reductions(node: Node) -> Iterator[tuple[int | None, int | None, bool]]:
    """What a node might reduce: how many results, of how many elements each, and whether a sum of these is right."""
    if node.op != "call_function" or is_view(node):
        return
    for source in (tensor for n in node.all_input_nodes for tensor in tensors_of(n)):
        for result in tensors_of(node):
            before, after = (math.prod(x.shape) for x in (source, result))
            if type(before) is not int or type(after) is not int:
                yield None, None, False
            elif after and before > after and before % after == 0:
                reduced = before // after
                yield after, reduced, reduced % ROWS_AT_ONCE == 0 and {source.dtype, result.dtype} <= {*_SUMMED}
