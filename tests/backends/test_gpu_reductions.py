"""How Inductor reduces on a GPU. That its kernels are right is tested with those of all patterns."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import sympy
import torch
import torch._inductor.codegen.triton as triton_code
import torch._inductor.config as config
import torch._inductor.lowering as lowering
import torch.nn.functional as F
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.common import CSEProxy
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.codegen.triton import TritonKernel, TritonOverrides, TritonSymbols
from torch._inductor.ir import StorageBox
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.scheduler import ForeachKernelSchedulerNode, MixOrderReduction, Scheduler
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V

import aotkit
from aotkit.torch_private.kernel_changes import dependent_launches, gathered, mixed_reductions
from aotkit.torch_private.kernel_changes.mixed_reductions import programs
from aotkit.torch_private.kernel_changes.partial_sums import added_up, kernel_that_adds_up, nodes_added_up
from aotkit.torch_private.kernel_changes.row_reductions import warps, whole_rows
from tests.kernel_changes import needs_change
from tests.sweeping import GPU_KIND

H200 = 132  # multiprocessors


def is_hopper():
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


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


@needs_change("whole_rows")
def test_long_rows_are_reduced_in_one_go_and_longer_ones_and_columns_are_not(in_one_go):
    assert not in_one_go(4096)
    with whole_rows():
        assert in_one_go(4096)
        assert in_one_go(16384)
        assert not in_one_go(16385)
        assert not in_one_go(4096, ReductionHint.OUTER)
        assert not in_one_go(4096, read=8)  # which of the row's elements is not 0
    assert not in_one_go(4096)


@needs_change("whole_rows")
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
        (8192, 768, 14 * 1024, (16, True)),  # BERT's layer norm: 35 us, instead of 41 with 64 rows
        (8192, 3072, 4 * 4096, (16, True)),  # its gelu: 60 us, instead of 65 with 64 rows and 58 with 32
    ],
)
def test_programs_that_sum_columns_are_few_and_load_rows_ahead(rows, width, nbytes, expected):
    assert programs(rows, width, nbytes, H200) == expected


def test_programs_that_load_masks_take_one_row_at_a_time():
    """Measured: 39 us, instead of 249 with two."""
    assert programs(8192, 768, 20 * 1024, H200) == (64, True)
    assert programs(8192, 768, 20 * 1024, H200, has_bytes=True) == (32, True)


OF_ALL_ROWS = [
    "tmp1 = tl.load(in_ptr1 + (r0_1), None, eviction_policy='evict_last').to(tl.float32)",
    "tmp2 = tl.load(in_ptr2 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)",
]
OF_ONE_ROW = [
    "tmp0 = tl.load(in_ptr0 + (r0_1 + 4096*x0), None)",
    "tmp3 = tl.load(in_ptr3 + (x0), xmask, eviction_policy='evict_last')",
    "tmp4 = tl.load(in_ptr4 + (tl.broadcast_to(tmp3, [XBLOCK, R0_BLOCK])), r0_mask & xmask, other=0.0)",
    "tmp5 = in_ptr5",
]


@pytest.mark.parametrize(("width", "are_held"), [(4096, True), (16384, False)])  # in registers, beside two sums
def test_what_all_rows_have_in_common_is_loaded_before_them(monkeypatch, width, are_held):
    monkeypatch.setattr(mixed_reductions, "_codegen_body", lambda kernel: None)
    kernel = SimpleNamespace(
        mix_order_reduction=True,
        body=IndentedBuffer(),
        loads=IndentedBuffer(),
        numels={"r0_": sympy.Integer(width)},
        saved_partial_accumulate=[None, None],
    )
    kernel.loads.writelines([OF_ONE_ROW[0], *OF_ALL_ROWS, *OF_ONE_ROW[1:]])
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        mixed_reductions._codegen_loop(kernel)
    before = OF_ALL_ROWS if are_held else []
    assert kernel.body.getvalue().split("\n")[:-1] == before
    in_loop = kernel.loads.getvalue().split("\n")[:-1]
    assert sorted(in_loop) == sorted({*OF_ONE_ROW, *OF_ALL_ROWS} - set(before))


def mean_loss(logits, targets):
    return F.cross_entropy(logits, targets)


def mean_of_rows(table, rows):
    return table[rows, 3].mean()


@needs_change("stored_gathers")
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


LARGEST = {torch.bool: True, torch.int64: 2**62, torch.float16: torch.inf, torch.float64: torch.inf}


def extrema(x, y):
    return x.amax(-1), x.amin(-1), torch.maximum(x, y), torch.minimum(x, y)


@pytest.mark.parametrize("dtype", [*LARGEST, torch.float32, torch.bfloat16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("width", [1000, pytest.param(20000, marks=GPU_KIND)])  # in one go, and by a loop
def test_extrema_keep_nan_in_every_type(device, dtype, width):
    x, y = (torch.randint(-99, 99, (64, width), device=device).to(dtype) for _ in range(2))
    x[3, 7], x[4] = LARGEST.get(dtype, 100), x[4, 0]
    if dtype.is_floating_point:
        x[5, width // 2] = y[6, width // 3] = x[7, 1] = y[7, 1] = torch.nan
        x[8], x[9, 9] = -torch.inf, torch.inf
    for found, expected in zip(aotkit.compile(extrema, backend="inductor")(x, y), extrema(x, y), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("width", [1000, 20000])
def test_the_sum_of_a_softmax_is_as_exact_as_its_type(device, width):
    """With differences to the maximum of any size, and a maximum that is far from 0."""
    x = torch.randn(64, width, device=device) * torch.logspace(-3, 3, 64, device=device)[:, None]
    x[::2] += 300
    x[5, 1:] = -torch.inf
    x[7, 3], x[9, 3] = torch.nan, torch.inf
    targets = torch.zeros(64, dtype=torch.int64, device=device)

    def losses(x):
        return F.cross_entropy(x, targets, reduction="none")

    found, exact, eager = aotkit.compile(losses, backend="inductor")(x), losses(x.double()), losses(x)
    torch.testing.assert_close(found, eager, equal_nan=True)
    finite = exact.isfinite()
    error = (found - exact)[finite].abs().max()
    assert error <= 2 * (eager - exact)[finite].abs().max() + 1e-6


@needs_change("quick_softmax_sums")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_exponentials_are_quick_where_only_their_sum_is_needed():
    x, targets = torch.randn(64, 4096, device="cuda"), torch.zeros(64, dtype=torch.int64, device="cuda")
    for function, inputs, expected in ((mean_loss, (x, targets), "tl_math.exp("), (softmax, (x,), "libdevice.exp(")):
        kernels = aotkit.compile(function, backend="inductor").explain(*inputs).kernels.kernels
        found = set(re.findall(r"\w+\.exp\(", "".join(k.kernel.code for k in kernels)))
        assert found == {expected}


def softmax(x):
    return x.softmax(-1)


@pytest.mark.parametrize(
    ("itemsize", "width", "expected"),
    [(2, 1024, 1), (2, 4096, 2), (2, 12288, 8), (4, 4096, 4), (4, 12288, 16), (1, 4096, 2), (16, 16384, 32)],
)
def test_programs_that_only_load_a_row_have_few_threads(itemsize, width, expected):
    assert warps(itemsize * width, width) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_target_that_is_no_class_is_an_error():
    code = """
