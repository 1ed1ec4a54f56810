"""Fused patterns of transformers: eager, torch.compile and aotkit's backends in time, memory and share of the roofline.

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
from aotkit.benchmark.overhead_report import machine
from aotkit.benchmark.overhead_variants import with_code_of_its_own
from aotkit.benchmark.pattern_cases import CASES, XFORMERS_SHAPES, Case, Shape, inputs_of
from aotkit.benchmark.pattern_cells import EAGER, FORWARD, STEP, TORCH_COMPILE, Row
from aotkit.benchmark.pattern_check import cotangent_of, difference
from aotkit.benchmark.patterns_report import PatternsReport
from aotkit.benchmark.timing import Step, interleave, spread
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
    "inductor", "inductor_cpp", "nnc", "nvfuser",
    "cudagraphs:inductor", "cudagraphs:inductor_cpp", "cudagraphs:nvfuser",
)  # fmt: skip

Function = Callable[..., Tensor]
Variants = Mapping[str, Callable[[Function], Function]]


def variants() -> Variants:
    """Name of a variant -> what compiles a function; those that can run here."""
    found: dict[str, Callable[[Function], Function]] = {EAGER: lambda fn: fn}
    if _runs_here("inductor"):
        found[TORCH_COMPILE] = _torch_compile
        found[f"{TORCH_COMPILE} max-autotune"] = partial(_torch_compile, mode="max-autotune-no-cudagraphs")
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


def _torch_compile(fn: Function, mode: str | None = None) -> Function:
    return torch.compile(with_code_of_its_own(fn), dynamic=False, mode=mode)


@dataclass(frozen=True)
class Cell:
    """One pattern in one size.

    Attributes:
        step: forward and backward, instead of forward alone without gradients.
    """

    case: Case
    shape: Shape
    dtype: torch.dtype
    step: bool

    def row(self, variant: str) -> Row:
        dtype = str(self.dtype).removeprefix("torch.")
        return Row(self.case.name, STEP if self.step else FORWARD, dtype, list(self.shape), self.case.drops, variant)

    def __str__(self) -> str:
        row = self.row(EAGER)
        return f"{row.pattern} {row.phase} {row.dtype} {row.size}"


def chosen_cells(
    device: str, patterns: str = "*", shapes: str | None = None, dtypes: str | None = None, passes: str = "*"
) -> list[Cell]:
    """All combinations of what is chosen, each a list with commas; the same sizes together.

    Args:
        patterns, passes: names; * and ? match.
        shapes: such as "8x256x512"; None: those of xFormers on "cuda", a small one on "cpu".
        dtypes: names; None: float16 and float32 on "cuda", float32 on "cpu".

    Raises:
        UnknownNameError: a name that nothing has.
        ValueError: a shape that is none.
    """
    names = chosen(patterns.split(","), CASES)
    sizes = DEFAULT_SHAPES[device] if shapes is None else tuple(map(_shape, shapes.split(",")))
    types = chosen((dtypes or DEFAULT_DTYPES[device]).split(","), DTYPES)
    phases = chosen(passes.split(","), (FORWARD, STEP))
    product = itertools.product(types, sizes, names, phases)
    return [Cell(CASES[name], shape, DTYPES[dtype], phase == STEP) for dtype, shape, name, phase in product]


def _shape(text: str) -> Shape:
    sizes = text.split("x")
    if len(sizes) < 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"a shape is two or more sizes, such as 8x256x512, not {text!r}.")
    return tuple(map(int, sizes))


def measure(
    cells: Sequence[Cell],
    rivals: Variants,
    *,
    device: str = "cpu",
    seconds: float,
    progress: Callable[[str], None] | None = None,
) -> PatternsReport:
    """Compile, check and time each cell.

    Args:
        rivals: name -> what compiles a function, as of `variants()`.
        seconds: how long to time each cell; at least seven rounds are played. With 0, caches of compilers are filled.
        progress: called with a line of text before each cell.

    A KeyboardInterrupt leaves out the cell that is being measured, and all after it.
    """
    tell = progress or (lambda text: None)
    report = PatternsReport(machine(device), torch.__version__, device)
    for i, cell in enumerate(cells, 1):
        tell(f"{cell} ({i} of {len(cells)})")
        try:
            report.rows += _rows(cell, rivals, device, seconds)
        except KeyboardInterrupt:
            tell(f"{cell}: interrupted, it and the cells after it are left out")
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
    return Step(lambda: None, lambda: target.copy_(source), None)


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
    cotangent = cotangent_of(call(*inputs)) if cell.step else None

    def prepare() -> None:
        for leaf in leaves:
            leaf.grad = None

    def step() -> None:
        output = call(*inputs)
        if cell.step:
            output.backward(cotangent)  # type: ignore[no-untyped-call]

    prepare()
    step()
    prepare()
    row.peak_bytes = sum(x.nbytes for x in inputs) + most_allocated(step, inputs[0].device)
    prepare()
    return Step(prepare, step, None)
