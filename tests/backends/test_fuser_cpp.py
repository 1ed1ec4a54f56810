"""The C++ of the backend `fuser`: how precise it is, its threads, and the libraries that it builds."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import aotkit
from aotkit.backends import fuser
from aotkit.backends.fuser import cpp_target
from aotkit.errors import CompileError
from aotkit.torch_private.native import building

pytestmark = pytest.mark.skipif(not building.can_build(), reason="no C++ compiler")
FUSER = aotkit.by_region("fuser", strict=True, min_region_size=1)
SPECIAL = [
    0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 88.7, 88.73, -103.9, -104.5, 128.0,
    -149.0, -150.5, 3e38, -3e38, 0.5, -0.5, 2.5, 1e5, 1e10, 16777216.0,
]  # fmt: skip
# Units in the last place.
FUNCTIONS = {
    torch.exp: 1.1, torch.exp2: 1.1, torch.expm1: 1.6, torch.log: 1.4, torch.log2: 2.5, torch.log10: 2.5,
    torch.log1p: 2.1, torch.sin: 1.8, torch.cos: 1.8, torch.tanh: 2.5, torch.erf: 1.3, torch.sqrt: 0.51,
    torch.floor: 0, torch.ceil: 0, torch.round: 0, torch.trunc: 0,
}  # fmt: skip


def values():
    """Special ones, one in 9973 of all that there are, and many between -20 and 20."""
    bits = np.arange(0, 2**32, 9973, dtype=np.uint64).astype(np.uint32)
    near = np.random.default_rng(0).uniform(-20, 20, 200_000)
    parts = [torch.tensor(SPECIAL), torch.from_numpy(bits.view(np.float32)), torch.from_numpy(near).float()]
    return torch.cat(parts)


def test_functions_are_precise_for_all_numbers():
    x = values()
    got = aotkit.compile(lambda x: [f(x) for f in FUNCTIONS], backend=FUSER, check=False)(x)
    for (function, units), value in zip(FUNCTIONS.items(), got, strict=True):
        exact = function(x.double())
        rounded = exact.float()
        assert torch.equal(value.isnan(), rounded.isnan()), function
        assert torch.equal(value.isinf(), rounded.isinf()), function
        finite = rounded.isfinite()
        unit = torch.from_numpy(np.spacing(rounded[finite].abs().numpy())).double()
        worst = ((value[finite].double() - exact[finite]).abs() / unit).max().item()
        assert worst <= units, function
        zeros = (rounded == 0) & (value == 0)
        assert torch.equal(value[zeros].signbit(), rounded[zeros].signbit()), function


def test_half_precision_is_rounded_as_by_aten():
    x = values()
    for dtype in (torch.float16, torch.bfloat16):
        fn = aotkit.compile(lambda x: x.to(dtype), backend=FUSER, check=False)  # noqa: B023
        assert torch.equal(fn(x).nan_to_num(7.0), x.to(dtype).nan_to_num(7.0))
        narrow = x.to(dtype)
        assert torch.equal(
            (narrow * 1.5).nan_to_num(7), aotkit.compile(lambda x: x * 1.5, backend=FUSER)(narrow).nan_to_num(7)
        )


def test_long_sums_are_precise():
    x = torch.rand(3_000_000, dtype=torch.float32)
    for shape, dims in (((3_000_000,), 0), ((3, 1_000_000), 1), ((1_000_000, 3), 0), ((300, 2500, 4), (0, 1))):
        fn = aotkit.compile(lambda x: (x + 1).sum(dims), backend=FUSER, check=False)  # noqa: B023
        exact = (x.double() + 1).view(shape).sum(dims)
        assert ((fn(x.view(shape)) - exact).abs() / exact).max() < 1e-6


def test_nothing_is_contracted():
    x = torch.randn(1000)
    fn = aotkit.compile(lambda x, y: x * x - y * y, backend=FUSER, check=False)
    assert fn(x, x.clone()).abs().max() == 0


def test_a_division_by_a_number_of_the_row_is_exact_where_it_matters():
    rows = torch.tensor([[3.0, 1.0, 2.0], [0.0, 0.0, 0.0], [1e38, 3e38, math.inf], [1e-40, 3e-40, 0.0]]).repeat(1, 40)
    divide = lambda x: (x / x.amax(1, keepdim=True), x / (x - x).sum(1, keepdim=True))  # noqa: E731
    fn = aotkit.compile(divide, backend=FUSER, check=False)
    for got, want in zip(fn(rows), divide(rows), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-7, atol=0, equal_nan=True)
    assert (fn(rows)[0][0] == 1).sum() == 40


def norm(x, w):
    return torch.nn.functional.layer_norm(x, (256,), w).sin()


def test_results_are_the_same_with_any_number_of_threads():
    fn = aotkit.compile(norm, backend=FUSER, check=False)
    x, w = torch.randn(2000, 256, requires_grad=True), torch.randn(256, requires_grad=True)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            y = fn(x, w)
            found.append([y, *torch.autograd.grad(y, [x, w], torch.ones_like(y))])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


FORKED = """
import os, sys, torch, aotkit
torch.set_num_threads(2)
fn = aotkit.compile(lambda x: x.sin().exp(), backend="fuser", check=False)
x = torch.randn(1000, 1000)
y = fn(x)
child = os.fork()
if child == 0:
    os._exit(0 if fn(x).numpy().tobytes() == y.numpy().tobytes() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.sweep
def test_a_forked_process_does_not_wait_for_threads_that_it_has_not():
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=100)


