"""Which values a kernel that goes through rows and sums columns may overwrite; its results: `test_column_sums.py`."""

from types import SimpleNamespace

import pytest
import sympy
import torch
from torch._inductor.dependencies import MemoryDep, StarDep
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V

from aotkit.torch_private.kernel_changes import in_place

NUMBER, WIDTH = sympy.Integer(4096), sympy.Integer(64)
ROW, COLUMN, ELEMENT = sympy.symbols("row column element", integer=True)


def read(index):
    return MemoryDep("saved", index, (ROW, COLUMN), (NUMBER, WIDTH))


OWN, OF_SUM = MemoryDep("saved", ELEMENT, (ELEMENT,), (NUMBER * WIDTH,)), read(WIDTH * ROW + COLUMN)
ELSEWHERE = [read(i) for i in (ROW, COLUMN, NUMBER * COLUMN + ROW, WIDTH * ROW + COLUMN + 1, WIDTH * ROW - COLUMN)]


def named(name, **more):
    return SimpleNamespace(get_name=lambda: name, **more)


@pytest.fixture
def overwrites():
    """Whether a gradient overwrites what is saved, in a kernel with a reduction of rows and a sum of columns.

    All read what is saved; the gradient is made of what the rows are reduced to.
    """

    def found(*, by_norm=OWN, by_sum=OF_SUM, users=(), width=WIDTH, dtype=torch.half, is_kept=True, is_viewed=False):
        names = ["norm", "gradient", "sum", *users]
        users = [named(name, can_inplace=name == "gradient") for name in names]
        scheduler = SimpleNamespace(
            name_to_donated_buffer={
                "saved": named("saved", users=users, node=SimpleNamespace(get_dtype=lambda: dtype))
            },
            name_to_buf={},
            completed_operations={"forward"},
            can_buffer_be_removed_through_fusion=lambda name, kernel: not (is_kept and name == "gradient"),
        )

        def part(name, *reads):
            return named(
                name,
                read_writes=SimpleNamespace(reads=reads),
                get_outputs=lambda: [named(name)],
                node=SimpleNamespace(get_dtype=lambda: torch.half),
                scheduler=scheduler,
            )

        memory = torch.empty(1)
        graph = SimpleNamespace(
            sizevars=SizeVarAllocator(),
            removed_operations={"dead"},
            graph_inputs={"saved": memory, "other": memory},
            graph_input_names=["saved", "other"],
            example_inputs=[memory, memory[:0] if is_viewed else torch.empty(1)],
        )
        with V.set_graph_handler(graph):
            parts = [part("norm", by_norm), part("gradient", OWN), part("sum", by_sum)]
            pairs = in_place.overwritten(parts, NUMBER, width)
        return [(buffer.get_name(), user.get_name()) for buffer, user in pairs] == [("saved", "gradient")]

    return found


def test_what_only_the_kernel_still_reads_is_overwritten(overwrites):
    assert overwrites()
    assert overwrites(users=["forward", "dead"])


@pytest.mark.parametrize("users", [["OUTPUT"], ["a later kernel"]], ids=str)
def test_what_is_needed_later_is_not(overwrites, users):
    assert not overwrites(users=users)


@pytest.mark.parametrize("elsewhere", [*ELSEWHERE, StarDep("saved")], ids=str)
def test_what_is_read_for_another_row_is_not(overwrites, elsewhere):
    assert not overwrites(by_norm=elsewhere)
    assert not overwrites(by_sum=elsewhere)


@pytest.mark.parametrize(
    "otherwise",
    [
        {"width": sympy.Integer(16)},  # fewer elements than threads
        {"width": sympy.Symbol("s0", integer=True)},
        {"dtype": torch.float},
        {"is_kept": False},
        {"is_viewed": True},
    ],
    ids=str,
)
def test_nothing_is_overwritten_by_what_does_not_fit(overwrites, otherwise):
    assert not overwrites(**otherwise)
