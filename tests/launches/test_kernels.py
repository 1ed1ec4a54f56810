"""`explain(...).kernels`: what a call launches, under every backend."""

import json
import linecache
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import aotkit
from aotkit.backends.inductor_graphs.provenance import kernels_of
from aotkit.benchmark.workloads import tutorial, tutorial_inputs
from aotkit.passes.nodes import packet_name
from aotkit.stages.graph_launches import Operators, computes


def block(x, w, b):
    y = F.gelu(torch.addmm(b, x, w))
    y = F.dropout(y, 0.2)
    return (y.softmax(-1) + (x @ w)).relu().sum(0), torch.cat([y, y.exp()])


def arguments(device="cpu"):
    return (
        torch.randn(16, 8, device=device),
        torch.randn(8, 12, device=device, requires_grad=True),
        torch.randn(12, device=device, requires_grad=True),
    )


def takes(*names):
    return lambda node: None if packet_name(node) in names else f"takes {' and '.join(names)} only"


def wrapped(gm, example_inputs):
    return lambda *inputs: torch.fx.Interpreter(gm).run(*inputs)


class Telling(Operators):
    """Runs a graph as it is."""

    def __init__(self, gm, example_inputs):
        super().__init__(gm)
        self._run = wrapped(gm, example_inputs)

    def __call__(self, *inputs):
        return self._run(*inputs)


POINTWISE = aotkit.Backend(wrapped, declines=takes("gelu", "relu", "exp", "mul", "add"))
OTHERS = {
    "a black box": wrapped,
    "parts": POINTWISE,
    "two parts": aotkit.by_region(POINTWISE, "nop"),
    "dynamo": "dynamo:aot_eager",
}


def holds(kernels, graphs):
    """What has to be true of the kernels of any backend."""
    assert kernels.failure is None
    assert kernels.copying > 0
    for role, gm in {"forward": graphs.forward, "backward": graphs.backward}.items():
        nodes = {n.name: n for n in gm.graph.nodes}
        found = kernels.of(role)
        inside = [name for k in found for name in k.operations]
        assert {*inside, *kernels.left_out[role]} == {n.name for n in gm.graph.nodes if computes(n)}
        assert not kernels.left_out[role].keys() & set(inside)
        assert kernels.seconds[role] > 0
        done = set()
        for k in found:
            done.update(k.operations)
            read = {i.name for name in k.operations for i in nodes[name].all_input_nodes if computes(i)}
            assert read <= done | kernels.left_out[role].keys(), "a kernel runs before what it reads"
            assert k.read >= 0
            assert k.written >= 0
            assert k.seconds is None or k.seconds > 0
            assert k.peak is None or 0 <= k.peak <= kernels.peak
    return inside


@pytest.fixture
def nnc_on_cpu(monkeypatch):
    """The backend with NNC's interpreter instead of LLVM."""
    from aotkit.backends import nnc
    from aotkit.torch_private import torchscript

    for module in (nnc, torchscript):
        monkeypatch.setattr(module, "nnc_fuses_on_cpu", lambda: True)
    torch._C._jit_set_te_must_use_llvm_cpu(False)
    yield aotkit.Backend(nnc.compile_graph, decompositions=nnc.default_decompositions)
    torch._C._jit_set_te_must_use_llvm_cpu(True)


@pytest.mark.thinned
def test_every_operation_has_its_place_under_every_backend(backend, device):
    if device.type == "cpu" and backend in ("inductor_cpp", "nvfuser", "nnc"):
        pytest.skip("does nothing of its own on a CPU")
    args = arguments(device)
    compiled = aotkit.compile(block, backend=backend, check=False)
    kernels = compiled.explain(*args).kernels
    inside = holds(kernels, compiled.graphs(*args))
    if backend in ("nop", "print"):
        assert len(inside) == len(set(inside)) == len(kernels.of("backward")) == kernels.launches("backward")
        assert all(k.seconds for k in kernels.kernels)


@pytest.mark.parametrize("name", OTHERS)
def test_every_operation_has_its_place_under_other_backends(name):
    args = arguments()
    compiled = aotkit.compile(block, backend=OTHERS[name])
    kernels = compiled.explain(*args).kernels
    holds(kernels, compiled.graphs(*args))
    whys = {k.operations[0]: k.why for k in kernels.of("forward")}
    if name == "parts":
        assert whys["addmm"] == f"{OTHERS[name].fw_compiler.__name__}: takes gelu and relu and exp and mul and add only"
    else:
        assert any("does not tell" in why for why in whys.values())
    assert kernels.launches("forward") is None


