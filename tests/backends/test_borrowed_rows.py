"""Parts of sums in rows of a result that are computed last."""

import pytest
import torch
import torch.nn.functional as F

import aotkit
from aotkit.launches.allocations import most_allocated
from aotkit.torch_private.kernel_changes.borrowed_rows import Loan, sources
from tests.kernel_changes import needs_change

# As Inductor writes it: each program doubles some rows, and sums columns of these and of their squares.
KERNEL = """
{{'grid_type': 'MixOrderReductionGrid', 'mutated_arg_names': []}}
def kernel(in_ptr0, out_ptr0, ws_ptr, XBLOCK, RSPLIT_SIZE):
    xnumel = {rows}
    r0_numel = {width}
    xoffset = tl.program_id(0) * RSPLIT_SIZE
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    r0_index = tl.arange(0, r0_numel)[None, :]
    r0_mask = r0_index < r0_numel
    r0_1 = r0_index
    accum0 = tl.full([r0_numel], 0, tl.float32)[None, :]
    accum1 = tl.full([r0_numel], 0, tl.float32)[None, :]
    split_size = min(RSPLIT_SIZE, xnumel - xoffset)
    for _ in tl.range(0, split_size, XBLOCK, num_stages=1):
        x0 = xindex
        xindex = xindex + XBLOCK
        tmp0 = tl.load(in_ptr0 + (r0_1 + {width}*x0), None)
        tmp1 = tmp0 + tmp0
        tl.store(out_ptr0 + (r0_1 + {width}*x0), tmp1, {mask})
        tmp2 = tl.sum(tmp1, 0)
        tmp3 = accum0 + tmp2
        accum0 = tmp3
        tmp4 = tl.sum(tmp1 * tmp1, 0)
        tmp5 = accum1 + tmp4
        accum1 = tmp5
    tl.store(ws_ptr + (tl.program_id(0) + 0 * tl.num_programs(0)) * r0_numel + r0_index, accum0, r0_mask)
    tl.store(ws_ptr + (tl.program_id(0) + 1 * tl.num_programs(0)) * r0_numel + r0_index, accum1, r0_mask)
"""


class Triton:
    """What of Triton's language the kernel needs, for one program."""

    float32 = torch.float32
    arange = staticmethod(torch.arange)
    range = staticmethod(lambda start, end, step, num_stages: range(start, end, step))
    sum = staticmethod(lambda x, dim: x.float().sum(dim))
    full = staticmethod(lambda shape, value, dtype: torch.full(shape, value, dtype=dtype))

    def __init__(self, program):
        self.program_id = lambda axis: program

    def load(self, pointer, mask):
        memory, place = pointer
        return memory[place]

    def store(self, pointer, value, mask):
        memory, place = pointer
        is_stored = torch.ones_like(place, dtype=torch.bool) if mask is None else mask.expand(place.shape)
        memory[place[is_stored]] = value.to(memory.dtype).expand(place.shape)[is_stored]


class Pointer(tuple):
    def __add__(self, offset):
        memory, place = self
        return Pointer((memory, place + offset))


def run(code, programs, x, out, at_once, split):
    for program in range(programs):
        exec(code.partition("\ndef ")[1] + code.partition("\ndef ")[2], names := {"tl": Triton(program)})
        pointers = (Pointer((memory, 0)) for memory in (x, out, out.view(torch.float32)))
        names["kernel"](*pointers, at_once, split)


@pytest.mark.parametrize("mask", ["None", "r0_mask"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_are_computed_when_sums_have_been_added_up(mask, dtype):
    rows, width, split, at_once = 96, 16, 24, 2
    loan = Loan("out_ptr0", rows // split, split, 8 // dtype.itemsize, at_once, width, dtype.itemsize)
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = torch.full((rows * width,), float("nan"), dtype=dtype)
    first, rest = sources(KERNEL.format(rows=rows, width=width, mask=mask), loan)
    run(first, rows // split, x.view(-1), found, at_once, split)
    y = 2 * x
    parts = found.view(torch.float32).view(rows // split, split * loan.row)[:, loan.kept * loan.row :]
    for i, expected in enumerate((y.float(), y.float().square())):
        torch.testing.assert_close(parts[:, i * width : (i + 1) * width].sum(0), expected.sum(0), rtol=1e-3, atol=1e-3)
    run(rest, loan.programs * loan.rows // at_once, x.view(-1), found, at_once, split)
    assert torch.equal(found.view(rows, width), y)
    assert f"'fixed_grid': ('{loan.programs * loan.rows // at_once}', '1', '1')" in rest
    assert "ws_ptr +" not in rest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{width}*x0), tmp1", "8*x0), tmp1"),  # other rows
        ("r0_1 = r0_index", "r0_1 = 1 + r0_index"),
        ("tl.program_id(0) * RSPLIT_SIZE", "tl.program_id(0).to(tl.int64) * RSPLIT_SIZE"),
        ("        tmp2 =", "        tl.store(out_ptr0 + (r0_1 + {width}*x0), tmp1, None)\n        tmp2 ="),  # twice
        ("MixOrderReductionGrid", "Grid1D"),
        ("'mutated_arg_names': []", "'mutated_arg_names': ['in_ptr0']"),  # rows cannot be computed again
    ],
)
def test_what_is_written_in_another_way_stays(old, new):
    assert old in KERNEL
    changed = KERNEL.replace(old, new).format(rows=96, width=16, mask="None")
    assert sources(changed, Loan("out_ptr0", 4, 24, 4, 2, 16, 2)) is None


def rms_norm(x, residual, weight, bias):
    return F.rms_norm(x + residual * 0, weight.shape, weight)


def add_norm(x, residual, weight, bias):
    return F.layer_norm(x + residual, weight.shape, weight, bias)


def with_dropout(x, residual, weight, bias):
    return F.dropout(add_norm(x, residual, weight, bias), 0.1)


def leaves(shape, dtype):
    shapes = shape, shape, shape[-1:], shape[-1:]
    return [torch.randn(size, device="cuda", dtype=dtype, requires_grad=True) for size in shapes]


@needs_change("mixed_reductions")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(2, 2048, 2048), (1, 2048, 12288), (32, 512, 400)], ids=str)
def test_a_normalisation_holds_no_more_than_eager(shape, dtype):
    torch.manual_seed(0)
    inputs = leaves(shape, dtype)
    fast = aotkit.compile(add_norm, backend="inductor", partition="nx_min_cut")
    gradient = torch.randn(shape, device="cuda", dtype=dtype)

    def step(function):
        return lambda: torch.autograd.grad(function(*inputs), inputs, gradient)

    wide = [x.detach().double().requires_grad_() for x in inputs]
    exact = torch.autograd.grad(add_norm(*wide), wide, gradient.double())
    for found, eager, true in zip(step(fast)(), step(add_norm)(), exact, strict=True):
        assert found.dtype == eager.dtype
        error, of_eager = ((some.double() - true).abs().max() for some in (found, eager))
        assert error <= 4 * of_eager + 8 * torch.finfo(dtype).eps * true.abs().max()
    held, of_eager = (most_allocated(step(function), gradient.device) for function in (fast, add_norm))
    assert held <= of_eager


@needs_change("mixed_reductions")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("function", "number"), [(rms_norm, 2), (add_norm, 2), (with_dropout, 1)])
def test_rows_are_borrowed_where_parts_matter(function, number):
    fast = aotkit.compile(function, backend="inductor", partition="nx_min_cut")
    kernels = fast.explain(*leaves((2, 2048, 2048), torch.float16)).kernels.kernels
    assert sum("RSPLIT_SIZE" in launched.kernel.code for launched in kernels) == number
