"""Where to compute rows a chunk at a time, and how many."""

import logging
from collections.abc import Sequence
from math import ceil

from torch.fx import GraphModule, Node

from aotkit.stages.chunks.finding import Part, bytes_of, groupings, part_of, widest_products
from aotkit.stages.chunks.late import factor, late_values
from aotkit.stages.chunks.rewriting import put_in_chunks
from aotkit.stages.chunks.rows import sizes_of
from aotkit.stages.chunks.rules import PRODUCTS
from aotkit.torch_private.partitioners import must_recompute

_log = logging.getLogger("aotkit")
LEAST = 128 << 20  # bytes by which the peak is lower, where it is worth it
# What is added up of products is read and written once more for each chunk, and rounded in 16 bits.
FEWEST_ROWS, ROWS = 1024, 2048  # of a chunk
MOST_CHUNKS = 8


def compute_in_chunks(gm: GraphModule) -> None:
    """Change a graph in place, where that lowers the peak of memory."""
    products = widest_products(gm.graph)
    while products:
        rows, most = sizes_of(products[0])[0], bytes_of(products[0])
        if most < LEAST // 2:
            return
        alike = [p for p in products if sizes_of(p)[0] == rows and 2 * bytes_of(p) >= most]
        if not _replace(gm, alike) and len(alike) > 1:
            _replace(gm, alike[:1])
        products = [p for p in products if p not in alike]


def _replace(gm: GraphModule, products: Sequence[Node]) -> bool:
    """Compute what is computed of these products in chunks, if that is possible, and lowers the peak."""
    reasons: list[str] = []
    for groups in groupings(products[0]):
        part = part_of(gm.graph, products, groups)
        if isinstance(part, str):
            reasons.append(part)
            continue
        size = _groups_of_chunk(part, products[0])
        if size == 0 or not part.results or any(must_recompute(node) for node in part.steps):
            return False
        late = late_values(part, [n for n in gm.graph.find_nodes(op="placeholder") if n.name.startswith("tangents")])
        number = factor(part, late)
        if not isinstance(number, str):
            put_in_chunks(gm, part, late, number, size)
            return True
        reasons.append(number)
    _log.info("The rows of %s are not computed in chunks: %s.", products[0], "; ".join(reasons))
    return False


def _groups_of_chunk(part: Part, product: Node) -> int:
    """How many groups of rows to compute at a time; 0 if that does not lower the peak."""
    whole, rows = sum(map(bytes_of, _in_memory(part))), sizes_of(product)[0]
    chunks = min(max(rows // ROWS, 2), MOST_CHUNKS)
    size = ceil(part.groups / chunks)
    is_large = size * rows // part.groups >= FEWEST_ROWS and size < part.groups
    return size if is_large and whole - whole * size // part.groups >= LEAST else 0


def _in_memory(part: Part) -> set[Node]:
    """What is large and is not computed in kernels: products, and what products read."""
    found: set[Node] = set()
    for node, step in part.steps.items():
        if node.target in PRODUCTS:
            found.update(x for x, rows in step.operands.items() if rows is not None and x in part.steps)
            found.update([node] if step.rows is not None else [])
    return found
