"""What compilers from elsewhere share, held to what it promises them, by a stand-in that needs none of them."""

import subprocess
import sys
import threading

import pytest
import torch
from torch.fx import Interpreter

import aotkit
from aotkit.backends.foreign import compiling, exported, foreign_backend, missing
from aotkit.backends.foreign import operators as ops
from aotkit.passes import results_of
from tests.backends.foreign_cases import cases, values

aten = torch.ops.aten
COMPILERS = {"iree": "iree.compiler", "jax": "jax", "onnxruntime": "onnxruntime", "tvm": "tvm"}  # name -> module


def interpreted(gm):
    """A compiler that runs graphs as they are, and returns contiguous results as the others do."""
    return lambda: lambda inputs: [x.contiguous() for x in Interpreter(gm).run(*inputs)]


def stand_in(build=interpreted, **options):
    return foreign_backend("the stand-in", build, packages={}, **options)


def strictly(backend):
    """Regions of single operations, too; what does not compile is an error."""
    return aotkit.by_region(backend, "nop", strict=True, min_region_size=1)


DTYPES = [torch.float32, torch.bool]


@pytest.mark.parametrize(
    "dtype",
    [*DTYPES, *(pytest.param(d, marks=pytest.mark.sweep) for d in (torch.int64, torch.float16, torch.uint8))],
    ids=str,
)
def test_the_spelling_computes_what_aten_does(dtype):
    x, y = values(dtype)
    functions = cases(dtype)
    compiled = aotkit.compile(
        lambda x, y: {name: function(x, y) for name, function in functions.items()},
        backend=strictly(stand_in()),
        check=False,
    )
    for name, results in compiled(x, y).items():
        for got, want in zip(results, functions[name](x, y), strict=True):
            torch.testing.assert_close(
                got, want, rtol=1e-3, atol=1e-3, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
            )
    if dtype is torch.float32:
        taken = {str(n.target) for n in compiled.graphs(x, y).forward.graph.nodes}
        assert not sorted({str(op) for op in ops.OPERATORS - ops.BITS} - taken), "have no case"


def test_the_spelling_has_one_word_for_a_thing():
    """Operands of the type that is computed in; no alpha, no limits, no roots; sums of half precision in float32."""
    graphs = []

    def build(gm):
        graphs.append(gm)
        return interpreted(gm)

    def function(x, n):
        y = torch.add(x, n, alpha=2).clamp(0, 1).relu() ** 0.5 + torch.maximum(x, n) + (x != n)
        return y.squeeze(0).sum(-1), (x * 2).flatten(), (n | 3) ^ 1

    x, n = torch.rand(1, 4, 4).half(), torch.arange(16).view(1, 4, 4)
    aotkit.compile(function, backend=strictly(stand_in(build)), check=False)(x, n)
    nodes = [n for gm in graphs for n in gm.graph.nodes if n.op == "call_function"]
    gone = {aten.clamp.default, aten.relu.default, aten.maximum.default, aten.pow.Tensor_Scalar, aten.ne.Tensor}
    assert nodes
    assert not gone.intersection(n.target for n in nodes)
    for node in nodes:
        dtypes = {i.meta["val"].dtype for i in node.all_input_nodes} - {torch.bool}
        assert len(dtypes) <= 1, f"{node.target} of {dtypes}"
        assert "alpha" not in node.kwargs
        assert node.target is not aten.sum.dim_IntList or dtypes == {torch.float32}


def test_inputs_can_be_read_as_they_lie():
    given = []

    def build(gm):
        run = interpreted(gm)()
        return lambda: lambda inputs: (given.extend(inputs), run(inputs))[1]

    inputs = [
        torch.randn(4, 6).t().requires_grad_(),
        torch.randn(6, 1).expand(6, 4),
        torch.randn(25)[1:].view(6, 4),
        torch.imag(torch.randn(6, 4, dtype=torch.complex64).conj()),
    ]
    compiled = aotkit.compile(lambda a, b, c, d: a * b + c * d, backend=stand_in(build), check=False)
    torch.testing.assert_close(compiled(*inputs), inputs[0] * inputs[1] + inputs[2] * inputs[3])
    assert len(given) == 4
    for x in given:
        assert x.is_contiguous()
        assert x.data_ptr() % 64 == 0
        assert not x.requires_grad
        assert not x.is_neg()