import torch, aotkit
x, targets = torch.randn(4096, 4096, device="cuda"), torch.full((4096,), 4096, device="cuda")
loss = aotkit.compile(torch.nn.functional.cross_entropy, backend="inductor", check=False)
print("found", loss(x, targets).item())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode
    assert "found" not in found.stdout
    assert "index out of bounds: 0 <= " in found.stderr


LAUNCH, WAIT = "tl.extra.cuda.gdc_launch_dependents()", "tl.extra.cuda.gdc_wait()"


@pytest.mark.parametrize(
    ("waits", "sums", "cpp_wrapper", "expected"),
    [(True, False, False, [WAIT]), (False, True, False, [LAUNCH]), (False, False, False, []), (False, True, True, [])],
)
def test_a_kernel_that_is_launched_early_waits_before_all_else(monkeypatch, waits, sums, cpp_wrapper, expected):
    monkeypatch.setattr(dependent_launches, "_is_possible", lambda: True)
    kernel = SimpleNamespace(is_combo_kernel=False, mix_order_reduction=sums, triton_meta={"launch_pdl": waits})
    scheduler = SimpleNamespace(nodes=[], current_node=None)
    body = IndentedBuffer()
    body.writeline("first")
    with V.set_graph_handler(SimpleNamespace(cpp_wrapper=cpp_wrapper, scheduler=scheduler)):
        dependent_launches._begin(kernel, body)
    assert body.getvalue().split() == [*expected, "first"]


