"""Calls of one function as `hypothesis` makes them up: inputs, surroundings, and what is done with the outputs."""

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn


class Subject(nn.Module):
    """A function with state of every kind: a parameter, buffers, flags, and something captured.

    Each of the methods in `BODIES` is compiled on its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("steps", torch.zeros(()))
        self.captured = torch.tensor(0.5)
        self.factor = 2.0

    def pointwise(self, a: Tensor, b: Tensor, n: Any) -> Any:
        y = a * b + a * self.factor
        return (y if n is None else y * n), (b * self.captured).sin()

    def reduced(self, a: Tensor, b: Tensor, n: Any) -> Any:
        return {"sum": (a * self.gain).sum(), "rest": [b.reshape(-1).exp() * (n or 1), n]}

    def mutating(self, a: Tensor, b: Tensor, n: Any) -> Any:
        a.mul_(2 if n is None else int(n))
        return a + b

    def views(self, a: Tensor, b: Tensor, n: Any) -> Any:
        y = a * 2
        return a, b.reshape(-1), y, y.transpose(0, -1) if y.dim() else y

    def stateful(self, a: Tensor, b: Tensor, n: Any) -> Any:
        self.steps.add_(1)
        return F.dropout(a, 0.5, self.training) * self.steps.clone(), b * self.gain

    def drawing(self, a: Tensor, b: Tensor, n: Any) -> Any:
        return a * torch.rand(b.shape) + torch.randn(3).sum(), b.detach() * a

    def layered(self, a: Tensor, b: Tensor, n: Any) -> Any:
        y = torch.tanh(a @ b.transpose(-1, -2)) if a.dim() > 1 else a * b
        return y.softmax(-1) if y.dim() and not y.is_complex() else y.abs()


BODIES = ["pointwise", "reduced", "mutating", "views", "stateful", "drawing", "layered"]

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64]
LAYOUTS = ["plain", "transposed", "strided", "offset", "expanded", "conjugate"]
GRADS = ["none", "leaf", "computed"]
SHARING = ["apart", "same", "equal views", "overlapping", "base and view", "detached"]
SURROUNDINGS = {
    "none": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": lambda: _switched(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": lambda: _switched(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "default device": lambda: torch.device("cpu"),
    "saved tensors on CPU": torch.autograd.graph.save_on_cpu,
}
ENDINGS = ["none", "backward", "twice", "one output", "later", "expanded", "strided", "grad", "mutated output"]
CHANGES = ["none", "eval", "train", "factor", "captured", "frozen", "thawed", "gain data", "gain replaced"]


@contextlib.contextmanager
def _switched(get: Any, put: Any, value: Any) -> Any:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


@dataclass(frozen=True)
class Call:
    """One call, and what happens before and after it. The names are those in the tables above."""

    change: str
    surroundings: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    layouts: tuple[str, str]
    grads: tuple[str, str]
    sharing: str
    number: Any
    ending: str
    seed: int


def mostly(usual: Any, others: Any) -> Any:
    """The usual value in half of the calls: where everything changes at once, no entry is found again."""
    return st.one_of(st.just(usual), st.sampled_from(list(others)))


CALLS = st.builds(
    Call,
    change=mostly("none", CHANGES),
    surroundings=st.one_of(
        st.just(()), st.lists(st.sampled_from(list(SURROUNDINGS)), max_size=2, unique=True).map(tuple)
    ),
    shape=mostly((2, 3), [(), (0,), (1,), (3,), (3, 2), (1, 1), (2, 0, 3), (2, 2, 2)]),
    dtype=mostly(torch.float32, DTYPES),
    layouts=st.tuples(mostly("plain", LAYOUTS), mostly("plain", LAYOUTS)),
    grads=st.tuples(mostly("leaf", GRADS), mostly("none", GRADS)),
    sharing=mostly("apart", SHARING),
    number=mostly(None, [1, 2, 2.0, True, False, 0.5]),
    ending=mostly("backward", ENDINGS),
    seed=st.integers(0, 2),
)  # fmt: skip


def inputs(call: Call) -> tuple[list[Tensor], Tensor, Tensor]:
    """(leaves, a, b), the same for the same call."""
    generator = torch.Generator().manual_seed(call.seed)
    leaves: list[Tensor] = []
    a = _tensor(call, 0, generator, leaves)
    if call.sharing == "apart":
        return leaves, a, _tensor(call, 1, generator, leaves)
    if call.sharing == "same":
        return leaves, a, a
    if call.sharing == "detached":
        return leaves, a, a.detach()
    if call.sharing == "base and view":
        return leaves, a, a.view_as(a)
    if call.sharing == "equal views" or not a.dim() or a.shape[0] < 2:
        return leaves, a[...], a[...]
    return leaves, a[:-1], a[1:]


def _tensor(call: Call, i: int, generator: torch.Generator, leaves: list[Tensor]) -> Tensor:
    shape, layout = call.shape, call.layouts[i]
    if layout == "transposed":
        shape = shape[::-1]
    elif layout in ("strided", "offset") and shape:
        shape = (shape[0] * 2 + 1, *shape[1:])
    elif layout == "expanded" and shape:
        shape = (1, *shape[1:])
    x = (torch.randn(shape, generator=generator, dtype=torch.float64) * 3).to(call.dtype)
    if x.is_floating_point() or x.is_complex():
        x.requires_grad_(call.grads[i] != "none")
    leaves.append(x)
    if call.grads[i] == "computed":
        x = x * 1
    if layout == "transposed":
        return x.permute(tuple(range(x.dim()))[::-1])
    if layout == "strided" and call.shape:
        return x[1::2]
    if layout == "offset" and call.shape:
        return x[1 : 1 + call.shape[0]]
    if layout == "expanded" and call.shape:
        return x.expand(call.shape)
    return x.conj() if layout == "conjugate" else x


def apply_change(subject: Subject, change: str) -> None:
    """Change state of the function that a compiled one has to follow."""
    if change in ("eval", "train"):
        subject.train(change == "train")
    elif change == "factor":
        subject.factor = 5.0 - subject.factor
    elif change == "captured":
        subject.captured = subject.captured * 2
    elif change in ("frozen", "thawed"):
        subject.gain.requires_grad_(change == "thawed")
    elif change == "gain data":
        subject.gain.data = subject.gain.data * 1.25
    elif change == "gain replaced":
        subject.gain = nn.Parameter(subject.gain.detach() + 1, requires_grad=subject.gain.requires_grad)


def finish(ending: str, outputs: list[Tensor], wanted: list[Tensor]) -> Any:
    """What the caller does with the outputs that require gradients; returns what it looks at."""
    outputs = [y for y in outputs if y.requires_grad]
    wanted = [x for x in wanted if x.requires_grad]
    if not outputs or ending == "none":
        return None
    if ending == "mutated output":
        outputs[0].mul_(2)
    elif ending == "one output":
        outputs = outputs[-1:]
    if ending == "expanded":
        cotangents = [torch.ones((), dtype=y.dtype).expand(y.shape) for y in outputs]
    elif ending == "strided":
        cotangents = [torch.stack([torch.full_like(y, i + 0.5) for i in (1, 2)], -1)[..., 0] for y in outputs]
    else:
        cotangents = [torch.full_like(y, 0.75) for y in outputs]
    if ending == "grad":
        return [_values(g) for g in torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True)]
    for last in (False, True) if ending == "twice" else (True,):
        torch.autograd.backward(outputs, cotangents, retain_graph=not last)
    return [_values(x.grad) for x in wanted if x.is_leaf]


def _values(gradient: Tensor | None) -> Tensor | None:
    """Without its strides and its conjugate bit, which autograd does not promise."""
    return None if gradient is None else gradient.resolve_conj().contiguous()
