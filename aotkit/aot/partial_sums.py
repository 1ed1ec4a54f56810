"""What the programs of a kernel have summed, each for itself, is added up by torch.

Inductor writes a statement for each sum: a launch of 6 us on an H200, in which the host cuts out the parts of that sum.
Here sums of the same kind that the graph does not return are one statement, and a comment tells which of the graph's
nodes they are.
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

ALIGNMENT = 16  # bytes, so that as many elements of any type are enough
_NOTE = "[Added up]"
_ONE_SUM = re.compile(
    r"(?P<result>\w+) = (?P<parts>\w+)\[(?P<index>\d+) \* [^\]]*\]\.view\((?P<number>[^,]+), (?P<width>[^,]+)\)"
    r"\.(?P<operation>\w+)\(dim=0\)(?P<cast>\.to\([\w.]+\))?(?P<view>\.view\(\[.*\]\))?"
)
_ADDING = re.compile(r"\w+\[.*\]\.view\(.*\)\.(\w+)\(dim=[01]\)")


def added_up(lines: Sequence[Any], node_of: Callable[[str], Any], returned: Collection[str]) -> Iterator[Any]:
    """The same code, in which sums of the same kind are one; with the names of the graph's nodes above.

    Args:
        node_of: tells by the name of a result.
        returned: names of results that the graph returns: gradients of leaves, which share no memory with others.
    """

    def kind_of(pair: tuple[Any, re.Match[str] | None]) -> tuple[str | None, ...] | None:
        if (found := pair[1]) is None:
            return None
        is_alone = found["result"] in returned or not _is_aligned(found)
        return *_kind(found), found["index"] if is_alone else None

    found = [_ONE_SUM.fullmatch(line) if isinstance(line, str) else None for line in lines]
    for kind, group in itertools.groupby(zip(lines, found, strict=True), kind_of):
        if kind is None:
            yield from (line for line, _ in group)
            continue
        sums = [match for _, match in group if match]
        yield f"# {_NOTE} {' '.join(str(node_of(match['result'])) for match in sums)}"
        yield from _sum_at_once(sums)


def _kind(found: re.Match[str]) -> tuple[str | None, ...]:
    return found.group("parts", "number", "width", "operation", "cast")


def _is_aligned(found: re.Match[str]) -> bool:
    """Whether the next result in the same memory would begin where kernels expect it."""
    width = found["width"]
    return width.isdecimal() and int(width) % ALIGNMENT == 0


def _sum_at_once(sums: Sequence[re.Match[str]]) -> list[str]:
    if len(sums) == 1:
        return [sums[0].string]
    parts, number, width, operation, cast = _kind(sums[0])
    first, results = int(sums[0]["index"]), [found["result"] for found in sums]
    end, of_one = first + len(sums), f"({number}) * ({width})"
    some = f"{parts}[{first} * {of_one} : {end} * {of_one}].view({len(sums)}, {number}, {width})"
    views = [f"{found['result']} = {found['result']}{found['view']}" for found in sums if found["view"]]
    return [f"[{', '.join(results)}] = {some}.{operation}(dim=1){cast or ''}.unbind()", *views]


def nodes_added_up(comment: str) -> list[str] | None:
    """The names of the nodes that the statement below a comment of ours computes; None: it is another comment."""
    _, found, names = comment.partition(f"# {_NOTE} ")
    return names.split() if found else None


def operator_that_adds_up(statement: str) -> str | None:
    """The operator of ATen's that a statement of ours calls; None: it is another statement."""
    found = _ADDING.search(statement)
    return found and f"aten.{found[1]}"
