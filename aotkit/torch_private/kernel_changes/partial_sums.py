"""What the programs of a kernel have summed, each for itself, is added up by one more kernel.

Inductor has torch add it up: for each sum a launch of 6 us on an H200, in which the host cuts out the parts of that
sum, and another to convert it. Here a kernel of ours adds up all of them, if their sizes are known and parts are not
many. A comment tells which of the graph's nodes they are.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

MOST_PARTS = 1024  # more are for torch, whose programs share the parts of one sum
MOST_AT_ONCE = 256
COLUMNS = 16  # of a program
_NOTE = "[Added up]"
_ONE_SUM = re.compile(
    r"(?P<result>\w+) = (?P<parts>\w+)\[(?P<index>\d+) \* [^\]]*\]\.view\(\(?(?P<number>[^,()]+)\)?, "
    r"\(?(?P<width>[^,()]+)\)?\)\.(?P<operation>\w+)\(dim=0\)"
    r"(\.to\(torch\.(?P<dtype>\w+)\)|(?P<view>\.view\(\[[^\]]*\]\)))*"  # torch 2.11 has no view, 2.13 has it first
)
_ADDING = re.compile(r"\w+\[.*\]\.view\(.*\)\.(\w+)\(dim=0\)")
_RUN = re.compile(r"\s*(\w+)\.run\(")
_TYPES = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}


@dataclass(frozen=True)
class Place:
    """Where parts of sums are in memory, in elements of float32.

    Attributes:
        name: of the memory.
        start: where the first part of the first sum begins.
        of_sum: from there to the first part of the next sum.
        of_part: from there to the next part.
    """

    name: str
    start: int
    of_sum: int
    of_part: int


@dataclass(frozen=True)
class Parts:
    """Parts of sums.

    Attributes:
        place: of all sums' in one memory.
        first: which sum is the first one meant.
        number: of each sum.
        width: elements of a sum.
    """

    place: Place
    first: int
    number: int
    width: int


@dataclass(frozen=True)
class SumKernel:
    """A Triton kernel that adds up.

    Attributes:
        code: with `{name}` for its name, and `{beginning}` for the statements with which a kernel has to begin.
        signature: type of each argument, by its name.
        block: elements of a program.
    """

    code: str
    signature: Mapping[str, str]
    block: int = COLUMNS


Launch = Callable[[SumKernel, Sequence[str]], Sequence[str]]


def added_up(
    lines: Sequence[Any],
    places: Mapping[str, Place],
    nodes_of: Callable[[str], Sequence[Any]],
    device: str,
    launch: Launch,
) -> Iterator[Any]:
    """The same code, in which a kernel adds up what torch did; with the names of the graph's nodes above.

    Args:
        places: of parts that are not one matrix after the other in the memory that is named.
        nodes_of: tells by the name of a result.
        device: its type.
        launch: the statements that launch a kernel with these arguments; the last one does.
    """
    found = [_ONE_SUM.fullmatch(line) if isinstance(line, str) else None for line in lines]
    for kind, group in itertools.groupby(zip(lines, found, strict=True), lambda pair: pair[1] and _kind(pair[1])):
        if kind is None:
            yield from (line for line, _ in group)
            continue
        sums = [match for _, match in group if match]
        note = f"# {_NOTE} {' '.join(str(node) for match in sums for node in nodes_of(match['result']))}"
        if (parts := _parts(sums, places)) is None:
            assert sums[0]["parts"] not in places
            yield from (note, sums[0].string)
            continue
        types = [match["dtype"] or "float32" for match in sums]
        names = [match["result"] for match in sums]
        yield from (
            f"{name} = empty_strided_{device}(({parts.width}, ), (1, ), torch.{dtype})"
            for name, dtype in zip(names, types, strict=True)
        )
        *before, run = launch(_kernel(parts, types), [parts.place.name, *names, str(len(sums) * parts.width)])
        yield from (*before, note, run)
        yield from (f"{match['result']} = {match['result']}{match['view']}" for match in sums if match["view"])


def _kind(found: re.Match[str]) -> tuple[str | None, ...]:
    """Sums of one kind are added up by one kernel, if by any."""
    own = None if _parts([found]) else found["result"]
    return (*found.group("parts", "number", "width"), own)


def _parts(sums: Sequence[re.Match[str]], places: Mapping[str, Place] = MappingProxyType({})) -> Parts | None:
    """Of sums that a kernel can add up."""
    parts, number, width = sums[0].group("parts", "number", "width")
    if not (number.isdecimal() and width.isdecimal()) or int(number) > MOST_PARTS or int(width) % COLUMNS:
        return None
    if any(found["operation"] != "sum" or (found["dtype"] or "float32") not in _TYPES for found in sums):
        return None
    matrices = Place(parts, 0, int(number) * int(width), int(width))
    return Parts(places.get(parts, matrices), int(sums[0]["index"]), int(number), int(width))


def _kernel(parts: Parts, types: Sequence[str]) -> SumKernel:
    """For sums of these types: each program adds up some columns of one."""
    place = parts.place
    at_once = min(1 << (parts.number - 1).bit_length(), MOST_AT_ONCE)
    results = {f"out_ptr{i}": _TYPES[dtype] for i, dtype in enumerate(types)}
    stores = "".join(
        f"    if which == {i}:\n        tl.store({result} + column, total.to(tl.{dtype}))\n"
        for i, (result, dtype) in enumerate(zip(results, types, strict=True))
    )
    code = f"""
def {{name}}(in_ptr0, {", ".join(results)}, xnumel, XBLOCK: tl.constexpr):
{{beginning}}    which = tl.program_id(0) * XBLOCK // {parts.width}
    column = tl.program_id(0) * XBLOCK % {parts.width} + tl.arange(0, XBLOCK)[None, :]
    of_one = in_ptr0 + {place.start} + ({parts.first} + which) * {place.of_sum}
    partly = tl.full([{at_once}, XBLOCK], 0, tl.float32)
    for start in tl.range(0, {parts.number}, {at_once}):
        part = start + tl.arange(0, {at_once})[:, None]
        partly += tl.load(of_one + part * {place.of_part} + column, part < {parts.number}, other=0.0)
    total = tl.sum(partly, 0)[None, :]
{stores}"""
    return SumKernel(code, {"in_ptr0": "*fp32", **results, "xnumel": "i32"})


def nodes_added_up(comment: str) -> list[str] | None:
    """The names of the nodes that the statement below a comment of ours computes; None: it is another comment."""
    _, found, names = comment.partition(f"# {_NOTE} ")
    return names.split() if found else None


def kernel_that_adds_up(statement: str) -> str | None:
    """The kernel that a statement below such a comment launches: ours or an operator of ATen's; None: another one."""
    if found := _RUN.match(statement):
        return found[1]
    return operator_that_adds_up(statement)


def operator_that_adds_up(statement: str) -> str | None:
    """The operator of ATen's that a statement of Inductor's calls; None: it is another statement."""
    found = _ADDING.search(statement)
    return found and f"aten.{found[1]}"
