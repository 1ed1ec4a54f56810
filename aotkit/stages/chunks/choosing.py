"""Where to compute rows a chunk at a time, and how many."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from torch.fx import GraphModule, Node

from aotkit.interfaces import Backend
from aotkit.stages.chunks.compiling import of_chunks
from aotkit.stages.chunks.finding import Part, bytes_of, groupings, part_of, widest_products
from aotkit.stages.chunks.late import factor, late_values
from aotkit.stages.chunks.rewriting import Bodies, put_in_chunks
from aotkit.stages.chunks.rows import sizes_of
from aotkit.stages.chunks.rules import PRODUCTS
from aotkit.torch_private.partitioners import must_recompute

_log = logging.getLogger("aotkit")
LEAST = 128 << 20  # bytes by which the peak is lower, where it is worth it
# What is added up of products is read and written once more for each chunk, and rounded in 16 bits.
FEWEST_ROWS, ROWS = 1024, 2048  # of a chunk
MOST_CHUNKS = 8
SHORTER = 16  # times, than a product: the results of a loss alone


@dataclass(frozen=True)
class _Chosen:
    """What `put_in_chunks` takes."""

    part: Part
    late: set[Node]
    number: Node | None
    size: int


def compute_in_chunks(gm: GraphModule, backend: Backend) -> None:
    """Change a graph in place, where that lowers the peak of memory."""
    refused: dict[str, str] = {}
    other = of_chunks(backend)
    prepare = None if other is None else other.joint_pass
    while (chosen := _first(gm, refused)) is not None:
        if prepare is not None:  # what compiles chunks shall find its graphs as if it compiled all
            prepare(gm, None)
            prepare = None
        else:
            put_in_chunks(gm, chosen.part, chosen.late, chosen.number, chosen.size)
    for name, reason in refused.items():
        _log.info("The rows of %s are not computed in chunks: %s.", name, reason)


def _first(gm: GraphModule, refused: dict[str, str]) -> _Chosen | None:
    """The largest of what there is."""
    products = [p for p in widest_products(gm.graph) if bytes_of(p) >= LEAST // 2]
    while products:
        alike = [p for p in products if sizes_of(p)[0] == sizes_of(products[0])[0] and _is_near(p, products[0])]
        for together in (alike, products[:1]):
            found = _choose(gm, together)
            if isinstance(found, _Chosen):
                return found
            refused[products[0].name] = found
        products = [p for p in products if p not in alike]
    return None


def _is_near(product: Node, largest: Node) -> bool:
    return 2 * bytes_of(product) >= bytes_of(largest)


def _choose(gm: GraphModule, products: Sequence[Node]) -> _Chosen | str:
    """How to compute what is computed of some products in chunks; or why not."""
    reasons: dict[str, None] = {}
    for groups in groupings(products[0]):
        part = part_of(gm.graph, products, groups)
        if isinstance(part, str):
            reasons[part] = None
            continue
        size = _groups_of_chunk(part, products[0])
        if size == 0 or not part.results:
            return "that would not lower the peak of memory"
        if any(must_recompute(node) for node in part.steps):
            return "torch.utils.checkpoint has a say in what is saved"
        late = late_values(part, [n for n in gm.graph.find_nodes(op="placeholder") if n.name.startswith("tangents")])
        number = factor(part, late)
        if isinstance(number, str):
            reasons[number] = None
        elif number is None and not all(_is_short(node, products[0]) for node in part.results):
            reasons["there is no loss, and no gradient"] = None
        elif reason := _fails(part, size):
            reasons[reason] = None
        else:
            return _Chosen(part, late, number, size)
    return "; ".join(reasons)


def _is_short(result: Node, product: Node) -> bool:
    """Whether a result is as small as those of a loss: those of hidden layers are a few times smaller."""
    return SHORTER * bytes_of(result) <= bytes_of(product)


def _fails(part: Part, size: int) -> str:
    """Why there is no graph for some rows, if there is none."""
    try:
        Bodies(part).of(size)
    except (RuntimeError, ValueError, TypeError, IndexError) as e:
        return f"an operator does not take some rows: {e}"
    return ""


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