def test_inductor_fuses_and_its_kernels_have_their_code():
    args = arguments()
    explanation = aotkit.compile(block, backend="inductor", check=False).explain(*args)
    fused = [k for k in explanation.kernels.kernels if k.kernel.language == "C++"]
    assert fused
    assert all(k.seconds and "#include" in k.kernel.code and not k.why for k in fused)
    operators = [set(k.operators) for k in explanation.kernels.of("forward")]
    assert {"addmm"} in operators
    assert {"mm", "add"} in operators  # Inductor merges them into another addmm
    assert explanation.kernels.launches("forward") < 8 < sum(map(len, operators))
    assert "kernel(" in explanation.code("forward")
    with pytest.raises(ValueError, match="'forward', 'backward'; there is no 'joint'"):
        explanation.code("joint")


def test_what_inductor_takes_from_its_cache_has_its_kernels():
    args = arguments()
    texts = []
    for _ in range(2):
        kernels = aotkit.compile(block, backend="inductor", check=False).explain(*args).kernels
        texts.append([(k.kernel.name, k.operations, k.kernel.code) for k in kernels.kernels])
    assert texts[0] == texts[1]


def test_nnc_fuses_groups(nnc_on_cpu):
    backend = nnc_on_cpu
    # Without LLVM, NNC interprets its kernels, in memory that threads share.
    compiled = aotkit.compile(lambda x: ((x * 2).sin() @ x).cos() * x, backend=backend, check=False)
    x = torch.randn(4, 4)
    first, product, last = compiled.explain(x).kernels.kernels
    assert (first.operators, product.operators, last.operators) == (("mul", "sin"), ("mm",), ("cos", "mul"))
    assert product.why == "NNC does not take it"
    assert "aten::cos" in last.kernel.code
    (alone,) = aotkit.compile(lambda x: (x * 2).sin(), backend=backend, check=False).explain(x).kernels.kernels
    assert alone.seconds > 0


def in_kernels(data, graph):
    """The operators in each kernel of a graph, by the JSON's lists of nodes; those of the nodes say the same."""
    for i, node in enumerate(data["nodes"]):
        assert node["kernels"] == [number for number, kernel in enumerate(data["kernels"]) if i in kernel["nodes"]]
    kernels = [kernel for kernel in data["kernels"] if kernel["graph"] == graph]
    return [[data["nodes"][i]["operator"] for i in kernel["nodes"]] for kernel in kernels]


def test_graphs_have_the_kernels(nnc_on_cpu):
    inputs = [x.detach().requires_grad_() for x in tutorial_inputs(4, 8)]
    fused = ["add", "add", "add", "cos", "cos"]
    found = {}
    for name, backend in {"inductor": "inductor", "nnc": nnc_on_cpu, "nop": "nop"}.items():
        compiled = aotkit.compile(tutorial, backend=backend, partition="min_cut", check=False)
        assert compiled.graphs(*inputs).json()["kernels"] is None
        assert not any(node["kernels"] for node in compiled.graphs(*inputs).json()["nodes"])
        graphs = compiled.explain(*inputs).graphs
        found[name] = data = graphs.json()
        assert json.loads(json.dumps(data)) == data
        assert in_kernels(data, "forward") == ([[operator] for operator in fused] if name == "nop" else [fused])
        assert len(in_kernels(data, "backward")) == (7 if name == "nop" else 1)
    names = {name: [kernel["name"] for kernel in data["kernels"]] for name, data in found.items()}
    assert all("cpp_fused" in name for name in names["inductor"])
    assert all(name.startswith("prim::TensorExprGroup") for name in names["nnc"])
    assert [kernel["language"] for kernel in found["nop"]["kernels"]] == ["ATen"] * 12
    # Two compilers that fuse the same, whatever they call it; and one that does not fuse.
    assert not aotkit.diff(found["inductor"], found["nnc"]).kernels
    changes = aotkit.diff(found["inductor"], found["nop"])
    assert [(len(f.a), len(f.b), f.a[0].graph) for f in changes.kernels] == [(1, 5, "forward"), (1, 7, "backward")]


