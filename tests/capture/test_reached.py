"""What is told of a function to the next process: nothing that computes something else is told the same."""

import importlib
import sys
import textwrap

import pytest
import torch
from torch import nn

import aotkit
from aotkit.capture import entry, piece

MODULES = ("hk_program", "hk_other")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("aotkit.keep.store.cache_folder", lambda: tmp_path)  # not that of the C++ tier
    monkeypatch.setenv("AOTKIT_KEEP", "1")


@pytest.fixture
def told(monkeypatch):
    """All that is told of a compilation; None if that cannot be told."""

    def tell(fn, *args, capture="auto", **options):
        found = []
        with monkeypatch.context() as patch:
            for module in (entry, piece):
                patch.setattr(module, "kept_graphs", lambda parts, *rest, **kwargs: found.append(parts))
            aotkit.compile(fn, backend="nop", check=False, capture=capture, **options)(*args)
        assert found
        return found[0]

    return tell


@pytest.fixture
def program(monkeypatch, tmp_path, told):
    """A process of its own that runs this program, with another file, and what is told of its function `f`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(source, other="", prepare=None, **options):
        for name, text in zip(MODULES, (source, other), strict=True):
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            module = importlib.import_module(MODULES[0])
            if prepare is not None:
                prepare(module)
            args = module.args() if hasattr(module, "args") else [torch.ones(3)]
            return told(module.f, *args, **options)
        finally:
            sys.dont_write_bytecode = before
            for name in MODULES:
                sys.modules.pop(name, None)

    return run


TOLD = {
    "a function": """
        def f(x):
            return x * 2
        """,
    "modules": """
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(3, 3), nn.Sequential(nn.LayerNorm(3), nn.GELU(), nn.Dropout(0.1))
            def forward(self, x):
                return self.b(self.a(x)) + torch.nn.functional.softmax(x, 0)
        f = Net()
        """,
    "functions of torch": """
        import math
        import torch.nn.functional as F
        from torch import nn, relu, sin, ones_like, Tensor
        from torch.nn.functional import gelu, dropout
        from torch.utils.checkpoint import checkpoint
        exp = Tensor.exp
        def block(x):
            return exp(gelu(x) * math.pi)
        def f(x):
            return F.silu(relu(x)) + len(x.shape) * checkpoint(block, dropout(x, 0.5), use_reentrant=False)
        """,
    "own autograd function": """
        import torch
        class Own(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, g):
                return g * 2
        def args():
            return [torch.ones(3, requires_grad=True)]
        def f(x):
            return Own.apply(x)
        """,
    "objects": """
        import dataclasses, functools
        @dataclasses.dataclass
        class Settings:
            scale: float = 2.0
            names: tuple = ("a", "b")
        class Act:
            def __init__(self, s):
                self.s = s
            def __call__(self, x):
                return x * self.s
        settings, table = Settings(), {"a": Act(2.0), "b": functools.partial(lambda s, x: x + s, 3)}
        def f(x):
            for name in settings.names:
                x = table[name](x)
            return x * settings.scale
        """,
    "hooks": """
        from torch import nn
        f = nn.Linear(3, 3)
        f.register_forward_hook(lambda module, args, out: out * 2)
        """,
}


@pytest.mark.parametrize("source", TOLD.values(), ids=TOLD)
def test_the_same_is_told_in_each_process(program, source):
    first = program(source)
    assert first is not None
    # Hooks have numbers, which go on.
    assert "hook" in source or program(source) == first


# (program, other, and what the next process has instead of either: something else)
CHANGED = {
    "constant": ("def f(x):\n    return x * 2", "", "* 2", "* 3"),
    "type of a constant": ("def f(x):\n    return x / (2, 1)[1]", "", "(2, 1)", "(2, True)"),
    "global": ("S = 2.0\ndef f(x):\n    return x * S", "", "2.0", "3.0"),
    "zero": ("S = 0.0\ndef f(x):\n    return x / S", "", "0.0", "-0.0"),
    "other file": ("import hk_other\ndef f(x):\n    return hk_other.g(x)", "def g(x):\n    return x * 2", "2", "3"),
    "global of another file": (
        "from hk_other import g\ndef f(x):\n    return g(x)",
        "S = 2\ndef g(x):\n    return x * S",
        "2",
        "3",
    ),
    "default": ("def g(x, s=2):\n    return x * s\ndef f(x):\n    return g(x)", "", "s=2", "s=3"),
    "keyword default": ("def g(x, *, s=2):\n    return x * s\ndef f(x):\n    return g(x)", "", "s=2", "s=3"),
    "own default": ("def f(x, s=2):\n    return x * s", "", "s=2", "s=3"),
    "closure": ("def m(s):\n    return lambda x: x * s\nf = m(2)", "", "m(2)", "m(3)"),
    "partial": ("import functools\ndef g(s, x):\n    return x * s\nf = functools.partial(g, 2)", "", "g, 2", "g, 3"),
    "base class": (
        "from hk_other import B\nclass A(B):\n    pass\nf = A()",
        "class B:\n    s = 2\n    def __call__(self, x):\n        return x * self.s",
        "s = 2",
        "s = 3",
    ),
    "property": (
        "from hk_other import A\na = A()\ndef f(x):\n    return x * a.s",
        "class A:\n    @property\n    def s(self):\n        return 2",
        "2",
        "3",
    ),
    "made-up attribute": (
        "from hk_other import A\na = A()\ndef f(x):\n    return x * a.s",
        "class A:\n    def __getattr__(self, name):\n        return 2",
        "2",
        "3",
    ),
    "made-up attribute of a class": (
        "from hk_other import M\nclass A(metaclass=M):\n    pass\ndef f(x):\n    return x * A.s",
        "class M(type):\n    def __getattr__(cls, name):\n        return 2",
        "2",
        "3",
    ),
    "made-up attribute of a module": (
        "import hk_other\ndef f(x):\n    return x * hk_other.s",
        "import math\ndef __getattr__(name):\n    return 2",
        "2",
        "3",
    ),
    "partial method": (
        "import functools\nfrom hk_other import g\nclass A:\n    h = functools.partialmethod(g, 1)\na = A()\n"
        "def f(x):\n    return a.h(x)",
        "def g(self, s, x):\n    return x * s * 2",
        "2",
        "3",
    ),
    "forward by a partial method": (
        "import functools\nfrom torch import nn\nfrom hk_other import g\nclass A(nn.Module):\n"
        "    forward = functools.partialmethod(g, 1)\nf = A()",
        "def g(self, s, x):\n    return x * s * 2",
        "2",
        "3",
    ),
    "computed name": (
        "import hk_other\ndef f(x):\n    return getattr(hk_other, 'g' + str(x.dim()))(x)",
        "S = 2\ndef g1(x):\n    return x * S",
        "2",
        "3",
    ),
    "import in a function": ("def f(x):\n    from hk_other import S\n    return x * S", "S = 2", "2", "3"),
    "import of a module in a function": ("def f(x):\n    import hk_other as o\n    return x * o.S", "S = 2", "2", "3"),
    "monkeypatched module of torch": (
        "import torch\nfrom torch import nn\nfrom hk_other import patched\nnn.Linear.forward = patched\n"
        "f = nn.Linear(3, 3)",
        "S = 2\ndef patched(self, x):\n    return x * S",
        "2",
        "3",
    ),
    "monkeypatched function of torch": (
        "import torch\nfrom hk_other import patched\ntorch.nn.functional.silu = patched\n"
        "def f(x):\n    return torch.nn.functional.silu(x)",
        "S = 2\ndef patched(x):\n    return x * S",
        "2",
        "3",
    ),
    "monkeypatched function below a module of torch": (
        "import torch\nfrom hk_other import patched\ntorch.nn.functional.silu = patched\nf = torch.nn.SiLU()",
        "S = 2\ndef patched(x, inplace=False):\n    return x * S",
        "2",
        "3",
    ),
    "monkeypatched method of tensors": (
        "import torch\nfrom hk_other import patched\ntorch.Tensor.doubled = patched\ndef f(x):\n    return x.doubled()",
        "S = 2\ndef patched(x):\n    return x * S",
        "2",
        "3",
    ),
    "name put among Python's": (
        "import builtins\nfrom hk_other import g\nbuiltins.hk_scale = g\ndef f(x):\n    return hk_scale(x)",
        "S = 2\ndef g(x):\n    return x * S",
        "2",
        "3",
    ),
    "bound method of a list": (
        "import hk_other\nat = hk_other.L.__getitem__\ndef f(x):\n    return x * at(0)",
        "L = [2]",
        "2",
        "3",
    ),
    "operator of a number": (
        "import hk_other\nadd = hk_other.S.__add__\ndef f(x):\n    return x * add(0)",
        "S = 2",
        "2",
        "3",
    ),
    "script": (
        "import torch\nfrom hk_other import g\ndef f(x):\n    return g(x)",
        "import torch, warnings\nwarnings.simplefilter('ignore')\n@torch.jit.script\ndef g(x):\n    return x * 2",
        "2",
        "3",
    ),
    "settings of a decorator": (
        "import torch\ndef args():\n    return [torch.ones(3, 3)]\n@torch.autocast('cpu', torch.bfloat16)\n"
        "def g(x):\n    return x @ x\ndef f(x):\n    return g(x)",
        "",
        "bfloat16",
        "float16",
    ),
    "limit of a deque": (
        "import collections\nd = collections.deque([1], maxlen=2)\ndef f(x):\n    return x * d.maxlen",
        "",
        "maxlen=2",
        "maxlen=3",
    ),
    "method of an enumeration": (
        "import torch\nfrom hk_other import E\ndef args():\n    return [torch.ones(3), E.A]\n"
        "def f(x, e):\n    return x * e.scale()",
        "import enum\nclass E(enum.Enum):\n    A = 1\n    def scale(self):\n        return 2",
        "return 2",
        "return 3",
    ),
    "method of a named tuple": (
        "import torch\nfrom hk_other import Batch\ndef args():\n    return [Batch(torch.ones(3))]\n"
        "def f(b):\n    return b.scaled()",
        "from typing import Any, NamedTuple\nclass Batch(NamedTuple):\n    x: Any\n"
        "    def scaled(self):\n        return self.x * 2",
        "2",
        "3",
    ),
    "how a hook is called": (
        "from torch import nn\nf = nn.Linear(3, 3)\n"
        "handle = f.register_forward_hook(lambda *a: a[-1] * len(a), with_kwargs=False)\n",
        "",
        "with_kwargs=False",
        "with_kwargs=True",
    ),
}


@pytest.fixture
def unpatched():
    """What the programs patch is put back."""
    import builtins

    kept = nn.Linear.forward, nn.functional.silu
    yield
    nn.Linear.forward, nn.functional.silu = kept
    for space, name in ((torch.Tensor, "doubled"), (builtins, "hk_scale")):
        if name in vars(space):
            delattr(space, name)


@pytest.mark.thinned
@pytest.mark.usefixtures("unpatched")
@pytest.mark.parametrize(("source", "other", "before", "after"), CHANGED.values(), ids=CHANGED)
def test_what_computes_something_else_is_told_otherwise(program, monkeypatch, source, other, before, after):
    first = program(source, other, capture="aot")
    changed = [text.replace(before, after) for text in (source, other)]
    assert changed != [source, other]
    second = program(*changed, capture="aot")
    assert first is None or first != second


def test_a_file_that_has_changed_since_is_read_again(program):
    source = "from hk_other import A\na = A()\ndef f(x):\n    return x * a.s"
    other = "class A:\n    s = 2\n    def unused(self):\n        return {}"
    first, second = (program(source, other.format(text)) for text in ("'abcde'", "'edcba'"))
    assert first != second


@pytest.mark.parametrize("name", ["initial_seed()", "distributed.is_available()", "cuda.device_count()"])
def test_what_torch_tells_of_the_process_is_not_told(program, name):
    assert program(f"import torch\ndef f(x):\n    return x * (torch.{name} % 7)", capture="aot") is None


def test_an_operator_of_somebodys_is_not_told(program):
    source = """
        import torch
        library = torch.library.Library("hk", "FRAGMENT")
        library.define("g(Tensor x) -> Tensor")
        library.impl("g", lambda x: x * 2, "CompositeImplicitAutograd")
        g = torch.ops.hk.g.default
        def f(x):
            return g(x)
        """
    assert program(source, capture="aot") is None


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_a_function_under_another_name_tells_it(program, capture):
    torch._dynamo.reset()
    source = "def f(x):\n    return x * 2\nf.__qualname__ = '{}'"
    assert program(source.format("A"), capture=capture) != program(source.format("B"), capture=capture)


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_what_tensors_are_beyond_sizes_is_told(told, capture):
    def real(x):
        return (x * 2).abs()

    torch._dynamo.reset()
    x = torch.randn(3, dtype=torch.complex64)
    with torch.no_grad():
        kinds = [told(real, x, capture=capture), told(real, x.conj(), capture=capture)]
        y = torch.randn(3)
        kinds += [told(real, y, capture=capture), told(real, torch._neg_view(y), capture=capture)]
        with torch.inference_mode():
            inferred = torch.randn(3)
        kinds += [told(real, inferred, capture=capture)]
    known = [str(kind) for kind in kinds if kind is not None]
    assert len({*known}) == len(known) > 1


def test_settings_that_hold_code_are_not_told(told):
    import torch._inductor.config as settings

    def f(x):
        return x * 2

    class Pass:
        def __call__(self, graph):
            pass

        def __repr__(self):
            return "Pass"

    assert told(f, torch.ones(3)) is not None
    with settings.patch(post_grad_custom_pre_pass=Pass()):
        assert told(f, torch.ones(3)) is None
    with settings.patch(epilogue_fusion=False):
        assert told(f, torch.ones(3)) is not None
