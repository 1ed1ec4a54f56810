"""What the programs of a kernel have summed, each for itself, is added up by torch.

Inductor writes a statement for each sum: a launch of 6 us on an H200, in which the host cuts out the parts of that sum.
Here sums of the same kind are one statement, and a comment tells which nodes of the graph they are.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

ALIGNMENT = 16  # bytes, so that as many elements of any type are enough
_NOTE = "[Added up]"
_ONE_SUM = re.compile(
    r"(?P<result>\w+) = (?P<parts>\w+)\[(?P<index>\d+) \* [^\]]*\]\.view\((?P<number>[^,]+), (?P<width>[^,]+)\)"
    r"\.(?P<operation>\w+)\(dim=0\)(?P<cast>\.to\([\w.]+\))?(?P<view>\.view\(\[.*\]\))?"
)
_ADDING = re.compile(r"\w+\[.*\]\.view\(.*\)\.(\w+)\(dim=1\)")


def added_up(lines: Sequence[Any], node_of: Callable[[str], Any]) -> Iterator[Any]:
    """The same code, in which sums of the same kind are one; with the names of the graph's nodes above.

    Args:
        node_of: tells by the name of a result.
    """
    found = [_ONE_SUM.fullmatch(line) if isinstance(line, str) else None for line in lines]
    for kind, group in itertools.groupby(zip(lines, found, strict=True), lambda pair: pair[1] and _kind(pair[1])):
        if kind is None:
            yield from (line for line, _ in group)
            continue
        sums = [match for _, match in group if match]
        yield f"# {_NOTE} {' '.join(str(node_of(match['result'])) for match in sums)}"
        yield from _sum_at_once(sums)


def _kind(found: re.Match[str]) -> tuple[str | None, ...]:
    """What is the same in sums that can be one: each of its results has to begin where a kernel expects it."""
    width = found["width"]
    is_aligned = width.isdecimal() and int(width) % ALIGNMENT == 0
    return *found.group("parts", "number", "width", "operation", "cast"), None if is_aligned else found["index"]


def _sum_at_once(sums: Sequence[re.Match[str]]) -> list[str]:
    parts, number, width, operation, cast, _ = _kind(sums[0])
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
