"""The rivals of `python -m aotkit bench overhead`, each set up as its users would, and the check against eager."""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aotkit.benchmark.overhead_workloads import NO_GRAD, Workload
from aotkit.compiler import compile
from aotkit.registry import backend_status
from aotkit.torch_private.inductor import inductor_for_functorch

EAGER, AOT_FUNCTION, TORCH_COMPILE, AOTKIT = "eager", "aot_function", "torch.compile", "aotkit"
CUDA_GRAPHS, CPP = "torch.compile reduce-overhead", "aotkit inductor_cpp"
CHECKED_CALLS = 3  # Inductor replays a CUDA graph from the third on
TOLERANCE = 1e-4  # of the largest value of each tensor

_copies = itertools.count()


class Calls(NamedTuple):
    """How to call a variant.

    Attributes:
        grad: with gradients.
        no_grad: under `no_grad`.
        results_wait: whether backward may run after further calls; if not, it cannot be timed without them.
    """

    grad: Callable[..., Tensor]
    no_grad: Callable[..., Tensor]
    results_wait: bool = True


Variants = Mapping[str, Callable[[Workload], Calls]]
Results = Mapping[str, Tensor | None]  # "result", "gradient 0", ...


def variants(device: str) -> Variants:
    """How to set up each rival, by name; eager first.

    Where Inductor cannot run, aot_function and aotkit run their graphs as they are, and torch.compile is left out.
    """
    if backend_status()["inductor"] is not None:
        return {EAGER: _eager, AOT_FUNCTION: _aot_function_nop, AOTKIT: lambda w: _aotkit(w, "nop")}
    found: dict[str, Callable[[Workload], Calls]] = {
        EAGER: _eager,
        AOT_FUNCTION: _aot_function_inductor,
        TORCH_COMPILE: _torch_compile,
        AOTKIT: lambda w: _aotkit(w, "inductor"),
    }
    if device == "cuda":
        found |= {CUDA_GRAPHS: _cuda_graphs, CPP: lambda w: _aotkit(w, "inductor_cpp")}
    return found


def _eager(workload: Workload) -> Calls:
    return Calls(workload.fn, workload.fn)


def _aotkit(workload: Workload, backend: str) -> Calls:
    compiled = compile(workload.fn, backend=backend, partition="min_cut")
    return Calls(compiled, compiled)


def _torch_compile(workload: Workload) -> Calls:
    compiled = torch.compile(with_code_of_its_own(workload.fn))
    return Calls(compiled, compiled)


def _cuda_graphs(workload: Workload) -> Calls:
    compiled: Callable[..., Tensor] = torch.compile(with_code_of_its_own(workload.fn), mode="reduce-overhead")

    def call(*args: Tensor) -> Tensor:
        # What earlier calls returned may be overwritten.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return compiled(*args)

    return Calls(call, call, results_wait=False)


def with_code_of_its_own(fn: Any) -> Any:
    """A copy for which Dynamo knows no compilation, no dynamic shape: it remembers both by the code and its name."""
    if isinstance(fn, nn.Module):
        module, kind = copy.copy(fn), type(fn)
        module.__class__ = type(kind.__name__, (kind,), {"forward": with_code_of_its_own(kind.forward)})
        return module
    code = fn.__code__.replace(co_name=f"{fn.__name__}_{next(_copies)}")
    return FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


def _aot_function_inductor(workload: Workload) -> Calls:
    return _aot_function(workload, inductor_for_functorch())


def _aot_function_nop(workload: Workload) -> Calls:
    from functorch.compile import min_cut_rematerialization_partition, nop

    return _aot_function(workload, {"fw_compiler": nop, "partition_fn": min_cut_rematerialization_partition})


def _aot_function(workload: Workload, compilers: dict[str, Any]) -> Calls:
    """It compiles once and for all, so its user keeps one for each shape, and another for `no_grad`."""
    from functorch.compile import aot_function, aot_module

    def one() -> Callable[..., Tensor]:
        wrap = aot_module if isinstance(workload.fn, nn.Module) else aot_function
        return wrap(workload.fn, **compilers)  # type: ignore[no-any-return]

    def by_shape() -> Callable[..., Tensor]:
        if len(workload.calls) == 1:
            return one()
        compiled = {call[0].shape: one() for call in workload.calls}
        return lambda *args: compiled[args[0].shape](*args)

    return Calls(by_shape(), by_shape())


class Reference:
    """What eager gives: result and gradients of each call."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._generator = torch.Generator().manual_seed(1)
        self.cotangents = [self._cotangent(workload.fn(*call)) for call in workload.calls]
        self._expected = [self._results(workload.fn, i) for i in range(len(workload.calls))]

    def difference(self, calls: Calls) -> str | None:
        """What differs of result and gradients in any of the first few calls; None if nothing does."""
        for _ in range(CHECKED_CALLS):
            for i, expected in enumerate(self._expected):
                # At once, since the next call may overwrite the results of this one.
                problem = _difference(self._results(calls.grad, i), expected)
                if problem is None and NO_GRAD in self._workload.phases:
                    with torch.no_grad():
                        result = calls.no_grad(*self._workload.calls[i])
                    problem = _difference({"result": result}, expected, " under no_grad")
                if problem is not None:
                    return problem
        return None

    def _cotangent(self, result: Tensor) -> Tensor:
        return torch.randn(result.shape, generator=self._generator, dtype=result.dtype).to(result.device)

    def _results(self, fn: Callable[..., Tensor], call: int) -> Results:
        leaves = self._workload.leaves
        result = fn(*self._workload.calls[call])
        result.backward(self.cotangents[call])  # type: ignore[no-untyped-call]
        gradients = [leaf.grad for leaf in leaves]
        clear(leaves)
        return {"result": result.detach(), **{f"gradient {i}": g for i, g in enumerate(gradients)}}


def clear(leaves: Sequence[Tensor]) -> None:
    for leaf in leaves:
        leaf.grad = None


def _difference(found: Results, expected: Results, where: str = "") -> str | None:
    for what, tensor in found.items():
        wanted = expected[what]
        if tensor is None or wanted is None:
            if tensor is not wanted:
                return f"{what}{where} is {'missing' if tensor is None else 'there'}, unlike eager's"
            continue
        limit = TOLERANCE * float(wanted.abs().max())
        try:
            torch.testing.assert_close(tensor, wanted, rtol=TOLERANCE, atol=limit)
        except AssertionError as e:
            return f"{what}{where} differs from eager's: {e}"
    return None
