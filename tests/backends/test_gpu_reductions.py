"""How Inductor reduces on a GPU. That its kernels are right is tested with those of all patterns."""

from types import SimpleNamespace

import pytest
import sympy
import torch
import torch._inductor.config as config
import torch._inductor.lowering as lowering
import torch.nn.functional as F
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.ir import StorageBox
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.scheduler import MixOrderReduction
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V

import aotkit
from aotkit.aot import gathered
from aotkit.aot.mixed_reductions import programs
from aotkit.aot.row_reductions import whole_rows

H200 = 132  # multiprocessors


@pytest.fixture
def in_one_go():
    def is_persistent(length, hint=ReductionHint.INNER, cooperative=False, read=None):
        """Of 8 rows; `read`: elements, else whole rows."""
        rows = sympy.Integer(8)
        reads = [SimpleNamespace(get_numel=lambda: rows * length if read is None else sympy.Integer(read))]
        features = SimpleNamespace(
            numel=rows,
            reduction_numel=sympy.Integer(length),
            get_reduction_hint=lambda: hint,
            reduction_nodes=lambda: [SimpleNamespace(read_writes=SimpleNamespace(reads=reads))],
        )
        with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
            return V.choices.should_use_persistent_reduction(features, cooperative)

    return is_persistent


def test_long_rows_are_reduced_in_one_go_and_longer_ones_and_columns_are_not(in_one_go):
    assert not in_one_go(4096)
    with whole_rows():
        assert in_one_go(4096)
        assert in_one_go(16384)
        assert not in_one_go(16385)
        assert not in_one_go(4096, ReductionHint.OUTER)
        assert not in_one_go(4096, read=8)  # which of the row's elements is not 0
    assert not in_one_go(4096)


def test_somebody_elses_choices_stay(in_one_go):
    class Others(InductorChoices):
        pass

    with V.set_choices_handler(Others()), whole_rows():
        assert not in_one_go(4096)
    with whole_rows(), config.patch("triton.persistent_reductions", False):
        assert not in_one_go(512)


@pytest.mark.parametrize(
    ("rows", "width", "nbytes", "expected"),
    [
        # Measured: 126.2 us, instead of 159.4 with 16 rows that are not loaded ahead and 136.1 with 32 that are.
        (8192, 4096, 3 * 8192, (64, True)),
        (8192, 4096, 3 * 16384, (32, True)),  # what 64 rows load ahead does not fit
        (2048, 4096, 3 * 8192, (16, True)),  # more rows would leave multiprocessors without a program
        (8192, 1024, 3 * 2048, (16, True)),  # fewer programs would load too little at once
        (2048, 12288, 4 * 65536, (16, False)),
    ],
)
def test_programs_that_sum_columns_are_few_and_load_rows_ahead(rows, width, nbytes, expected):
    assert programs(rows, width, nbytes, H200) == expected


def mean_loss(logits, targets):
    return F.cross_entropy(logits, targets)


def mean_of_rows(table, rows):
    return table[rows, 3].mean()


@pytest.mark.parametrize(("function", "moves"), [(mean_loss, True), (mean_of_rows, False)])
def test_what_a_loss_looks_up_is_looked_up_with_what_is_made_of_its_row(device, monkeypatch, function, moves):
    monkeypatch.setattr(gathered, "is_on_gpu", lambda value: True)
    x, numbers = torch.randn(64, 4096, device=device), torch.randint(64, (64,), device=device)
    with config.patch(force_disable_caches=True):  # they do not know how a graph was compiled
        compiled = aotkit.compile(function, backend="inductor")
        torch.testing.assert_close(compiled(x, numbers), function(x, numbers))
    code = "".join(k.kernel.code for k in compiled.explain(x, numbers).kernels.kernels)
    separators = {"cuda": ("@triton.jit", "device_assert", "tl.sum"), "cpu": ("\n    {\n", "TORCH_CHECK", "tmp_acc0 +")}
    start, check, add = separators[device.type]
    loops = code.split(start)
    (found,) = (i for i, loop in enumerate(loops) if check in loop)  # its number is checked where it is looked up
    sums = [i for i, loop in enumerate(loops) if add in loop]
    assert sum(i <= found for i in sums) == 1
    assert (sums[-1] > found) == moves


def test_torch_compile_is_left_alone(device):
    def parts():
        functions = StorageBox.should_realize_on_reuse, StorageBox.has_exceeded_max_reads, MixOrderReduction.can_fuse
        functions += lowering._make_reduction_inner, InductorChoices.can_fuse
        return *functions, SIMDScheduling._codegen_mix_order_reduction, type(V.choices)

    before = parts()
    aotkit.compile(lambda x: x.softmax(-1), backend="inductor")(torch.randn(4, 8, device=device))
    assert parts() == before