def test_a_kernel_beside_several_that_are_combined_is_none_of_them(monkeypatch):
    monkeypatch.setattr(dependent_launches, "_is_possible", lambda: True)
    combined = ForeachKernelSchedulerNode.__new__(ForeachKernelSchedulerNode)
    combined.group, combined.is_gpu = (torch.device("cuda"), ((sympy.Symbol("combo_kernel"),),)), lambda: True
    kernel = SimpleNamespace(is_combo_kernel=False, mix_order_reduction=False, triton_meta={"launch_pdl": True})
    body = IndentedBuffer()
    body.writeline("first")
    scheduler = SimpleNamespace(nodes=[combined, kernel, combined], current_node=kernel)
    with V.set_graph_handler(SimpleNamespace(cpp_wrapper=False, scheduler=scheduler)):
        dependent_launches._begin(kernel, body)
    assert body.getvalue().split() == [WAIT, "first"]


STATEMENTS = [
    "index = tl.arange(0, 8)",
    "tmp0 = tl.load(in_ptr0 + index, None)",
    "tmp1 = tl.load(in_ptr1 + index, None)",
    "tmp2, tmp3 = sort(tmp1)",
    "tmp4 = tmp3 + 1",
    "tmp5 = tmp0 + tmp4",
    'tl.device_assert(tmp4 < 8, "too large")',
    "tl.store(out_ptr0 + index, tmp4, None)",
    "tmp6 = tl.load(in_ptr1 + tmp5, None)",
]


@pytest.mark.parametrize(
    ("pointers", "before"),
    [({"in_ptr1"}, [0, 2, 3, 4]), ({"in_ptr0", "in_ptr1"}, [0, 1, 2, 3, 4, 5, 8]), (set(), [0])],
)
def test_only_statements_that_need_no_other_memory_come_before_the_wait(pointers, before):
    found = dependent_launches.apart(STATEMENTS, pointers)
    assert found == tuple([s for i, s in enumerate(STATEMENTS) if (i in before) == early] for early in (True, False))
    assert dependent_launches.apart([*STATEMENTS, "    in a loop"], pointers)[0] == []


def loss_of_a_layer(x, weight, bias, targets):
    logits = F.layer_norm((x * weight + bias).relu(), bias.shape, bias)
    return F.cross_entropy(logits, targets, reduction="sum")


def layer_and_targets():
    leaves = torch.randn(4096, 1024), torch.randn(1024), torch.randn(1024)
    return *(leaf.cuda().requires_grad_() for leaf in leaves), torch.randint(1024, (4096,), device="cuda")


@pytest.mark.skipif(not is_hopper(), reason="needs a CUDA device of compute capability 9.0")
@pytest.mark.parametrize("backend", ["inductor", "cudagraphs:inductor"])
def test_kernels_that_begin_while_another_one_ends_read_what_it_has_written(backend):
    fast = aotkit.compile(loss_of_a_layer, backend=backend, partition="nx_min_cut")
    for _ in range(20):
        *leaves, targets = layer_and_targets()
        results = (f(*leaves, targets) for f in (fast, loss_of_a_layer))
        found, expected = ([y.detach(), *torch.autograd.grad(y, leaves)] for y in results)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-2)


