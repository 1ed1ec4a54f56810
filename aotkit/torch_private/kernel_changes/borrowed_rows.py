"""Parts of sums kept in rows of a result that are computed last, where memory of their own would show.

The programs of a kernel that sums columns each store what they have summed, until another kernel adds that up: 2 to 12
MiB on an H200, whatever the batch is. Of a graph that does little else, such as a normalisation's backward pass, it is
1 to 5 % of all memory, which nothing else is overwritten for: the graph's inputs belong to others.

There each program leaves its last rows of one result out, and stores its parts in place of them. A third kernel
computes these rows when the parts have been added up: the same statements, without the sums. On an H200 with backward
in float16 of [2, 4096, 4096], RMS norm takes 93.9 us instead of 91.7 so, and holds as much as eager; in the worst case,
layer norm of a sum of [1, 2048, 12288], 131.4 instead of 121.0 with 240 MiB instead of 252. So it is done only where
parts are more than a 256th of what the graph gets and gives, and where eager keeps no mask of an element each, as
dropout does, which is more.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.ir import FixedLayout, IRNode
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V

from aotkit.torch_private.kernel_changes.dependent_launches import beginning, is_supported
from aotkit.torch_private.kernel_changes.partial_sums import COLUMNS, MOST_PARTS, Place
from aotkit.torch_private.kernel_changes.row_reductions import rows_at_once

SHARE = 1 / 256
_FIRST_ROW = "    xoffset = tl.program_id(0) * RSPLIT_SIZE\n"
_LOOP = "    for _ in tl.range(0, split_size, "
_GRID = "'grid_type': 'MixOrderReductionGrid'"
_OVERWRITES_NOTHING = "'mutated_arg_names': []"  # else rows that are computed later would be made of something else
_STORE = re.compile(r"tl\.store\((\w+) \+ \((\w+) \+ (\d+)\*(\w+)\), (\w+), (.+)\)")
_STORED_SUM = re.compile(
    r"tl\.store\(ws_ptr \+ \(tl\.program_id\(0\) \+ (\d+) \* tl\.num_programs\(0\)\) \* r0_numel \+ r0_index, (.+)\)"
)
_define: Any = TritonScheduling.define_kernel
_allocate: Any = PythonWrapperCodegen.generate_workspace_allocation
_deallocate: Any = PythonWrapperCodegen.generate_workspace_deallocation


@dataclass(frozen=True)
class Loan:
    """Rows of a result that hold parts of sums.

    Attributes:
        pointer: to the result.
        programs: how many there are.
        split: rows of a program.
        rows: of these, the last ones that are borrowed.
        at_once: how many rows are computed at a time.
        width: elements of a row.
        itemsize: bytes of an element.
    """

    pointer: str
    programs: int
    split: int
    rows: int
    at_once: int
    width: int
    itemsize: int

    @property
    def kept(self) -> int:
        """How many of a program's rows are computed first."""
        return self.split - self.rows

    @property
    def row(self) -> int:
        """How many sums' elements it has room for."""
        return self.width * self.itemsize // 4


@contextmanager
def borrowed_rows() -> Iterator[Mapping[str, Place]]:
    """While a kernel that sums columns is written; yields where the parts are that Inductor believes elsewhere."""
    places = dict[str, Place]()
    finish = dict[str, Callable[[], None]]()

    def define(scheduling: Any, source: str, schedule: Any, kernel: Any) -> str:
        found = _borrowed(kernel, source)
        if found is None:
            return str(_define(scheduling, source, schedule, kernel))
        name, loan, first, rest = found
        defined = str(_define(scheduling, first, schedule, kernel))
        of_rest = _define(scheduling, rest, [part for part in schedule if not _is_sum(part)], kernel)
        (workspace,) = kernel.args.workspace_args
        kernel.args.workspace_args = [replace(workspace, outer_name=name)]
        places[workspace.outer_name] = Place(name, loan.kept * loan.row, loan.width, loan.split * loan.row)
        finish[name] = lambda: kernel.call_kernel(of_rest, deallocate_ws=False)
        return defined

    def allocate(wrapper: Any, workspace: Any) -> None:
        if workspace.outer_name not in finish:
            _allocate(wrapper, workspace)

    def deallocate(wrapper: Any, workspace: Any) -> None:
        """What has been borrowed is given back."""
        if workspace.outer_name in finish:
            finish[workspace.outer_name]()
        else:
            _deallocate(wrapper, workspace)

    with (
        patch.object(TritonScheduling, "define_kernel", define),
        patch.object(PythonWrapperCodegen, "generate_workspace_allocation", allocate),
        patch.object(PythonWrapperCodegen, "generate_workspace_deallocation", deallocate),
    ):
        yield places


def _is_sum(part: Any) -> bool:
    return isinstance(part, SchedulerNode) and part._body.has_op("partial_accumulate")


