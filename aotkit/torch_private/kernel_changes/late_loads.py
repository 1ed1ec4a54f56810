"""What a kernel needs only when a long row is reduced, it loads then, where that lets two programs run at a time.

Inductor has a kernel load all at once. The weights of a layer norm wait in registers while the row is reduced, and so
does a row that is used again, beside what has been made of it. Where this takes so many registers that a multiprocessor
has one program at a time, it has nothing to do while that one waits. So weights are loaded when they are needed, and
such a row is loaded once more, from the cache: its program has just read it.

On an H200, layer norm of [2048, 12288] in float16 between dropout and residual has 63 registers instead of 96, which is
few enough for two programs of 512 threads, and takes 39.6 us instead of 49.2, with a bias 42.3 instead of 50.0. (With
late weights alone and a limit of 64 registers, which Inductor does not pass on, it took 35.5 and 38.0.) In float32 it
would still have 96, of 116, so that nothing were won.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.virtualized import V

from aotkit.torch_private.kernel_changes.statements import (
    ALONG_ROW,
    LOAD_OF_ALL_ROWS,
    made_by,
    names_in,
    renamed,
    texts_of,
)

MOST_HELD = 96 * 1024  # bytes, of the 128 KiB of registers that each of two programs can have
WIDEST = 2  # bytes of a loaded element
_COMPUTED = 4  # bytes of one that is computed
_REDUCED = "[:, None]"
_ROW = re.compile(
    r"(?P<load>(?P<value>\w+) = tl\.load\((?P<pointer>\w+) \+ \((?P<place>[^()]+)\), [\w &]+)"
    r"(, eviction_policy='[^']*')?(?P<rest>(, other=0\.0)?\)(\.to\(tl\.\w+\))?)"
)


@contextmanager
def late_loads() -> Iterator[None]:
    """For the time of compiling a graph. What other threads compile meanwhile gets the same."""
    write: Any = TritonKernel.codegen_body

    def codegen_body(kernel: Any) -> None:
        if kernel.inside_reduction and kernel.persistent_reduction and not kernel.mix_order_reduction:
            width = V.graph.sizevars.optimization_hint(kernel.numels["r0_"], fallback=0)
            sizes = {pointer: V.graph.get_dtype(name).itemsize for name, pointer in kernel.args.input_buffers.items()}
            loads, compute = loaded_late(kernel.loads._lines, kernel.compute._lines, width, sizes)
            kernel.loads._lines, kernel.compute._lines = loads, compute
        write(kernel)

    with patch.object(TritonKernel, "codegen_body", codegen_body):
        yield


def loaded_late(
    loads: Sequence[Any], compute: Sequence[Any], width: int, sizes: Mapping[str, int]
) -> tuple[list[Any], list[Any]]:
    """What a kernel loads first, and what it computes and loads then.

    Args:
        width: elements of a row.
        sizes: bytes of an element, by the pointer to what is loaded.
    """
    texts = texts_of([*loads, *compute])
    if texts is None or not all(isinstance(line, str) for line in compute):
        return list(loads), list(compute)
    found = [_ROW.fullmatch(text) for text in texts[: len(loads)]]
    rows = {row["value"]: row for row in found if row and ALONG_ROW.search(row["place"])}
    end = max((i for i, text in enumerate(compute, 1) if _REDUCED in text), default=0)
    again, weights = _late(rows, compute[:end], compute[end:], width, sizes)
    later = {value: f"{value}_again" for value in again}
    first: list[Any] = []
    waiting = dict[str, Any]()
    for line, row in zip(loads, found, strict=True):
        value = row["value"] if row else None
        if value in weights:
            waiting[value] = line
        elif row and value in again:
            first.append(row["load"] + row["rest"])
            waiting[value] = renamed(row["load"], later) + f", eviction_policy='evict_first'{row['rest']}"
        else:
            first.append(line)
    rest = list(compute[:end])
    for text in compute[end:]:
        names = names_in(text)
        rest += [waiting.pop(value) for value in list(waiting) if value in names]
        rest.append(renamed(text, later))
    return first, rest


def _late(
    rows: Mapping[str, re.Match[str]], before: Sequence[str], after: Sequence[str], width: int, sizes: Mapping[str, int]
) -> tuple[set[str], set[str]]:
    """The rows that are loaded again, and what all rows have in common that is loaded late.

    Args:
        rows: loads of them, by what they are called.
        before: the statements up to the last reduction.
    """
    used, needed = (set[str]().union(*map(names_in, some)) for some in (before, after))
    nbytes = {value: sizes.get(row["pointer"], WIDEST + 1) for value, row in rows.items()}
    held = dict.fromkeys(_along_row(before, rows), _COMPUTED) | nbytes
    if max(nbytes.values(), default=0) > WIDEST or width * sum(held[v] for v in held.keys() & needed) <= MOST_HELD:
        return set(), set()
    of_all = {value for value, row in rows.items() if LOAD_OF_ALL_ROWS.fullmatch(row.string)}
    again = rows.keys() & used & needed - of_all
    return (again, of_all & needed - used) if again else (set(), set())


def _along_row(statements: Iterable[str], loaded: Iterable[str]) -> set[str]:
    """What they compute of each element of a row."""
    along, result = set(loaded), set[str]()
    for text in statements:
        if _REDUCED not in text and (ALONG_ROW.search(text) or along & names_in(text)):
            along |= made_by(text)
            result |= made_by(text)
    return result
