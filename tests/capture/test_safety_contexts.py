"""What surrounds a call may change: transforms, modes, tracers, other compilers, threads, kinds of tensors."""

import contextlib
import warnings

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import aotkit
from tests.agreement import Tripling, agrees, compare

# What surrounds a call is the subject here: much of it makes calls eager.
pytestmark = pytest.mark.filterwarnings("ignore::aotkit.errors.EagerCallWarning")


def use(f, history):
    """Call `f` as the history says, so that it has such an entry."""
    if history == "after inference":
        f(torch.randn(3, 3))
    elif history == "after training":
        f(torch.randn(3, 3, requires_grad=True)).sum().backward()


def pulled_back(f, x):
    out, pull = vjp(f, x)
    return out, pull(torch.ones_like(out))


TRANSFORMS = {
    "grad": lambda f, x: grad(lambda x: f(x).sum())(x),
    "grad_and_value": lambda f, x: grad_and_value(lambda x: f(x).sum())(x),
    "grad of grad": lambda f, x: grad(lambda x: grad(lambda x: f(x).sum())(x).sum())(x),
    "vmap": lambda f, x: vmap(f)(x),
    "vmap of grad": lambda f, x: vmap(grad(lambda x: f(x).sum()))(x),
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones_like(x),)),
    "vjp": pulled_back,
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: hessian(lambda x: f(x).sum())(x),
    "jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x),
}
HISTORIES = ["fresh", "after inference", "after training"]


FORWARD_MODE = pytest.mark.filterwarnings("ignore:.*torch.jit.script")


@FORWARD_MODE
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_of_a_compiled_function(name, history):
    w = torch.randn(3, requires_grad=True)

    def scenario(compile):
        f = compile(lambda x: x.sin() * w)
        use(f, history)
        x = torch.randn(3, 3)
        yield TRANSFORMS[name](f, x)
        yield f(x), TRANSFORMS[name](f, x.requires_grad_())
        f(x).sum().backward()
        yield x.grad

    compare(scenario)


@FORWARD_MODE
@pytest.mark.parametrize("name", [name for name in TRANSFORMS if name != "jacobian"])
@agrees
def test_transform_inside(compile, name):
    f = compile(lambda x: TRANSFORMS[name](lambda v: (v * v).sin(), x))
    for requires_grad in (False, True):
        x = torch.randn(3, 3, requires_grad=requires_grad)
        out = torch.utils._pytree.tree_leaves(f(x))
        yield out
        if requires_grad:
            sum(o.sum() for o in out).backward()
            yield x.grad