def _borrowed(kernel: Any, source: str) -> tuple[str, Loan, str, str] | None:
    """The name of a result, what is borrowed of it, and the source of both kernels; None: none, or of no use."""
    if not kernel.mix_order_reduction or V.graph.cpp_wrapper:
        return None
    rows, width, split = kernel.numels["x"], kernel.numels["r0_"], kernel.rsplit_size
    sums = kernel.saved_partial_accumulate
    if not (rows.is_number and width.is_number) or any(part.reduction_type != "sum" for part in sums):
        return None
    rows, width = int(rows), int(width)
    # All programs go through as many rows, and `partial_sums.py` adds up their parts.
    if rows % split or rows // split > MOST_PARTS or width % COLUMNS or not _shows(len(sums), rows, width, split):
        return None
    for name, pointer in kernel.args.output_buffers.items():
        if not isinstance(pointer, str) or not _is_plain(V.graph.get_buffer(name), rows * width):
            continue
        itemsize = V.graph.get_dtype(name).itemsize
        at_once = rows_at_once(split, width)
        needed = -(-4 * len(sums) // itemsize // at_once) * at_once
        loan = Loan(pointer, rows // split, split, needed, at_once, width, itemsize)
        if 4 * needed <= split and (found := sources(source, loan)) is not None:
            return name, loan, *found
    return None


def _is_plain(buffer: Any, numel: int) -> bool:
    """Whether a buffer is a matrix in memory of its own, of elements that parts fit in place of."""
    layout = buffer.get_layout()
    return (
        type(layout) is FixedLayout
        and layout.is_contiguous()
        and layout.offset == 0
        and bool(buffer.get_numel() == numel)
        and layout.dtype.itemsize in (2, 4)
    )


def _shows(sums: int, rows: int, width: int, split: int) -> bool:
    """Whether the parts matter to the memory that a graph takes."""
    graph: Any = V.graph.module.graph
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.dtype == torch.bool and value.numel() >= rows * width:
            return False
    hint = V.graph.sizevars.optimization_hint
    values: Any = (*V.graph.graph_inputs.values(), *V.graph.graph_outputs)
    tensors = {value.get_name(): value for value in values if isinstance(value, IRNode) and value.has_tensor_output()}
    nbytes = sum(hint(x.get_numel(), fallback=0) * x.get_dtype().itemsize for x in tensors.values())
    return bool(4 * sums * width * (rows // split) > SHARE * nbytes)


def sources(source: str, loan: Loan) -> tuple[str, str] | None:
    """Of the kernel that leaves rows out, and of the one that computes them; None: it is written in another way."""
    lines = source.splitlines(keepends=True)
    stores = [line for line in lines if line.lstrip().startswith("tl.store(")]
    own = [line for line in stores if _is_row(line, loan, source)]
    parts = [line for line in stores if _STORED_SUM.fullmatch(line.strip())]
    into = sum(f"({loan.pointer} + " in line for line in stores)
    known = _FIRST_ROW, _LOOP, _GRID, _OVERWRITES_NOTHING
    if len(own) != 1 or into != 1 or not parts or any(source.count(text) != 1 for text in known):
        return None
    first = "".join(
        _left_out(line, loan) if line in own else _into_rows(line, loan) if line in parts else line for line in lines
    )
    rest = "".join(line for line in lines if line in own or (line not in stores and not _adds_up(line)))
    # One program for the rows that are computed at a time.
    row = f"tl.program_id(0) * {loan.at_once}"
    offset = f"    xoffset = {row} // {loan.rows} * {loan.split} + {loan.kept} + {row} % {loan.rows}\n"
    grid = f"'grid_type': 'FixedGrid', 'fixed_grid': ('{loan.programs * loan.rows // loan.at_once}', '1', '1')"
    for old, new in ((_FIRST_ROW, offset), (_LOOP, "    for _ in tl.range(0, XBLOCK, "), (_GRID, grid)):
        rest = rest.replace(old, new)
    return first, _launched_early(rest)


def _is_row(line: str, loan: Loan, source: str) -> bool:
    """Whether it stores the elements of the row that the loop has come to."""
    if (found := _STORE.fullmatch(line.strip())) is None:
        return False
    pointer, column, width, row, *_ = found.groups()
    known = f" {column} = r0_index\n" in source and f" {row} = xindex\n" in source
    return pointer == loan.pointer and int(width) == loan.width and known


def _left_out(line: str, loan: Loan) -> str:
    found = _STORE.fullmatch(line.strip())
    assert found is not None
    *_, row, _, mask = found.groups()
    is_first = f"({row} - xoffset < {loan.kept})"
    both = is_first if mask == "None" else f"{mask} & {is_first}"
    return f"{line[: line.rindex(', ')]}, {both})\n"


def _into_rows(line: str, loan: Loan) -> str:
    found = _STORED_SUM.fullmatch(line.strip())
    assert found is not None
    offset = int(found[1]) * loan.width
    return f"    tl.store(ws_ptr + (xoffset + {loan.kept}) * {loan.row} + {offset} + r0_index, {found[2]})\n"


def _adds_up(line: str) -> bool:
    return bool(re.search(r"\baccum\d+\b", line)) or line.startswith("    split_size = ")


def _launched_early(source: str) -> str:
    """It is short, and follows a kernel that is."""
    alone, early = (
        "".join(f"    {statement}\n" for statement in beginning(waits=waits, is_followed=True))
        for waits in (False, True)
    )
    if not is_supported() or early in source or source.count(alone) != 1:
        return source
    return source.replace(alone, early).replace("'launch_pdl': False", "'launch_pdl': True")