def test_results_that_are_not_computed_are_put_back():
    """Inputs, the same twice, views, constants and None: compilers make other things of them, or wrong ones."""
    seen = []

    def build(gm):
        results = results_of(gm)
        assert len(set(results)) == len(results)
        seen.extend(n.op for n in results)
        assert all(node.users for node in gm.graph.find_nodes(op="placeholder"))
        return interpreted(gm)

    def function(x, y, unused):
        z = x * 2
        return x, z, z, z.t(), torch.ones(3), y, z[0], x[1], torch.arange(4.0) * 2

    inputs = [torch.randn(2, 3), torch.randn(2), torch.randn(5)]
    whole = aotkit.Backend(compiling(build))
    compiled = aotkit.compile(function, backend=whole, check=False)
    for _ in range(2):
        for got, want in zip(compiled(*inputs), function(*inputs), strict=True):
            torch.testing.assert_close(got, want)
    assert seen == ["call_function"]
    x = torch.randn(3, requires_grad=True)
    assert aotkit.check(lambda x, n: (x * 2, n * 2), x, torch.arange(3), backend=whole).passed


def test_results_in_the_memory_of_something_else_are_copied():
    """Compilers leave copies out."""

    def build(gm):
        return lambda: lambda inputs: [inputs[0], inputs[0], inputs[0].view(-1)[2:].view(1, 4)][: len(results_of(gm))]

    x = torch.ones(3, 2)
    compiled = aotkit.compile(
        lambda x: (x * 1, x + 0, x[1:].clone().view(1, 4)), backend=aotkit.Backend(compiling(build)), check=False
    )
    results = compiled(x)
    for i, result in enumerate(results):
        result.fill_(i + 2)
    assert (x == 1).all()
    assert [r.unique().tolist() for r in results] == [[2], [3], [4]]


def test_results_lie_in_memory_as_the_graph_has_them():
    x = torch.randn(4, 6).t()
    compiled = aotkit.compile(lambda x: x.sin() + 1, backend=stand_in())
    assert compiled(x).stride() == (x.sin() + 1).stride() == (1, 6)
    torch.testing.assert_close(compiled(x), x.sin() + 1)