def test_there_is_one_pool_of_threads():
    with open(f"/proc/{os.getpid()}/maps") as file:
        aotkit.compile(lambda x: x.sin().exp(), backend=FUSER)(torch.randn(300))
        assert len({line.split()[-1] for line in file if "libgomp" in line}) == 1


def test_a_library_is_built_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("AOTKIT_KEEP", "1")
    code = f'// {os.urandom(8).hex()}\nextern "C" int answer() {{ return 42; }}\n'
    assert cpp_target.Build(code).library().answer() == 42
    monkeypatch.setattr(cpp_target.Build, "_start", lambda self: pytest.fail("built again"))
    assert cpp_target.Build(code).library().answer() == 42


def test_open_sizes():
    fn = aotkit.compile(lambda x: x.softmax(-1) * x.sum(0), backend=FUSER, dynamic=True, check=False)
    for shape in ((5, 37), (6, 41), (1, 3), (5, 37)):
        x = torch.randn(shape)
        torch.testing.assert_close(fn(x), x.softmax(-1) * x.sum(0))


def test_what_does_not_compile_says_so():
    with pytest.raises(CompileError, match=r"does not compile: .*expected"):
        cpp_target.Build("int x = ;").library()


def test_without_a_compiler_it_says_why(monkeypatch):
    monkeypatch.setattr(cpp_target, "can_build", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no C++ compiler: install g++" in fuser.unavailable()
    graph = torch.fx.Graph()
    graph.placeholder("x").meta["val"] = torch.empty(3)
    assert "for a tensor on 'cpu', there is no C++ compiler" in fuser.declines(graph.find_nodes(op="placeholder")[0])


def test_a_part_that_no_axes_make_up_leaves_the_rest_fused():
    def fn(x):
        heads = torch.nn.functional.rms_norm(x.view(5, 6, 4), (4,)).view(5, 24)
        return heads[:, 3:13].exp().sin()

    x = torch.randn(5, 24, requires_grad=True)
    fast = aotkit.compile(fn, backend="fuser")
    fast(x).sum().backward()
    assert fast.report(x).passed
    forward = fast.graphs(x).regions["forward"]
    assert "a part of a dimension of [6, 4]" in forward.outside["slice_1"][0]
    assert len(forward.regions) == 2
    assert not any(region.failure for region in forward.regions)


@pytest.mark.sweep
def test_a_forked_process_leaves_the_folder_of_its_parent():
    code = """
import os, sys
from aotkit.backends.fuser.launches import own_folder
folder = own_folder()
if not (child := os.fork()):
    sys.exit(own_folder() == folder)
assert os.waitpid(child, 0)[1] == 0
assert folder.exists()
print(folder)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not os.path.exists(done.stdout.strip())
