"""Cells x variants -> times and peaks.

All variants of a cell run interleaved in this process, after the results of each were compared with float64.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from aotkit.benchmark.choice import chosen
from aotkit.benchmark.patterns.cases import CASES, Function, Pattern, Shape, inputs_of
from aotkit.benchmark.patterns.cells import FORWARD, STEP, Row
from aotkit.benchmark.patterns.check import cotangents_of, difference, outputs_of
from aotkit.benchmark.patterns.held_out import HELD_OUT, HeldOut
from aotkit.benchmark.patterns.report import PatternsReport
from aotkit.benchmark.report import machine
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE, torch_compiled
from aotkit.benchmark.timing import Step, Tell, interleave, silent, spread
from aotkit.benchmark.workloads import XFORMERS_SHAPES
from aotkit.compiler import compile
from aotkit.errors import UnavailableError
from aotkit.launches import most_allocated
from aotkit.registry import get_backend

COPY = "copy"
PARTITIONS = ("min_cut", "nx_min_cut")
DTYPES = {"float16": torch.float16, "float32": torch.float32, "bfloat16": torch.bfloat16}
DEFAULT_DTYPES = {"cuda": "float16,float32", "cpu": "float32"}
DEFAULT_SHAPES: Mapping[str, Sequence[Shape]] = {"cuda": XFORMERS_SHAPES, "cpu": XFORMERS_SHAPES[:1]}
BACKENDS = (
    "fuser", "inductor", "inductor_cpp", "nnc", "nvfuser",
    "cudagraphs:inductor", "cudagraphs:inductor_cpp", "cudagraphs:nvfuser",
)  # fmt: skip

Variants = Mapping[str, Callable[[Function], Function]]


def variants() -> Variants:
    """Name of a variant -> what compiles a function; those that can run here."""
    found: dict[str, Callable[[Function], Function]] = {EAGER: lambda fn: fn}
    if _runs_here("inductor"):
        found[TORCH_COMPILE] = partial(torch_compiled, dynamic=False)
        mode = "max-autotune-no-cudagraphs"
        found[f"{TORCH_COMPILE} max-autotune"] = partial(torch_compiled, dynamic=False, mode=mode)
    for backend in filter(_runs_here, BACKENDS):
        for partition in PARTITIONS:
            found[f"{backend} {partition}"] = partial(compile, backend=backend, partition=partition)
    return found


def _runs_here(backend: str) -> bool:
    try:
        get_backend(backend)
    except UnavailableError:
        return False
    return True


@dataclass(frozen=True)
class Cell:
    """One pattern in one size."""

    case: Pattern
    shape: Shape
    dtype: torch.dtype
    step: bool  # forward and backward, instead of forward alone without gradients

    def row(self, variant: str) -> Row:
        case, phase, dtype = self.case, STEP if self.step else FORWARD, str(self.dtype).removeprefix("torch.")
        drops, held_out = case.mask is not None, isinstance(case, HeldOut)
        return Row(case.name, phase, dtype, list(self.shape), drops, variant, held_out=held_out)

    def __str__(self) -> str:
        row = self.row(EAGER)
        return f"{row.pattern} {row.phase} {row.dtype} {row.size}"


def chosen_cells(
    device: str,
    patterns: str = "*",
    shapes: str | None = None,
    dtypes: str | None = None,
    passes: str = "*",
    *,
    held_out: bool = False,
) -> list[Cell]:
    """All combinations of what is chosen, each a list with commas; the same sizes together.

    Args:
        patterns, passes: names; * and ? match.
        shapes: such as "8x256x512"; None: those of xFormers on "cuda", a small one on "cpu".
        dtypes: names; None: float16 and float32 on "cuda", float32 on "cpu".
        held_out: the patterns of `held_out.py` instead of the grid, each in its own shape, and for None its own type.

    Raises:
        UnknownNameError: a name that nothing has.
        ValueError: a shape that is none, or one for held-out patterns.
    """
    steps = chosen(passes, {FORWARD: False, STEP: True}).values()
    if held_out:
        if shapes is not None:
            raise ValueError("held-out patterns have shapes of their own.")
        types = chosen(dtypes, DTYPES).values() if dtypes else (None,)
        own = itertools.product(types, chosen(patterns, HELD_OUT).values(), steps)
        return [Cell(case, case.shapes[device], dtype or case.dtype, step) for dtype, case, step in own]
    cases = chosen(patterns, CASES).values()
    sizes = DEFAULT_SHAPES[device] if shapes is None else tuple(map(_shape, shapes.split(",")))
    product = itertools.product(chosen(dtypes or DEFAULT_DTYPES[device], DTYPES).values(), sizes, cases, steps)
    return [Cell(case, shape, dtype, step) for dtype, shape, case, step in product]


def _shape(text: str) -> Shape:
    sizes = text.split("x")
    if len(sizes) < 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"a shape is two or more sizes, such as 8x256x512, not {text!r}.")
    return tuple(map(int, sizes))


def measure(
    cells: Sequence[Cell], rivals: Variants, *, device: str = "cpu", seconds: float, progress: Tell = silent
) -> PatternsReport:
    """Compile, check and time each cell.

    Args:
        rivals: name -> what compiles a function, as of `variants()`.
        seconds: how long to time each cell; at least seven rounds are played. With 0, caches of compilers are filled.

    A KeyboardInterrupt leaves out the cell that is being measured, and all after it.
    """
    report = PatternsReport(machine(device), torch.__version__, device)
    for i, cell in enumerate(cells, 1):
        progress(f"{cell} ({i} of {len(cells)})")
        try:
            report.rows += _rows(cell, rivals, device, seconds)
        except KeyboardInterrupt:
            progress(f"{cell}: interrupted, it and the cells after it are left out")
            break
    return report


def _rows(cell: Cell, rivals: Variants, device: str, seconds: float) -> list[Row]:
    # What Dynamo compiled for one cell must not slow the next one's guards.
    torch.compiler.reset()
    inputs = inputs_of(cell.case, cell.shape, cell.dtype, device, step=cell.step)
    ideal = cell.case.ideal_bytes(cell.shape, cell.dtype.itemsize, step=cell.step)
    rows, steps = [], {COPY: _copy(ideal, device)}
    for name, compiler in rivals.items():
        row = cell.row(name)
        rows.append(row)
        try:
            steps[name] = _set_up(row, cell, compiler, inputs)
        except Exception as e:
            row.fail(e)
    times, failed = interleave(steps, seconds, cuda=device == "cuda")
    if COPY in failed:
        raise failed[COPY]
    for row in rows:
        row.ideal_bytes, row.ideal_seconds = ideal, spread(times[COPY]["forward"].main).median
        if row.variant in times:
            samples = times[row.variant]["forward"]
            row.kernel, row.wall = spread(samples.main), spread(samples.wall)
        elif row.variant in failed:
            row.fail(failed[row.variant])
    return rows


def _copy(nbytes: float, device: str) -> Step:
    """A copy that reads and writes so many bytes."""
    source = torch.zeros(round(nbytes) // 2, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return Step(lambda: None, lambda: target.copy_(source))


def _set_up(row: Row, cell: Cell, compiler: Callable[[Function], Function], inputs: Sequence[Tensor]) -> Step:
    """Compile a variant, check it and measure its peak; fills `row`.

    Raises:
        ValueError: its results are wrong.
    """
    call = compiler(cell.case.fn)
    start = time.perf_counter()
    call(*inputs)
    row.compile_seconds = time.perf_counter() - start
    if (problem := difference(cell.case, call, inputs)) is not None:
        raise ValueError(problem)
    leaves = [x for x in inputs if x.requires_grad]
    cotangents = cotangents_of(outputs_of(call, inputs)) if cell.step else None

    def prepare() -> None:
        for leaf in leaves:
            leaf.grad = None

    def step() -> None:
        outputs = outputs_of(call, inputs)
        if cell.step:
            torch.autograd.backward(outputs, cotangents)

    prepare()
    step()
    prepare()
    row.peak_bytes = sum(x.nbytes for x in inputs) + most_allocated(step, inputs[0].device)
    prepare()
    return Step(prepare, step)