@agrees
def test_functional_call_of_a_compiled_module(compile):
    m = compile(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    x = torch.randn(4, 3)
    yield m(x)
    others = {name: torch.randn_like(p, requires_grad=True) for name, p in m.named_parameters()}
    y = functional_call(m, others, (x,))
    y.sum().backward()
    yield y, [p.grad for p in others.values()], [p.grad for p in m.parameters()]
    yield m(x), dict(m.named_buffers())
    m.eval()
    yield m(x), grad(lambda p: functional_call(m, p, (x,)).sin().sum())(others)


@FORWARD_MODE
@pytest.mark.parametrize("history", HISTORIES)
@agrees(eager=None)
def test_forward_mode(compile, history):
    f = compile(lambda x: x.sin() * 2)
    use(f, history)
    x, t = torch.randn(3, 3), torch.ones(3, 3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        out = forward_ad.unpack_dual(f(dual))
        inside = out.primal, out.tangent, f(x), f(x.requires_grad_())
    yield inside
    yield f(x)


class Log(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Double(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.sin else out


@pytest.mark.parametrize("history", HISTORIES)
@agrees(eager=None)
def test_modes_that_see_every_operation(compile, history):
    f = compile(lambda x: torch.sin(x @ x) + 1)
    use(f, history)
    x = torch.randn(3, 3, requires_grad=True)
    with Log() as log:
        f(x).sum().backward()
    yield log.seen, x.grad
    with FlopCounterMode(display=False) as flops:
        f(x).sum().backward()
    yield flops.get_total_flops()
    with Double():
        doubled = f(x)
    yield doubled, f(x)
    with Log() as log:
        f(x.detach())
    yield log.seen


@agrees
def test_function_mode_inside(compile):
    def f(x):
        with Double():
            return torch.sin(x) + 1

    f = compile(f)
    for _ in range(2):
        yield f(torch.ones(3)), torch.sin(torch.ones(1))


@agrees
def test_global_module_hook(compile):
    m = compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    x, seen = torch.randn(3, 2), []
    yield m(x)
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: seen.append(type(m).__name__[-4:]))
    try:
        yield m(x), m(x)
    finally:
        handle.remove()
    yield seen, m(x), len(seen)


@agrees
def test_profiler_and_anomaly_detection(compile):
    f = compile(lambda x: x.exp().sum())
    for context in (
        torch.profiler.profile(acc_events=True),
        torch.autograd.set_detect_anomaly(True),
        contextlib.nullcontext(),
    ):
        x = torch.randn(3, requires_grad=True)
        with context:
            y = f(x)
            y.backward()
        yield y, x.grad


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@agrees
def test_choice_of_kernels(compile):
    f = compile(lambda q: nn.functional.scaled_dot_product_attention(q, q, q))
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    contexts = {
        "flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        "math": lambda: sdpa_kernel(SDPBackend.MATH),
        "no onednn": lambda: torch.backends.mkldnn.flags(enabled=False),
        "default": contextlib.nullcontext,
    }
    for _ in range(2):
        for name, context in contexts.items():
            with context():
                y = f(q)
            yield name, y, torch.autograd.grad(y.sum(), q)


@agrees
def test_other_device_by_default(compile):
    f = compile(lambda: torch.ones(2))
    for device in ("meta", "cpu", "meta"):
        with torch.device(device):
            out = f()
        yield out.device, out if device == "cpu" else out.shape


def around(name, f):
    match name:
        case "torch.compile":
            return torch.compile(f, backend="eager", fullgraph=True)
        case "torch.compile of a caller":
            return torch.compile(lambda x: f(x) * 1, backend="aot_eager", fullgraph=True)
        case "fx":
            return torch.fx.symbolic_trace(f if isinstance(f, nn.Module) else lambda x: f(x))
        case "jit":
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*torch.jit.trace")
                return torch.jit.trace(f if isinstance(f, nn.Module) else lambda x: f(x), torch.randn(3, 3))
        case "make_fx":
            from torch.fx.experimental.proxy_tensor import make_fx

            return make_fx(f)(torch.randn(3, 3))
        case "export":
            return torch.export.export(f, (torch.randn(3, 3),)).module()
        case "compile":
            return aotkit.compile(lambda x: f(x) * 1, backend="nop")


OTHERS = ["torch.compile", "torch.compile of a caller", "fx", "jit", "make_fx", "compile"]


@pytest.mark.parametrize("name", OTHERS)
@agrees(eager=None, exact=False)
def test_other_compiler_around_a_function(compile, name, order):
    f = compile(lambda x: torch.sin(x) * 2 + x)
    use(f, HISTORIES[::order][0])
    torch.compiler.reset()
    g = around(name, f)
    for _ in range(2):
        x = torch.randn(3, 3, requires_grad=True)
        (y := g(x)).sum().backward()
        yield y.detach(), x.grad
        yield f(x).detach()


@pytest.mark.parametrize("name", [*OTHERS, "export"])
@agrees(eager=None, exact=False)
def test_other_compiler_around_a_module(compile, name, order):
    m = compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).train(name != "export"))
    use(m, HISTORIES[::order][0])
    torch.compiler.reset()
    g = around(name, m)
    for _ in range(2):
        x = torch.randn(3, 3, requires_grad=True)
        m.zero_grad()
        g(x).sum().backward()
        yield g(x).detach(), x.grad, [p.grad for p in m.parameters()]
        yield m(x).detach()


def test_the_outer_of_two_compiled_functions_runs():
    ran = []

    def noting(name):
        return lambda gm, example_inputs: lambda *args: ran.append(name) or gm(*args)

    inner = aotkit.compile(lambda x: x.sin(), backend=noting("inner"), check=False)
    outer = aotkit.compile(lambda x: inner(x) * 2, backend=noting("outer"), check=False)
    x = torch.randn(3)
    for f in (outer, inner, outer):
        f(x)
    assert ran == ["outer", "inner", "outer"]


@pytest.mark.parametrize("reentrant", [False, True])
@agrees
def test_checkpoint_around(compile, reentrant):
    w = torch.randn(3, requires_grad=True)
    f = compile(lambda x: nn.functional.dropout(x.exp() * w, 0.5).sin())
    for _ in range(2):
        x, w.grad = torch.randn(3, requires_grad=True), None
        y = checkpoint(f, x, use_reentrant=reentrant)
        y.sum().backward()
        yield y.detach(), x.grad, w.grad, f(x)


class Plain(torch.Tensor):
    pass


def nested(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([x[0], x[1][:2]], layout=torch.jagged)


def quantized(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)


KINDS = {
    "plain": lambda x: x,
    "subclass": lambda x: x.as_subclass(Plain),
    "torch function": lambda x: x.as_subclass(Tripling),
    "parameter": nn.Parameter,
    "buffer": nn.Buffer,
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "nested": nested,
    "quantized": quantized,
    "onednn": lambda x: x.to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("kind", KINDS)
@agrees(eager=None)
def test_kinds_of_tensors_in_turn(compile, kind):
    f = compile(lambda x: torch.sin(x) if x.layout is torch.strided and not x.is_quantized else x)
    for name in (kind, "plain", kind, "parameter", kind):
        x = KINDS[name](torch.randn(3, 3))
        out = f(x)
        yield name, type(out), out.dtype, out.layout, out.device
        if type(out) is not torch.Tensor or out.layout is not torch.strided or out.is_meta or out.is_quantized:
            yield out is x
        else:
            yield out


@agrees(eager=None)
def test_subclass_in_the_closure_and_among_parameters(compile):
    w = torch.ones(3)
    f = compile(lambda x: torch.sin(w) + x)
    m = nn.Linear(3, 3)
    g = compile(m)
    x = torch.randn(3, 3)
    for kind in ("plain", "torch function", "plain"):
        w = KINDS[kind](torch.ones(3))
        m.weight = nn.Parameter(KINDS[kind](torch.ones(3, 3)))
        yield type(f(x)).__name__, f(x).as_subclass(torch.Tensor), g(x).as_subclass(torch.Tensor)