def test_bytes_are_those_that_cross_the_edges():
    def f(x, table, index):
        y = x.sin() * x[:, :4].sum()
        return y.t() + 1, table[index], torch.zeros_like(y)

    x, table, index = torch.randn(16, 8), torch.randn(100, 4), torch.tensor([1, 5])
    found = aotkit.compile(f, backend="nop").explain(x, table, index).kernels.kernels
    whole = 16 * 8 * 4
    assert [(k.operators[0], k.read, k.written) for k in found] == [
        ("sin", whole, whole),
        ("sum", whole // 2, 4),
        ("mul", whole + 4, whole),
        ("add", whole, whole),
        ("index", 2 * 16 + 16, 2 * 16),
        ("zeros_like" if found[-1].operators[0] == "zeros_like" else "full_like", 0, whole),
    ]
    (fused,) = (
        aotkit.compile(lambda x, y: (x.sin() * y + x).cos(), backend="inductor", check=False)
        .explain(x, x + 1)
        .kernels.kernels
    )
    assert (fused.read, fused.written) == (2 * whole, whole)


def test_memory_is_what_is_held_up_to_the_end_of_each_kernel():
    compiled = aotkit.compile(lambda x: x.sin().exp().sum(), backend="nop")
    x = torch.ones(100)
    kernels = compiled.explain(x).kernels
    # What sin has made is freed when exp has ended.
    assert [(k.operators[0], k.peak) for k in kernels.kernels] == [("sin", 400), ("exp", 800), ("sum", 800)]
    assert kernels.peak == 800
    assert "besides its inputs, it holds 800 B at the most" in str(kernels)
    with torch.autograd.profiler.profile():  # which has the only record of what the CPU's allocator hands out
        kernels = compiled.explain(x).kernels
    assert (kernels.failure, kernels.peak, kernels.kernels[0].peak) == (None, None, None)


def test_lines_are_the_users():
    first = block.__code__.co_firstlineno
    kernels = aotkit.compile(block, backend="nop", random="torch").explain(*arguments()).kernels
    lines = {k.operators[0]: [(s.file, s.line) for s in k.sources] for k in kernels.kernels}
    assert lines["gelu"] == lines["gelu_backward"] == [(__file__, first + 1)]
    assert lines["cat"] == [(__file__, first + 3)]


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_hostile_names_do_not_run():
    source = "def f(x):\n    return x.sin() * 2 # </pre><img src=x onerror=alert(1)>\n"
    namespace = {}
    file = "<script>alert(1)<script>.py"
    exec(compile(source, file, "exec"), namespace)
    namespace["f"].__qualname__ = "<script>alert(1)</script>\x1b[2J"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)

    class Hostile(Telling):
        def kernels(self, inputs):
            return [
                aotkit.Kernel("<b>\x1b[2J", k.operations, "<i>", "</pre><img>", why="<u>")
                for k in super().kernels(inputs)
            ]

    explanation = aotkit.compile(namespace["f"], backend=Hostile).explain(torch.ones(3))
    page = Tags()
    page.feed(explanation.html())
    allowed = "html head meta title body div pre p h4 table tr th td details summary"
    assert page.found == set(allowed.split())
    assert page.attributes == {"charset", "http-equiv", "content", "class", "style"}
    assert "onerror" in explanation.html()
    assert "\x1b" not in str(explanation) + explanation.html()


def test_json_and_text_say_the_same():
    explanation = aotkit.compile(block, backend="inductor", check=False).explain(*arguments())
    found = json.loads(json.dumps(explanation.json()))["launched"]
    assert [k["name"] for k in found["kernels"]] == [k.kernel.name for k in explanation.kernels.kernels]
    text = str(explanation)
    assert re.search(r"^forward: \d+ kernels, \d+ launches, [\d.]+ \ws$", text, re.MULTILINE)
    assert "Inductor leaves it to a library" in text