def test_calls_at_the_same_time_have_something_to_run_them_each():
    both, made = threading.Barrier(2, timeout=60), []

    def build(gm):
        run = interpreted(gm)()

        def make():
            lock = threading.Lock()
            made.append(lock)

            def execute(inputs):
                assert lock.acquire(blocking=False), "two calls at the same time"
                try:
                    if inputs[0].numel() == 4:
                        both.wait()
                    return run(inputs)
                finally:
                    lock.release()

            return execute

        return make

    compiled = aotkit.compile(lambda x: x.sin() * 2, backend=stand_in(build), check=False)
    results = {}

    def call(i):
        results[i] = compiled(torch.full((4,), float(i)))

    compiled.graphs(torch.zeros(4))
    for _ in range(2):
        threads = [threading.Thread(target=call, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == 2
    for i in range(2):
        torch.testing.assert_close(results[i], torch.full((4,), float(i)).sin() * 2)


def test_what_raised_is_not_used_again():
    made = []

    def build(gm):
        run = interpreted(gm)()

        def make():
            made.append(None)

            def execute(inputs):
                if (inputs[0] > 5).any():
                    raise ValueError("too large")
                return run(inputs)

            return execute

        return make

    compiled = aotkit.compile(lambda x: x.sin() * 2, backend=stand_in(build), check=False)
    compiled(torch.zeros(4))
    with pytest.raises(Exception, match="too large"):
        compiled(torch.full((4,), 6.0))
    compiled(torch.zeros(4))
    assert len(made) == 2


def test_a_graph_is_exported_without_tracing():
    programs = []

    def build(gm):
        programs.append(exported(gm))
        module = programs[-1].module()
        return lambda: lambda inputs: [x.contiguous() for x in module(*inputs)]

    x = torch.randn(4, 6, requires_grad=True)
    assert aotkit.check(lambda x: torch.softmax(x, -1).square().sum(), x, backend=strictly(stand_in(build))).passed
    assert programs


REASONS = {
    "operator": (lambda x: torch.mm(x, x).sin(), "mm", "not among the operators that the stand-in gets"),
    "type": (lambda x: x.double() * 2, "mul", "no float64"),
    "operator of a type": (lambda x: x.half().exp() * 2, "exp", "no exp of half precision"),
    "no elements": (lambda x: x[:0] * 2, "mul", "a tensor without elements"),
    "power": (lambda x: x**2.5 + 1, "pow_1", "a power that consists of no products, quotients or roots"),
    "itself": (lambda x: torch.where(x != x, 0.0, x), "ne", "a comparison with itself"),
    "truth values": (lambda x: (x > 0) * (x > 1) * 2, "mul", "arithmetic of truth values"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_declined_has_a_reason(name):
    function, node, reason = REASONS[name]
    lacks = {torch.float64: "no float64", (aten.exp.default, torch.float16): "no exp of half precision"}
    graphs = aotkit.extract(function, torch.rand(4, 4), backend=stand_in(lacks=lacks))
    assert reason in graphs.regions["forward"].outside[node][0]


def test_open_sizes_and_other_devices_are_declined():
    def function(x):
        return x.sin() * 2

    graphs = aotkit.compile(function, backend=stand_in(), dynamic=True).graphs(torch.rand(4, 4))
    assert "compile with dynamic=False" in graphs.regions["forward"].outside["sin"][0]
    cuda = stand_in(devices={"cuda": lambda: None})
    graphs = aotkit.extract(function, torch.rand(4, 4), backend=cuda)
    assert graphs.regions["forward"].outside["sin"] == ("the stand-in takes tensors on cuda, not on cpu",)
    without = stand_in(devices={"cpu": lambda: "it has no CPU"})
    graphs = aotkit.extract(function, torch.rand(4, 4), backend=without)
    assert graphs.regions["forward"].outside["sin"] == ("it has no CPU",)


def test_what_is_not_installed_says_how_to_get_it():
    assert missing({"torch": "torch", "torch.fx": "torch"})() is None
    reason = missing({"torch": "torch", "no_such.module": "nosuch", "nor_this": "nosuch"})()
    assert reason == "there is no module 'no_such.module' and no 'nor_this'. Get it by `pip install torch nosuch`."


@pytest.mark.parametrize("name", COMPILERS)
def test_a_compiler_runs_here_or_says_how_to_get_it(name):
    status = aotkit.backend_status()[name]
    assert status is None or "Get it by `pip install " in status


@pytest.mark.sweep
def test_no_compiler_is_imported_before_it_is_used():
    program = f"""if True:
        import importlib, sys
        for name, module in {COMPILERS}.items():
            backend = importlib.import_module(f"aotkit.backends.{{name}}").backend
            assert isinstance(backend.unavailable(), str | None)
            assert module not in sys.modules, module
    """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_variance_is_atens():
    x = torch.randn(3, 4, 5) * 3 + 100
    backend = stand_in()
    for options in ({}, {"dim": 1}, {"dim": (0, 2), "keepdim": True}, {"correction": 0}, {"dim": 0, "correction": 2}):
        compiled = aotkit.compile(
            lambda x, o=options: (*torch.var_mean(x, **o), x.var(**o)), backend=backend, check=False
        )
        for got, want in zip(compiled(x), (*torch.var_mean(x, **options), x.var(**options)), strict=True):
            torch.testing.assert_close(got, want)
    assert aten.var_mean.correction not in {n.target for n in compiled.graphs(x).forward.graph.nodes}