@needs_change("dependent_launches")
@pytest.mark.skipif(not is_hopper(), reason="needs a CUDA device of compute capability 9.0")
def test_kernels_that_begin_early_wait_and_others_do_not():
    fast = aotkit.compile(loss_of_a_layer, backend="inductor", partition="nx_min_cut")
    codes = [launched.kernel.code for launched in fast.explain(*layer_and_targets()).kernels.kernels]
    waiting = [code for code in codes if "gdc_wait()" in code]
    assert waiting == [code for code in codes if "'launch_pdl': True" in code]
    assert 0 < len(waiting) < len(codes)


PARTS = """
first = parts[0 * {number} * {width} : (0 + 1) * {number} * {width}].view({number}, {width}).sum(dim=0)
second = parts[1 * {number} * {width} : (1 + 1) * {number} * {width}].view({number}, {width}).sum(dim=0)
third = parts[2 * ({number}) * ({width}) : (2 + 1) * ({number}) * ({width})].view({number}, {width}).sum(dim=0).to(torch.float16)
fourth = parts[3 * ({number}) * ({width}) : (3 + 1) * ({number}) * ({width})].view({number}, {width}).sum(dim=0).view([{width}, 1]).to(torch.float16)
fifth = parts[4 * {number} * {width} : (4 + 1) * {number} * {width}].view({number}, {width}).amax(dim=0)
"""  # fmt: skip  # noqa: E501


def empty(size, stride, dtype):
    return torch.empty_strided(size, stride, dtype=dtype)


@pytest.mark.parametrize(
    ("number", "width", "kernels"),
    [(6, 32, 1), (6, 36, 0), (2000, 32, 0), ("s0", 32, 0)],  # narrower than a program; too many; not known
)
def test_partial_sums_are_added_up_by_one_kernel_if_it_can(number, width, kernels):
    before = PARTS.format(number=number, width=width).strip().splitlines()
    launched = []

    def launch(kernel, args):
        launched.append((kernel, args))
        return ["stream = 0", "kernel.run()"]

    after = list(added_up(["start = 1", *before, SimpleNamespace()], {}, lambda name: [name.upper()], "cuda", launch))
    assert after[0] == "start = 1"
    code = after[1:-1]
    named = {code[i + 1]: nodes for i, line in enumerate(code) if (nodes := nodes_added_up(line))}
    assert [n for nodes in named.values() for n in nodes] == ["FIRST", "SECOND", "THIRD", "FOURTH", "FIFTH"]
    assert len(launched) == kernels
    assert [kernel_that_adds_up(line) for line in named] == (
        ["kernel", "aten.amax"] if kernels else ["aten.sum"] * 4 + ["aten.amax"]
    )
    if kernels:
        ((kernel, args),) = launched
        assert args == ["parts", "first", "second", "third", "fourth", str(4 * width)]
        assert list(kernel.signature.values()) == ["*fp32", "*fp32", "*fp32", "*fp16", "*fp16", "i32"]
        exec("\n".join(code[:4]), values := {"empty_strided_cuda": empty, "torch": torch})
        results = [values[name] for name in args[1:5]]
        assert {result.dtype for result in results[2:]} == {torch.float16}
        assert "fourth = fourth.view([32, 1])" in code
    else:
        assert [line for line in code if nodes_added_up(line) is None] == before


def test_torch_compile_is_left_alone(device):
    def parts():
        functions = StorageBox.should_realize_on_reuse, StorageBox.has_exceeded_max_reads, MixOrderReduction.can_fuse
        functions += lowering._make_reduction_inner, InductorChoices.can_fuse
        functions += TritonOverrides.maximum, triton_code.get_triton_reduction_function, TritonKernel.reduction
        functions += TritonKernel.codegen_body, TritonKernel._filter_pdl, TritonKernel._enable_pdl_codegen
        functions += Scheduler.fuse_nodes, SIMDScheduling.codegen_mix_order_reduction, CSEProxy.partial_accumulate
        functions += TritonSymbols.get_block_shape, SIMDScheduling.codegen_node_schedule_with_kernel
        return *functions, type(V.choices)

    before = parts()
    aotkit.compile(softmax, backend="inductor")(torch.randn(4, 8, device=device))
    assert parts() == before
