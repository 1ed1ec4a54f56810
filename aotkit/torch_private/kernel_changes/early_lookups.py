"""What a GPU's kernel looks up for a row, it looks up before it reduces the row.

A loss looks up one element of each row, at an index that has to be loaded first. Inductor writes that where the result
is needed, behind the reductions, which nothing moves across; so each program waits twice more for memory, with nothing
else to do. That the index is one of the row's is asserted where Inductor does so, since all threads of a program wait
for each other there, too; what is looked up before is what the assertion allows.

On an H200, by kernels written by hand, cross entropy's rows take 20.4 us instead of 21.4 ([2, 4096, 4096], float16),
and 21.3 with the assertion first.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch._inductor.codegen.triton import TritonKernel

from aotkit.torch_private.kernel_changes.statements import ALONG_ROW, made_by, names_in, texts_of

_LOAD = re.compile(r"(?P<load>(?P<value>\w+) = tl\.load\(.+\), )(?P<mask>\w+)(?P<rest>(\)|, ).*)")
_ASSERTION = re.compile(r"tl\.device_assert\((?P<condition>.+), \"index out of bounds: .*\"\)")


@contextmanager
def early_lookups() -> Iterator[None]:
    """For the time of compiling a graph. What other threads compile meanwhile gets the same."""
    write: Any = TritonKernel.codegen_body

    def codegen_body(kernel: Any) -> None:
        if kernel.inside_reduction and kernel.persistent_reduction:
            kernel.compute._lines = lookups_first(kernel.compute._lines, kernel.loads._lines)
        write(kernel)

    with patch.object(TritonKernel, "codegen_body", codegen_body):
        yield


def lookups_first(lines: Sequence[Any], loads: Sequence[Any]) -> list[Any]:
    """A kernel's statements, with loads of one value for each row, and what these need, before all others.

    Args:
        loads: the statements before them.
    """
    before = texts_of([*loads, *lines])
    if before is None:
        return list(lines)
    made = list(map(made_by, before))
    values = set[str]().union(*made)
    needs: dict[str, set[str]] = {}  # of each value that a row has one of
    for names, text in zip(made, before, strict=True):
        used = values & names_in(text) - names
        if not ALONG_ROW.search(text) and used <= needs.keys():
            needs |= dict.fromkeys(names, names.union(used, *(needs[name] for name in used)))
    result, moved = list(lines), set[str]()
    asserted: list[tuple[set[str], str]] = []
    for i, text in enumerate(before[len(loads) :]):
        if found := _ASSERTION.fullmatch(text):
            asserted.append((values & names_in(text), found["condition"]))
        elif (found := _LOAD.fullmatch(text)) and found["value"] in needs:
            needed = needs[found["value"]]
            conditions = [condition for used, condition in asserted if used <= needed]
            if not conditions or isinstance(lines[i], str):
                moved |= needed
                result[i] = _masked(found, conditions) if conditions else lines[i]
    is_moved = [bool(names & moved) for names in made[len(loads) :]]
    return [line for early in (True, False) for line, at in zip(result, is_moved, strict=True) if at == early]


def _masked(load: re.Match[str], conditions: Sequence[str]) -> str:
    """The same load, where these hold."""
    masks = [] if load["mask"] == "None" else [load["mask"]]
    return f"{load['load']}{' & '.join([*masks, *(f'({condition})' for condition in conditions)])}{load['rest']}"