@pytest.fixture(scope="module")
def explained():
    return aotkit.compile(block, backend="nop", check=False).explain(*arguments())


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_the_text_fits_the_terminal_and_has_its_colours(explained, width, monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    plain = str(explained)
    assert "\x1b" not in plain
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    coloured = str(explained)
    monkeypatch.setenv("NO_COLOR", "1")
    assert re.sub(r"\x1b\[\d+m", "", coloured) == str(explained)
    assert max(map(len, str(explained).splitlines())) <= width
    told = ["partition 'min_cut'", "forward: ", "backward: "]
    bold = "".join(re.findall(r"\x1b\[1m([^\x1b]*)\x1b\[0m", coloured))
    assert all(text in bold for text in told)
    # At every width, all of the names, lines and reasons that a page without end has.
    assert set(re.findall(r"\w+\.py:\d+", plain)) == set(re.findall(r"\w+\.py:\d+", str(explained)))


def test_asking_changes_nothing():
    def f(x, w):
        x.mul_(2)
        return F.dropout(x * w)

    compiled = aotkit.compile(f, backend="nop")
    x, w = torch.randn(8), torch.randn(8, requires_grad=True)
    before, state = x.clone(), torch.get_rng_state()
    compiled.explain(x, w)
    after_compiling = torch.get_rng_state()
    kernels = compiled.explain(x, w).kernels
    assert torch.equal(x, before)
    assert w.grad is None
    assert torch.equal(torch.get_rng_state(), after_compiling)
    assert torch.equal(state, after_compiling)
    assert kernels.failure is None
    holds(kernels, compiled.graphs(x, w))


def test_modules_methods_and_dynamo_tell_too():
    x = torch.randn(4, 8, requires_grad=True)
    module = torch.nn.Linear(8, 3)
    told = [
        aotkit.compile(module, backend="nop").explain(x),
        aotkit.compile(module.forward, backend="nop").explain(x),
        aotkit.compile(lambda x: module(x), backend="nop", capture="dynamo").explain(x),
    ]
    names = [sorted(k.kernel.name for k in explanation.kernels.of("forward")) for explanation in told]
    assert names[0] == names[1] == names[2] == ["aten.addmm.default"]
    split = aotkit.compile(lambda x: x.sin() if x.sum() > 0 else x.cos(), backend="nop", capture="dynamo").explain(x)
    assert "runs 2 graphs" in str(split)
    assert "runs 2 graphs" in split.html()


def test_eager_calls_launch_nothing_of_their_own():
    explanation = aotkit.compile(lambda x: x * 2, backend="nop").explain(torch.eye(2).to_sparse())
    assert "sparse" in explanation.html()
    assert explanation.json()["launched"] is None
    with pytest.raises(aotkit.TraceError, match=r"runs eagerly: .*sparse"):
        _ = explanation.kernels


@pytest.mark.parametrize("backend", ["nop", "inductor"])
def test_open_sizes_are_those_of_the_trace(backend):
    compiled = aotkit.compile(lambda x: (x.sin() * x.shape[0]).sum(1), backend=backend, dynamic=True, check=False)
    x = torch.randn(5, 3, requires_grad=True)
    kernels = compiled.explain(x).kernels
    holds(kernels, compiled.graphs(x))
    assert kernels.kernels[0].read == x.nbytes


def test_a_graph_that_fails_on_its_own_is_told_without_times():
    class Fails(Telling):
        def observed(self, inputs, around):
            raise RuntimeError("not here\x1b")

    explanation = aotkit.compile(torch.sin, backend=Fails).explain(torch.ones(2))
    assert explanation.kernels.failure == "RuntimeError: not here\x1b"
    assert "not timed: RuntimeError: not here\n" in str(explanation)
    assert "\x1b" not in str(explanation)


def test_a_kernel_that_inductor_gives_no_number_has_the_operations_above_its_code():
    """As those have it that reduce rows and columns at once."""
    source = '''
#   %mul : Tensor "f32[8, 4]cuda:0" = call_function[target=torch.ops.aten.mul.Tensor](args = (%x, %y), kwargs = {})
#   %sum_1 : Tensor "f32[4]cuda:0" = call_function[target=torch.ops.aten.sum.dim_IntList](args = (%mul, [0]))
triton_per_fused_mul_sum_0 = async_compile.triton('triton_per_fused_mul_sum_0', """def triton_per(): pass""")
class Runner:
    def call(self, args):
        triton_per_fused_mul_sum_0.run(buf0, 8, 4, stream=stream0)
'''
    (kernel,) = kernels_of(SimpleNamespace(source_code=source, inductor_provenance_mapping_str="{}"))
    assert kernel.name == "triton_per_fused_mul_sum_0"
    assert kernel.operations == ("mul", "sum_1")
    assert kernel.language == "Triton"


def test_what_adds_up_after_a_kernel_is_one_more():
    source = '''
#   %sum_1 : Tensor "f32[32]cuda:0" = call_function[target=torch.ops.aten.sum.dim_IntList](args = (%mul, [0]))
triton_per_fused_mul_sum_0 = async_compile.triton('triton_per_fused_mul_sum_0', """def triton_per(): pass""")
class Runner:
    def call(self, args):
        triton_per_fused_mul_sum_0.run(buf0, workspace_0, 8, 32, stream=stream0)
        buf1 = workspace_0[0 * (6) * (32) : 1 * (6) * (32)].view((6), (32)).sum(dim=0)
'''
    fused, added = kernels_of(SimpleNamespace(source_code=source, inductor_provenance_mapping_str="{}"))
    assert (fused.name, added.name, added.language) == ("triton_per_fused_mul_sum_0", "aten.sum", "ATen")
    assert (fused.operations, added.operations) == (("sum_1",), ())
    assert "library" in added.why
